"""Times of acting steps: every memory has one, and the report says where it was measured."""

from __future__ import annotations

import pytest
import torch

import hadamem as hm
from hadamem.experiments.folder import StudyFolder
from hadamem.experiments.studies import inference_time

from .studies import check_missing, run


@pytest.fixture(scope="module")
def found():
    return run(inference_time.make(quick=True))


def test_every_memory_is_timed(found):
    results, _ = found
    for batch in (1, 64):
        rows = results.measures[f"cpu-{batch}"]["rows"]
        assert {row["memory"] for row in rows} == set(hm.list_memories())
        assert all(0 < row["low"] <= row["wall"] <= row["high"] for row in rows)
        assert all(0 < row["ms"] < float("inf") for row in rows)


def test_the_report_names_the_machine(found):
    cpu, gpu = found[1]
    assert torch.__version__ in cpu.text
    if not torch.cuda.is_available():
        assert gpu.text.startswith("Not timed: the study ran where there is no CUDA device.")


def test_a_gpu_adds_its_tasks_to_a_study_begun_without(tmp_path, monkeypatch):
    names = {}
    for cuda in (False, True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        study = inference_time.make(quick=True)
        names[cuda] = [task.name for task in study.tasks]
        StudyFolder(tmp_path).begin(study)
    assert names == {False: ["cpu-1", "cpu-64"], True: ["cpu-1", "cpu-64", "cuda-1", "cuda-64"]}
    assert [task.name for task in StudyFolder(tmp_path).tasks()] == names[True]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_missing(inference_time.make(quick=True))


def test_full_sizes_have_the_papers_sweeps():
    rows = inference_time.make().measures[0].settings["rows"]
    assert [row["options"]["memory_size"] for row in rows if row["memory"] == "gru"] == [256, 512, 1024, 2048]
    assert 128 in [row["options"]["memory_size"] for row in rows if row["memory"] == "shm"]


def test_the_number_of_threads_is_put_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        inference_time.steps([{"memory": "none", "options": {}}], 1, "cpu", 1, 0.01)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
