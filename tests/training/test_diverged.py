"""Runs that diverge or get worse: what is kept, and how they go on from there."""

import contextlib
import json
import math

import pytest
import torch

import hadamem as hm
from hadamem.memory import MEMORIES
from hadamem.runs import checkpoint
from hadamem.training.best import Best, Candidate, read_score
from hadamem.training.loop import train
from hadamem.training.run import open_run
from hadamem.training.session import Diverged
from hadamem.training.trainer import Trainer

from .test_loop import Poisoned, after, assert_same_runs, info, newest, settings

HUGE = {"learning_rate": 1e30, "max_grad_norm": None, "max_skipped": 8}


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def weights(found):
    return {name: x for name, x in found.tensors.items() if name.startswith("agent.network.") and x.is_floating_point()}


def spoil(path):
    """Make a weight of a checkpoint infinite, with a checksum that fits."""
    found = checkpoint.read(path)
    name = sorted(name for name in weights(found) if name.endswith(".weight"))[0]      # buffers may be infinite
    found.tensors[name].view(-1)[0] = math.inf
    about = {key: x for key, x in found.about.items() if key not in ("tensors", "sealed", "format")}
    checkpoint.write(path, found.tensors, about)


@pytest.mark.parametrize("memory", ["shm", "shm-paper", "gru"])
def test_a_diverged_run_lives_on_with_a_lower_rate(tmp_path, memory):
    config = settings(40, memory=memory, checkpoint_every=0.0, **HUGE)
    with pytest.raises(Diverged, match=r"not finite.*Try a lower learning_rate"):
        train(config, tmp_path / "run")
    assert info(tmp_path / "run")["diverged"] is True
    for path in (tmp_path / "run" / "checkpoints").glob("0*"):
        assert all(torch.isfinite(x).all() for x in weights(checkpoint.read(path)).values())
    said = []
    run = train(settings(40, memory=memory, checkpoint_every=0.0, **{**HUGE, "learning_rate": 1e-3}), tmp_path / "run", resume=True,
                notify=said.append)
    assert run.status == "finished"
    assert any("from the best checkpoint of iteration" in text for text in said)
    assert sum(row["skipped"] for row in run.metrics) == 0
    found = info(tmp_path / "run")
    assert "diverged" not in found
    assert found["resumed"][0]["changed"]["ppo.learning_rate"] == [1e30, 1e-3]
    assert list((tmp_path / "run").glob("metrics.until-*.jsonl"))      # the rows of the way that was given up
    assert hm.load_policy(tmp_path / "run").steps == 40 * 128


def test_weights_that_are_not_finite_are_refused(tmp_path):
    train(settings(4, checkpoint_every=0.0), tmp_path / "run")
    spoil(tmp_path / "run" / "checkpoints" / "00000004")
    with pytest.raises(ValueError, match=r"the weights are not finite \(network.*\): training diverged"):
        hm.load_policy(tmp_path / "run")
    assert hm.load_policy(tmp_path / "run" / "best").steps is not None
    said = []
    train(settings(4, checkpoint_every=0.0), tmp_path / "run", resume=True, notify=said.append)
    assert "skipped a damaged checkpoint" in said[0]
    assert "weights are not finite" in said[0]
    train(settings(4, checkpoint_every=0.0), tmp_path / "whole")
    assert_same_runs(tmp_path / "run", tmp_path / "whole")


def test_the_last_checkpoint_before_trouble_stays(tmp_path, monkeypatch):
    """One of two updates fails from iteration 4 on: checkpoints go on, and the last clean one is kept beside them."""
    class Limps(Poisoned):
        def forward(self, x, state=None, reset=None):
            Poisoned.healthy = 1 if Limps.calls < 6 or Limps.calls % 2 else 0
            Limps.calls += x.shape[1] > 1
            return super().forward(x, state, reset)

    Limps.calls = 0
    monkeypatch.setitem(MEMORIES, "limps", Limps)
    train(settings(8, memory="limps", checkpoint_every=0.0), tmp_path / "run")
    assert [row["skipped"] for row in open_run(tmp_path / "run").metrics] == [0.0] * 3 + [1.0] * 5
    assert names(tmp_path / "run" / "checkpoints") == ["00000003", "00000007", "00000008"]


def test_a_run_goes_back_where_it_is_told_to(tmp_path):
    config = settings(6, checkpoint_every=0.0, keep_checkpoints=3)
    train(config, tmp_path / "run")
    train(config, tmp_path / "same")
    for start in ("5", "best"):
        train(config, tmp_path / "run", resume=start, notify=lambda text: None)
        assert_same_runs(tmp_path / "run", tmp_path / "same")
    assert {"00000006.abandoned", "00000006"} <= set(names(tmp_path / "run" / "checkpoints"))
    with pytest.raises(ValueError, match=r"has no checkpoint '77'; it has: 6, "):
        train(config, tmp_path / "run", resume="77")
    before = set(names(tmp_path / "run" / "checkpoints"))
    train(config, tmp_path / "run", resume=str(int(min(name for name in before if name.isdecimal()))), notify=lambda text: None)
    assert before <= set(names(tmp_path / "run" / "checkpoints"))      # nothing that was given up is lost
    assert_same_runs(tmp_path / "run", tmp_path / "same")


def test_a_changed_rate_is_allowed_and_recorded(tmp_path):
    train(settings(4), tmp_path / "run", should_stop=after(2))
    train(settings(4, learning_rate=1e-4, ent_coef=0.02), tmp_path / "run", resume=True)
    changed = info(tmp_path / "run")["resumed"][0]["changed"]
    assert changed["ppo.learning_rate"][1] == 1e-4
    assert changed["ppo.ent_coef"][1] == 0.02
    assert float(newest(tmp_path / "run").tensors["agent.adam.learning_rate"]) == pytest.approx(0.25 * 1e-4)      # it falls
    with pytest.raises(ValueError, match=r"other settings: ppo.num_minibatches .*only these may change: .*ppo.learning_rate"):
        train(settings(5, num_minibatches=1), tmp_path / "run", resume=True)


# --- the best checkpoint -------------------------------------------------------------------------------------------


def candidate(number):
    return Candidate({"x": torch.tensor(float(number))}, {"iteration": number, "chunks": []})


def test_best_is_judged_by_the_episodes_after_it(tmp_path):
    best = Best(tmp_path / "best")
    for number, returns in enumerate([(1.0, 1.0), (3.0, 3.0), (2.0, 2.0), (9.0,)]):
        best.wait(candidate(number))
        for value in returns:
            best.see({"episodes": 10.0, "return": value}, pytest.fail)
    found = checkpoint.read(tmp_path / "best")
    assert found.about["iteration"] == 1
    assert found.about["best"] == {"by": "return", "score": 3.0, "episodes": 20}
    again = Best(tmp_path / "best")      # another session
    assert again.score == 3.0
    again.wait(candidate(7))
    again.see({"episodes": 5.0, "return": 2.0}, pytest.fail)
    again.end()
    assert read_score(tmp_path / "best", {"by": "return"}) == 3.0
    assert read_score(tmp_path / "best", {"by": "eval_return"}) == -math.inf      # another measure
    best.wait(candidate(8))                               # judges the one that waited with ten episodes
    assert checkpoint.read(tmp_path / "best").about["iteration"] == 3
    best.wait(candidate(9))                               # the one before has seen no episode, and stays first
    for value in (9.0, 10.0):
        best.see({"episodes": 5.0, "return": value}, pytest.fail)
    best.end()                                            # the latest return stands for the last checkpoint
    assert checkpoint.read(tmp_path / "best").about["iteration"] == 9


def test_random_actions_do_not_make_a_checkpoint_the_best(tmp_path):
    """SAC plays at random before it learns."""
    best = Best(tmp_path / "best")
    best.wait(candidate(0))
    best.see({"episodes": 30.0, "return": 9.0, "updates": 0.0}, pytest.fail)
    best.wait(candidate(1))
    best.see({"episodes": 30.0, "return": 1.0, "updates": 4.0}, pytest.fail)
    assert checkpoint.read(tmp_path / "best").about["best"]["score"] == 1.0


def test_an_outlier_does_not_make_a_checkpoint_the_best(tmp_path):
    best = Best(tmp_path / "best")
    best.wait(candidate(0))
    best.see({"episodes": 20.0, "return": 1.0, "return_std": 0.1}, pytest.fail)
    best.wait(candidate(1))
    best.see({"episodes": 10.0, "return": 1.0, "return_std": 0.1, "outliers": 1.0, "outlier_reward": 1e9}, pytest.fail)
    best.see({"episodes": 10.0, "return": 1e8, "return_std": 3e8}, pytest.fail)      # its episode ends
    best.see({"episodes": 1.0, "return": 1e9, "return_std": 0.0}, pytest.fail)
    best.see({"episodes": 10.0, "return": 2.0, "return_std": 0.1}, pytest.fail)
    assert best.score == 1.5
    best.wait(candidate(2))
    best.see({"episodes": 10.0, "return": 1e18}, pytest.fail)      # so large that its deviation is not finite
    best.end()
    assert best.score == 2.0      # the latest one without


def test_rewards_that_have_grown_count(tmp_path):
    best = Best(tmp_path / "best")
    best.wait(candidate(0))
    best.see({"episodes": 20.0, "return": 0.1, "return_std": 0.1}, pytest.fail)
    best.wait(candidate(1))
    best.see({"episodes": 20.0, "return": 1.0, "return_std": 3.0, "outliers": 1.0, "outlier_reward": 10.0}, pytest.fail, lambda: 1.0)
    assert best.score == 0.1
    best.see({"episodes": 20.0, "return": 50.0, "return_std": 10.0}, pytest.fail, lambda: 1000.0)
    assert best.score == 50.0


def test_best_is_judged_by_evaluations(tmp_path):
    config = settings(6, eval_every=256, eval_episodes=8)
    run = train(config, tmp_path / "run")
    about = json.loads((tmp_path / "run" / "best" / "about.json").read_text())
    scores = {row["iteration"]: row["eval_return"] for row in run.metrics if "eval_return" in row}
    assert about["best"]["by"] == "eval_return"
    assert about["best"]["score"] == max(scores.values()) == scores[about["iteration"]]
    assert open_run(tmp_path / "run", best=True).policy.steps == about["env_steps"]


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "rate"), [("shm", 1.0), ("shm", 1e3), ("shm", 1e10), ("shm-paper", 1e3), ("shm-paper", 1e10),
                                              ("gru", 0.1), ("gru", 1.0), ("gru", 1e3), ("gru", 1e10)])
def test_every_wild_rate_can_be_undone(tmp_path, memory, rate):
    """Whether the run fails or only unlearns: from its best checkpoint and with the usual rate it solves the task.

    With smaller rates than these, SHM finds out how to walk, which is better than at first, and stays with that.
    """
    wild = hm.runs.make_config(env="TMaze", memory=memory, total_steps=40_000, device="cpu", log=(), learning_rate=rate, max_grad_norm=None)
    with contextlib.suppress(Diverged):
        assert train(wild, tmp_path / "run").summary()["success"] < 0.9
    calm = hm.runs.make_config(env="TMaze", memory=memory, total_steps=40_000, device="cpu", log=(), max_grad_norm=None)
    run = train(calm, tmp_path / "run", resume="best", notify=lambda text: None)
    assert run.summary()["success"] > 0.9


def test_the_end_of_a_run_is_saved_though_updates_were_skipped(tmp_path, monkeypatch):
    """There were too few of them to count as diverged."""
    iterate = Trainer.iteration

    def iteration(self):
        row = iterate(self)
        return {**row, "skipped": row["updates"]} if self.done else row

    monkeypatch.setattr(Trainer, "iteration", iteration)
    run = train(settings(3, max_skipped=1000), tmp_path / "run")
    assert run.status == "finished"
    assert hm.load_policy(tmp_path / "run").steps == run.metrics[-1]["steps"]
