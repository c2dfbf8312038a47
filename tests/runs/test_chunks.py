"""Chunks beside checkpoints: written once, checked when read, deleted with the last checkpoint that names them."""

import json
import os

import pytest
import torch

from hadamem.runs.checkpoint import Checkpoints
from hadamem.runs.chunks import ChunkStore
from hadamem.runs.files import CheckpointError


class Growing:
    """Grows by one chunk per `add` and keeps the latest `room`, as a replay does."""

    def __init__(self, room=3):
        self.room, self.chunks, self.reads, self.loads = room, {}, [], []

    def add(self, value=None):
        number = 1 + max((int(name) for name in self.chunks), default=-1)
        x = torch.full((2, 3), float(number if value is None else value))
        self.chunks[f"{number:08}"] = {"x": x, "done": torch.tensor([True, False])}
        self.chunks = dict(list(self.chunks.items())[-self.room:])

    def chunk_names(self):
        return list(self.chunks)

    def read_chunk(self, name):
        self.reads.append(name)
        return self.chunks[name]

    def load_chunks(self, chunks):
        self.chunks = {}
        self.loads.append([])
        for name, tensors in chunks:
            self.loads[-1].append(name)
            self.chunks[name] = tensors

    def values(self):
        return {name: float(tensors["x"][0, 0]) for name, tensors in self.chunks.items()}


def names(*numbers):
    return [f"{number:08}" for number in numbers]


def file(folder, number):
    return folder / "chunks" / f"{number:08}.safetensors"


def on_disk(folder):
    return sorted(path.name.removesuffix(".safetensors") for path in (folder / "chunks").iterdir())


def identity(path):
    """Changes when a file is written again, even with the same contents."""
    stat = os.stat(path)
    return stat.st_ino, stat.st_mtime_ns


def damage(path, how):
    data = path.read_bytes()
    if how == "changed":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif how == "truncated":
        path.write_bytes(data[:-7])
    elif how == "missing":
        path.unlink()


@pytest.fixture
def saved(tmp_path):
    """A folder with the checkpoints 1 (chunks 0, 1) and 2 (chunks 0, 1, 2), and the data they were made of."""
    checkpoints, data = Checkpoints(tmp_path), Growing()
    data.add()
    for iteration in (1, 2):
        data.add()
        checkpoints.write(iteration, {"i": torch.tensor(iteration)}, {}, data)
    return tmp_path, checkpoints, data


def test_a_checkpoint_names_its_chunks_in_order(saved):
    folder, _, _ = saved
    about = json.loads((folder / "00000002" / "about.json").read_text())
    assert [seal["name"] for seal in about["chunks"]] == names(0, 1, 2)
    for seal in about["chunks"]:
        assert set(seal) == {"name", "bytes", "sha256"}
        assert seal["bytes"] == (folder / "chunks" / f"{seal['name']}.safetensors").stat().st_size
    assert on_disk(folder) == names(0, 1, 2)


def test_only_new_chunks_are_written(saved):
    folder, checkpoints, data = saved
    assert data.reads == names(0, 1, 2)      # once each
    before = {number: identity(file(folder, number)) for number in (1, 2)}
    data.add()
    checkpoints.write(3, {}, {}, data)
    checkpoints.write(3, {}, {}, data)      # again, over it
    assert data.reads == names(0, 1, 2, 3)
    assert {number: identity(file(folder, number)) for number in (1, 2)} == before


def test_chunks_that_were_read_are_not_written_again(saved):
    """After a resume in another process."""
    folder, _, _ = saved
    checkpoints, data = Checkpoints(folder), Growing()
    checkpoints.newest(pytest.fail, load=data)
    before = {number: identity(file(folder, number)) for number in (1, 2)}
    data.add()
    checkpoints.continue_after(2)
    checkpoints.write(3, {}, {}, data)
    assert data.reads == names(3)
    assert {number: identity(file(folder, number)) for number in (1, 2)} == before
    other = Growing()
    Checkpoints(folder).newest(pytest.fail, load=other)
    assert other.values() == {"00000001": 1.0, "00000002": 2.0, "00000003": 3.0}


def test_chunks_go_with_the_last_checkpoint_that_names_them(saved):
    folder, checkpoints, data = saved
    data.add()                                       # chunk 0 is dropped from the data,
    checkpoints.write(3, {}, {}, data)
    assert on_disk(folder) == names(0, 1, 2, 3)      # but checkpoint 2 still names it
    data.add()
    checkpoints.write(4, {}, {}, data)
    assert [path.name for path in checkpoints.paths()] == ["00000004", "00000003"]
    assert on_disk(folder) == names(1, 2, 3, 4)
    data.add()
    checkpoints.write(5, {}, {}, data)
    assert on_disk(folder) == names(2, 3, 4, 5)


def test_an_unreadable_checkpoint_keeps_all_chunks(saved):
    """What it names is not known."""
    folder, checkpoints, data = saved
    checkpoints.keep = 3
    (folder / "00000001" / "about.json").write_text("{")
    for iteration in (3, 4):
        data.add()
        checkpoints.write(iteration, {}, {}, data)
        assert on_disk(folder) == names(*range(iteration + 1))
    data.add()
    checkpoints.write(5, {}, {}, data)      # the unreadable one is among the oldest, and gone
    assert on_disk(folder) == names(1, 2, 3, 4, 5)


def test_chunks_are_loaded_in_order_and_as_they_were(saved):
    folder, _, data = saved
    other, said = Growing(), []
    found = Checkpoints(folder).newest(said.append, load=other)
    assert (found.about["iteration"], said) == (2, [])
    assert other.loads == [names(0, 1, 2)]
    assert other.chunk_names() == data.chunk_names()
    for name, tensors in data.chunks.items():
        assert set(other.chunks[name]) == set(tensors)
        for key, x in tensors.items():
            assert torch.equal(other.chunks[name][key], x)
            assert other.chunks[name][key].dtype == x.dtype


def test_order_is_that_of_the_data_not_of_the_names(tmp_path):
    data = Growing(room=9)
    data.chunks = {name: {"x": torch.tensor([[float(i)]])} for i, name in enumerate(("c", "a", "b"))}
    Checkpoints(tmp_path).write(1, {}, {}, data)
    other = Growing()
    Checkpoints(tmp_path).newest(pytest.fail, load=other)
    assert other.loads == [["c", "a", "b"]]


@pytest.mark.parametrize(("how", "words"), [
    ("changed", "was changed: its size or checksum is wrong"), ("truncated", "is missing or incomplete"),
    ("missing", "is missing or incomplete"),
])
def test_with_a_damaged_chunk_the_checkpoint_before_is_used(saved, how, words):
    folder, _, _ = saved
    damage(file(folder, 2), how)
    checkpoints, data, said = Checkpoints(folder), Growing(), []
    found = checkpoints.newest(said.append, load=data)
    assert int(found.tensors["i"]) == found.about["iteration"] == 1
    assert said == [f"skipped a damaged checkpoint: {file(folder, 2)} {words}"]
    assert data.values() == {"00000000": 0.0, "00000001": 1.0}
    # The run continues from there: another chunk of the same name takes the place of the damaged one.
    checkpoints.continue_after(1)
    assert on_disk(folder) == names(0, 1)
    assert (folder / "00000002.damaged").is_dir()
    data.add(value=20.0)
    checkpoints.write(2, {}, {}, data)
    other = Growing()
    assert Checkpoints(folder).newest(pytest.fail, load=other).about["iteration"] == 2
    assert other.values() == {"00000000": 0.0, "00000001": 1.0, "00000002": 20.0}


def test_good_chunks_of_a_damaged_checkpoint_are_written_again(tmp_path):
    """They were read before the damage was found, but belong to what the run does not continue from."""
    checkpoints, data = Checkpoints(tmp_path), Growing(room=9)
    data.add()
    checkpoints.write(1, {}, {}, data)
    data.add()
    data.add()
    checkpoints.write(2, {}, {}, data)
    damage(file(tmp_path, 2), "changed")      # chunk 1 is fine
    checkpoints, data, said = Checkpoints(tmp_path), Growing(room=9), []
    assert checkpoints.newest(said.append, load=data).about["iteration"] == 1
    assert len(said) == 1
    assert data.values() == {"00000000": 0.0}
    checkpoints.continue_after(1)
    data.add(value=10.0)
    checkpoints.write(2, {}, {}, data)
    other = Growing(room=9)
    assert Checkpoints(tmp_path).newest(pytest.fail, load=other).about["iteration"] == 2
    assert other.values() == {"00000000": 0.0, "00000001": 10.0}


def test_a_chunk_that_all_checkpoints_need(saved):
    folder, _, _ = saved
    damage(file(folder, 1), "changed")
    said = []
    assert Checkpoints(folder).newest(said.append, load=Growing()) is None
    assert [text.count("00000001.safetensors was changed") for text in said] == [1, 1]
    assert on_disk(folder) == names(0, 1, 2)      # looking deletes nothing


def test_a_policy_needs_no_chunks(saved):
    """Without `load`, chunks are not looked at."""
    folder, _, _ = saved
    damage(file(folder, 1), "missing")
    assert Checkpoints(folder).newest(pytest.fail, only="i").about["iteration"] == 2


def test_without_chunks_there_is_no_folder_for_them(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(1, {}, {})
    checkpoints.write(2, {}, {}, Growing())      # nothing in it yet
    checkpoints.continue_after(2)
    assert not (tmp_path / "chunks").exists()
    assert "chunks" not in json.loads((tmp_path / "00000002" / "about.json").read_text())
    data = Growing()
    data.add()
    assert checkpoints.newest(pytest.fail, load=data).about["iteration"] == 2
    assert data.loads == [[]]


def test_what_a_crash_left_is_removed(saved):
    """Chunks of a checkpoint that was never completed, and half-written files."""
    folder, checkpoints, data = saved
    data.add()
    checkpoints.chunks.write(data.chunk_names(), data.read_chunk)      # and then it crashed, before the checkpoint
    (folder / "chunks" / ".00000004.safetensors.new-1").write_bytes(b"half")
    checkpoints, other = Checkpoints(folder), Growing()
    checkpoints.newest(pytest.fail, load=other)
    checkpoints.continue_after(2)
    assert on_disk(folder) == names(0, 1, 2)
    assert other.values() == {"00000000": 0.0, "00000001": 1.0, "00000002": 2.0}


def test_a_failed_write_leaves_no_chunk(tmp_path, monkeypatch):
    store, data = ChunkStore(tmp_path / "chunks"), Growing()
    data.add()

    def fail(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(OSError, match="No space"):
            store.write(data.chunk_names(), data.read_chunk)
    assert on_disk(tmp_path) == []
    store.write(data.chunk_names(), data.read_chunk)      # and it is written the next time
    assert on_disk(tmp_path) == names(0)


def test_the_store_alone(tmp_path):
    store, data = ChunkStore(tmp_path / "chunks"), Growing()
    data.add()
    data.add()
    seals = store.write(data.chunk_names(), data.read_chunk)
    store.check(seals)
    fresh = ChunkStore(tmp_path / "chunks")
    assert [name for name, _ in fresh.read(reversed(seals))] == names(1, 0)
    assert fresh.seals == {seal["name"]: seal for seal in seals}
    file(tmp_path, 0).unlink()
    with pytest.raises(CheckpointError, match=r"00000000.safetensors is missing or incomplete"):
        store.check(seals)
    with pytest.raises(CheckpointError, match=r"00000000.safetensors cannot be read: No such file or directory"):
        list(store.read(seals))


def test_a_run_that_goes_back_does_not_overwrite_chunks_of_older_checkpoints(tmp_path):
    before, after = Growing(), Growing()
    before.add(1)
    Checkpoints(tmp_path, keep=5).write(1, {"a": torch.zeros(1)}, {}, before)
    after.add(2)                                                   # another course of the run, whose chunk has the same name
    store = Checkpoints(tmp_path, keep=5)
    store.write(2, {"a": torch.zeros(1)}, {}, after)
    assert on_disk(tmp_path) == ["00000000", "00000000-2"]
    for path, value in zip(store.paths(), (2.0, 1.0), strict=True):      # the newest first
        found = Growing()
        assert Checkpoints(tmp_path).newest(pytest.fail, load=found, paths=[path]) is not None
        assert found.values() == {"00000000": value}
    Checkpoints(tmp_path, keep=1).write(3, {"a": torch.zeros(1)}, {}, after)
    assert len(on_disk(tmp_path)) == 1
