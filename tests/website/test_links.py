"""Links of the docs as the site has them, and the check of built pages."""

import pytest

from website import check_links
from website.links import place, rewrite


@pytest.mark.parametrize(("path", "want"), [
    ("docs/training.md", "training.md"),
    ("docs/development/performance-diary.md", "development/performance-diary.md"),
    ("docs/figures/demo.png", "figures/demo.png"),
    ("docs/website/index.md", "index.md"),
    ("docs/README.md", "index.md"),
    ("README.md", "tour.md"),
    ("CHANGELOG.md", "changelog.md"),
    ("examples/own_memory.py", "files/examples/own_memory.py.md"),
    ("examples/own_study", "files/examples/own_study/index.md"),
    ("docs/measurements/cpu-shm.json", "files/docs/measurements/cpu-shm.json"),
])
def test_places(path, want):
    assert place(path) == want


@pytest.mark.parametrize(("path", "link", "want"), [
    ("docs/training.md", "memories.md#add-a-memory", "memories.md#add-a-memory"),
    ("docs/training.md", "../examples/own_memory.py", "files/examples/own_memory.py.md"),
    ("docs/development/performance-diary.md", "../performance.md", "../performance.md"),
    ("README.md", "docs/training.md", "training.md"),
    ("CONTRIBUTING.md", "docs/kernels.md#add-a-backend", "kernels.md#add-a-backend"),
    ("docs/website/index.md", "../../README.md", "tour.md"),
    ("docs/own-study.md", "figures/own-study.png", "figures/own-study.png"),
    ("docs/training.md", "#settings", "#settings"),
    ("docs/training.md", "https://example.org/a.md", "https://example.org/a.md"),
])
def test_links_are_rewritten(path, link, want):
    assert rewrite(f"see [it]({link}).", path, lambda file: None) == f"see [it]({want})."


def test_code_is_left_alone_and_files_are_collected():
    found = []
    text = "[a](../examples/own_memory.py)\n```python\nx[0](../README.md)\n```\n[b](../README.md)"
    new = rewrite(text, "docs/training.md", found.append)
    assert "x[0](../README.md)" in new
    assert new.endswith("[b](tour.md)")
    assert found == ["examples/own_memory.py", "README.md"]


def test_a_link_to_nothing_is_an_error():
    with pytest.raises(ValueError, match=r"docs/training.md links to gone.md"):
        rewrite("[a](gone.md)", "docs/training.md", lambda file: None)


def test_broken_links_of_built_pages_are_found(tmp_path, capsys):
    (tmp_path / "a.html").write_text('<a href="b.html#here">x</a><a href="https://example.org">y</a><a href="#top"></a><p id="top">'
                                     '<img src="i.png">')
    (tmp_path / "b.html").write_text('<p id="here"><a href="a.html#gone">x</a><a href="c.html">y</a>')
    assert check_links.main(str(tmp_path)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["a.html: i.png does not exist", "b.html: a.html#gone has no such anchor", "b.html: c.html does not exist",
                     "2 pages, 3 broken links"]
    (tmp_path / "i.png").touch()
    (tmp_path / "b.html").write_text('<p id="here">')
    assert check_links.main(str(tmp_path)) == 0
    assert check_links.main(str(tmp_path / "empty")) == 1
