"""Files appear as a whole or not at all."""

import pytest

from hadamem import files


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_and_replaced(tmp_path):
    files.write_text(tmp_path / "a.txt", "one")
    files.write_text(tmp_path / "a.txt", "zwölf")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "zwölf"
    assert names(tmp_path) == ["a.txt"]


def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch):
    files.write_file(tmp_path / "a", b"old")

    def fail(path, data):
        path.write_bytes(data[:1])
        raise OSError("disk full")

    monkeypatch.setattr(files, "write_through", fail)
    with pytest.raises(OSError, match="disk full"):
        files.write_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_an_error_in_one_line():
    assert files.clip_text(ValueError("two\n  lines " + "x" * 500)) == "two lines " + "x" * 290
    assert files.clip_text(OSError(2, "No such file")) == "No such file"
