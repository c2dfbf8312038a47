"""Numbers that memories hold, against sizes worked out by hand."""

from __future__ import annotations

import pytest

import hadamem as hm
from hadamem.experiments.studies import memory_elements

from .studies import run


@pytest.fixture(scope="module")
def found():
    return run(memory_elements.make(quick=True))


def test_state_sizes(found):
    meta = {(row["memory"], row["options"]["memory_size"]): row["state"] for row in found[0].measures["meta"]["rows"]}
    assert meta["shm-paper", 24] == 24 * 24
    assert meta["fwp", 64] == 64 * 64
    assert meta["ffm", 128] == 2 * 128 * 4                 # complex
    assert meta["mlstm", 24] == 24 * 24 + 24 + 1
    assert meta["s6", 512] == 80 * (512 + 4)               # channels: twice the features
    assert meta["gru", 512] == 512
    assert meta["gpt2", 512] == 99 * (2 * 512)             # keys and values of the steps before this one


def test_every_memory_is_there_with_its_bytes(found):
    rows = {row["memory"]: row for row in found[0].measures["popgym"]["rows"]}
    assert list(rows) == hm.list_memories()
    for row in rows.values():
        assert 4 * row["parameters"] <= row["bytes"] <= 4 * row["parameters"] + 200 * row["tensors"] + 300


def test_the_papers_number_stands_beside_ours(found):
    table = found[1][1].items[0]
    cells = [row[3] for row in table.rows]
    assert {cell.paper for cell in cells} == {512}
    assert cells[0].difference == 576 - 512
