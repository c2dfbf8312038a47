"""The yardsticks of SAC in benchmarks/: the plain update computes what it should, and records of runs can be resumed."""

import dataclasses
import json
import math

import pytest
import torch

import hadamem as hm
import released_sac
from sac_peers import POINTS, curve, read, table, write


def test_the_plain_loop_is_shm():
    torch.manual_seed(0)
    plain = released_sac.SHM(7, 5)
    with torch.no_grad():
        plain.theta.copy_(20 * plain.theta[0])      # all rows alike, so that the random draw does not matter
        plain.value.weight.mul_(100)                # reaches the clamp
    ours = hm.make_memory("shm-release", 7, 5, memory_size=released_sac.H, clip=100.0)
    names = {"theta": "calibration.theta", "v_c.weight": "calibration.vc.weight"}
    ours.load_state_dict({names.get(name, name): value for name, value in plain.state_dict().items()})
    x = torch.randn(60, 3, 7)
    y, M = plain(x)
    torch.testing.assert_close(y, ours(x.transpose(0, 1))[0].transpose(0, 1))
    assert M.abs().max() == 100


@pytest.mark.parametrize("name", ["wind", "point-robot", "visual-match-250"])
def test_updates_lower_the_critic_loss(name):
    case = dataclasses.replace(released_sac.CASES[name], batch=8, steps=6)
    update = released_sac.make(case, torch.device("cpu"))
    losses = [update() for _ in range(60)]
    assert all(math.isfinite(value) for row in losses for value in row.values())
    early, late = (sum(row["critic loss"] for row in part) for part in (losses[:10], losses[-10:]))
    assert late < early
    assert (losses[-1]["alpha"] == released_sac.ALPHA) == case.discrete      # learned for continuous actions only


def test_a_record_keeps_its_runs_one_per_line(tmp_path):
    path = tmp_path / "record.json"
    record = read(path)                                                       # a new one
    run = {"library": "sb3", "task": "Pendulum-v1", "steps": 20, "seed": 0, "return": -150.0, "updates": 10, "update seconds": 2.0,
           "updates per second": 4.0, "seconds": 2.5, "cpu seconds": 2.0}
    record["runs"] = [run, {**run, "seed": 1}]
    write(path, record)
    assert read(path) == record
    lines = [line.strip().rstrip(",") for line in path.read_text().splitlines() if '"seed"' in line]
    assert [json.loads(line) for line in lines] == record["runs"]
    assert "| Pendulum-v1 | 20 | sb3 | -150.0, -150.0 | 4 | 5 | 2 | 2 |" in table(record["runs"])


def test_curve_is_the_mean_return_of_each_part():
    assert curve([(10, 1.0), (11, 2.0), (20, 4.0), (100, 5.0)], 100) == [1.0, 3.0, *[None] * (POINTS - 3), 5.0]
