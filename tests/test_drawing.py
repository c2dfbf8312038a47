"""What all plots share."""

import pytest

from hadamem import drawing

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a", b"\x89PNG"), ("a.svg", b"<?xml"), ("new/a.SVG", b"<?xml")])
def test_a_figure_is_saved_as_its_path_ends_and_always_the_same(name, start, tmp_path):
    def save():
        canvas = drawing.new_canvas(3, 2)
        ax = canvas.subplots()
        drawing.style_axes(ax)
        ax.plot([1, 2], [3, 4])
        return drawing.save_canvas(canvas, tmp_path / name).read_bytes()

    first = save()
    assert first.startswith(start)
    assert save() == first
