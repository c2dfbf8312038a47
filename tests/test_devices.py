"""Devices: what is said about runs that share a GPU."""

import pytest
import torch

from hadamem import devices


@pytest.fixture
def one_gpu(monkeypatch, tmp_path):
    """A machine with one GPU and NVIDIA's tools, as far as `sharing_hint` can tell. Returns the folder of MPS's pipes."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(devices.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    return tmp_path


def test_runs_that_share_a_gpu_are_told_about_mps(one_gpu):
    assert "nvidia-cuda-mps-control -d" in devices.sharing_hint(3)
    assert devices.sharing_hint(1) == ""
    (one_gpu / "control").touch()      # it runs already
    assert devices.sharing_hint(3) == ""


def test_nothing_is_said_without_a_gpu_or_the_tool(one_gpu, monkeypatch):
    monkeypatch.setattr(devices.shutil, "which", lambda name: None)
    assert devices.sharing_hint(3) == ""
    monkeypatch.undo()
    if not torch.cuda.is_available():
        assert devices.sharing_hint(3) == ""
