"""A memory looks the same everywhere, and no two labels look alike."""

from hadamem.memory import list_memories
from hadamem.reports.content import Figure, Series
from hadamem.reports.data import find_styles
from hadamem.reports.palette import KNOWN, MARKERS, make_styles, simplify
from hadamem.reports.plots import MARKERS as DRAWN


def test_every_memory_of_the_library_has_a_style_of_its_own():
    styles = make_styles(list_memories())
    assert all(simplify(name) in KNOWN for name in list_memories())
    assert len(set(styles.values())) == len(styles)
    assert len({(style.marker, style.hollow) for style in styles.values()}) == len(styles)      # without colours


def test_a_style_does_not_depend_on_the_other_labels():
    for name, other in (("gru", "GRU"), ("gpt2", "GPT-2"), ("fast_weights", "fast weights")):
        assert make_styles(["mine", name])[name] == make_styles([other, "shm"])[other]


def test_own_labels_get_free_styles():
    labels = [*list_memories(), *(f"own-{i}" for i in range(40))]
    styles = make_styles(labels)
    assert len({(style.colour, style.marker, style.hollow) for style in styles.values()}) == len(labels)
    first = make_styles(["shm", "gru", "mine", "yours"])
    assert len({style.colour for style in first.values()}) == 4
    assert len({(style.marker, style.hollow) for style in first.values()}) == 4
    assert len(make_styles(f"own-{i}" for i in range(300))) == 300      # styles repeat, but it ends


def test_references_differ_in_their_dashes():
    styles = make_styles(["shm"], ["paper", "theory", "shm"])
    assert styles["shm"] == KNOWN["shm"]
    assert styles["paper"].dash != styles["theory"].dash
    figure = Figure("f", "t", "x", "y", [Series("a", [1], [1]), Series("b", [1], [1], dashed=True)])
    assert set(find_styles([figure])) == {"a", "b"}


def test_every_marker_can_be_drawn():
    assert set(DRAWN) == set(MARKERS)
