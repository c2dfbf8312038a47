"""Recorded vectors of the published models: every file on every backend, and the command that checks them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from hadamem import kernels, reference
from hadamem.testing.__main__ import main
from hadamem.testing.golden import _cancelled, check_file, check_golden, read, relative_error

from .conftest import golden_folder

OPS = {**{name: model.op for name, model in reference.MODELS.items()}, "shm_core": "shm", "hmf_core": "hadamard"}
FOLDER = golden_folder("memory")
FILES = sorted(p.name for p in FOLDER.glob("*.npz") if p.name.split("-")[0] in OPS)


def cases() -> list:
    """(file, backend) pairs. Models without an op use no kernel of ours. Triton's interpreter is slow and gets a few files only."""
    pairs = []
    for name in FILES:
        model = name.split("-")[0]
        for backend in ["torch"] if OPS[model] is None else kernels.backends(OPS[model]):
            interpreted = backend == "triton" and not torch.cuda.is_available()
            short = "T17" in name or "clip" in name or model == "hmf_core"
            covers = model in ("shm_core", "hmf_core") or "reset" in name or "clamp" in name
            if not interpreted or (short and covers):
                pairs.append(pytest.param(name, backend, id=f"{name.removesuffix('.npz')}-{backend}"))
    return pairs


@pytest.mark.parametrize(("name", "backend"), cases())
def test_golden_file(name, backend):
    result = check_file(FOLDER / name, backends=None if backend == "torch" else [backend])
    assert result.ok, str(result)


def test_every_model_and_case_is_recorded():
    recorded = {tuple(name.split("-")[:2]) for name in FILES}
    assert {model for model, _ in recorded} == set(OPS)
    for model in set(OPS) - {"s6_shm_repo", "gpt2", "shm_core", "hmf_core"}:      # s6_shm_repo ignores the state; gpt2 has none
        assert recorded >= {(model, case) for case in ("zero", "nonzero", "reset")}
    extras = {"shm_pomdp-nonzero-clamp", "shm_pomdp-reset-clamp", "mlstm-zero-hot", "mlstm-reset-hot", "shm_core-nonzero-clip",
              "shm_core-reset-clip", "hmf_core-plain", "hmf_core-zeros", "gpt2-window8", "gpt2-window64", "gpt2-reset", "s6_shm_repo-zero"}
    assert all(any(name.startswith(extra) for name in FILES) for extra in extras)


# --- the checker itself, on files written here


def write(path, meta, **arrays):
    np.savez(path, meta=np.array(json.dumps(meta)), **arrays)


@pytest.fixture
def folder(tmp_path):
    """A golden folder of two files: a GRU's, recorded here from torch, and evidence of a quirk."""
    twin = torch.nn.GRU(3, 4, batch_first=True).double()
    x, h0 = torch.randn(2, 5, 3).double().requires_grad_(), torch.randn(1, 2, 4).double()
    y, h = twin(x, h0)
    cot = torch.randn_like(y)
    (y * cot).sum().backward()
    arrays = {"x": x, "y": y, "cot": cot, "g.x": x.grad, "state0.h": h0[0], "state1.h": h[0]}
    for name, p in twin.named_parameters():
        arrays |= {f"w.{name}": p, f"g.w.{name}": p.grad}
    meta = {"model": "gru", "variant": "nonzero", "hparams": {"H": 4, "O": 4}}
    recorded = {k: v.detach().numpy() for k, v in arrays.items()}
    write(tmp_path / "gru-nonzero.npz", meta, **recorded, reset=np.zeros((2, 5), bool))
    write(tmp_path / "quirk_mlstm.npz", {"model": "mlstm", "variant": "quirk-wholeseq"}, y=np.zeros(3))
    return tmp_path


def change(path, key, amount):
    data, meta = read(path)
    data[key] = data[key] + amount
    write(path, meta, **data)


def test_command_says_ok(folder, capsys):
    assert main(["golden", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "gru-nonzero" in out
    assert "ok" in out
    assert "evidence only, not compared" in out
    assert "2 golden files: 1 ok, 0 failed, 1 evidence only" in out


@pytest.mark.parametrize("key", ["y", "state1.h", "g.x", "g.w.weight_hh_l0", "w.bias_ih_l0", "state0.h"])
def test_command_notices_a_changed_number(folder, capsys, key):
    change(folder / "gru-nonzero.npz", key, 1e-3 * np.eye(1, 4)[0, :1])
    assert main(["golden", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "FAIL" in out
    assert "1 failed" in out
    if key[0] in "yg" or key.startswith("state1"):
        assert f"{key} on torch float64: relative error" in out


def test_a_gradient_recorded_as_noise_is_compared_as_noise():
    """Terms of size 100 that cancel leave digits which no other computation has; a gradient that is small by itself stays exact."""
    sizes = {"g.w.a": 100.0, "g.w.b": 3e-14, "g.w.c": 1e-9, "g.w.d": 0.0, "g.state0.M": 1e-40}
    data = {key: np.array([size]) for key, size in sizes.items()}
    assert [_cancelled(data, key) for key in data] == [None, 100.0, None, None, None]
    assert relative_error(torch.tensor([-5e-14]), data["g.w.b"], 100.0) < 1e-15
    assert relative_error(torch.tensor([1e-3]), data["g.w.b"], 100.0) > 1e-8


def test_command_notices_a_changed_reset(folder):
    data, meta = read(folder / "gru-nonzero.npz")
    data["reset"][0, 2] = True
    write(folder / "gru-nonzero.npz", meta, **data)
    assert main(["golden", str(folder)]) == 1


def test_unknown_model_fails_unless_left_out(folder, capsys):
    write(folder / "perceptron.npz", {"model": "perceptron", "variant": "zero"}, y=np.zeros(3))
    assert main(["golden", str(folder)]) == 1
    assert "unknown model 'perceptron'; implemented: shm_pomdp" in capsys.readouterr().out
    assert main(["golden", str(folder), "--models", "gru"]) == 0


def test_broken_file_fails_and_the_others_are_checked(folder, capsys):
    (folder / "a-broken.npz").write_bytes(b"not a zip")
    np.savez(folder / "b-no-meta.npz", y=np.zeros(3))
    write(folder / "c-empty.npz", {"model": "gru", "variant": "zero", "hparams": {"H": 4}})
    assert main(["golden", str(folder)]) == 1
    out = capsys.readouterr().out
    assert out.count("FAIL") == 3
    assert "5 golden files: 1 ok, 3 failed, 1 evidence only" in out


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["golden", "no/such/folder"], "golden folder 'no/such/folder' does not exist"),
    (["golden", "EMPTY"], "holds no .npz files"),
    (["golden", "FOLDER", "--models", "gru,dnc"], "no golden file of model dnc in"),
    (["golden", "FOLDER", "--models", ""], "no golden file of model (none given)"),
])
def test_bad_usage_is_one_sentence_and_two(folder, tmp_path_factory, capsys, arguments, sentence):
    places = {"FOLDER": str(folder), "EMPTY": str(tmp_path_factory.mktemp("empty"))}
    assert main([places.get(a, a) for a in arguments]) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["traces"], ["golden"]])
def test_missing_arguments_exit_two(arguments, capsys):
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2


def test_runs_as_a_module(folder):
    command = [sys.executable, "-m", "hadamem.testing", "golden", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "1 ok" in done.stdout) == (0, True)
    shutil.rmtree(folder)
    assert subprocess.run(command, capture_output=True, text=True, timeout=120).returncode == 2


def test_relative_error():
    want = np.array([0.0, 10.0])
    assert relative_error(torch.tensor([0.1, 10.0]), want) == pytest.approx(0.01, rel=1e-6)
    assert relative_error(torch.tensor([0.0, float("nan")]), want) == float("inf")
    assert relative_error(torch.tensor([0.0]), want) == float("inf")
    assert relative_error(torch.tensor([0.5]), np.zeros(1)) == 0.5


def test_results_can_be_used(folder):
    results = check_golden(folder, ["gru"])
    assert [r.ok for r in results] == [True]
    assert {d.key for d in results[0].differences} >= {"y", "state1.h", "g.x", "g.w.bias_hh_l0"}
