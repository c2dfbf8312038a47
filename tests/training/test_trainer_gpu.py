"""Training on a real GPU: CUDA graphs change nothing, and every memory trains."""

import pytest
import torch

import hadamem as hm
from hadamem.runs.config import make_config
from hadamem.training.evaluating import Evaluator, GraphedPlay
from hadamem.training.loop import train
from hadamem.training.trainer import Trainer

pytestmark = pytest.mark.gpu
SMALL = {"num_envs": 16, "steps_per_iteration": 16 * 51, "num_epochs": 2, "memory_size": 16, "memory_output_size": 16, "tf32": False}


@pytest.mark.parametrize("memory", hm.list_memories())
@pytest.mark.parametrize(("env", "joint"), [("popgym/RepeatPreviousEasy", "never"), ("popgym/BattleshipEasy", "never"),
                                            ("popgym/BattleshipEasy", "always")])
def test_graphs_give_what_plain_calls_give(memory, env, joint):
    config = make_config("default", env=env, memory=memory, device="cuda", joint_actions=joint, **SMALL)
    plain, graphed = Trainer(config, graphs=False), Trainer(config)
    for _ in range(3):
        a, b = plain.iteration(), graphed.iteration()
        assert a.keys() == b.keys()
        for key in {"return", "loss", "kl", "entropy"} & a.keys():      # no return where no episode ended
            assert b[key] == pytest.approx(a[key], rel=1e-3, abs=1e-4), key
        assert not a["skipped"]
        assert not b["skipped"]
    assert "return" in a


def test_ratio_is_one_before_the_first_update():
    trainer = Trainer(make_config("default", env="popgym/BattleshipEasy", memory="shm-paper", device="cuda", **SMALL))
    trainer.iteration()
    trainer.collector.draw(7)
    trainer.collector.collect()
    r, actions = trainer.collector.rollout, trainer.network.actions
    with torch.no_grad():
        dist = trainer.network(r.features(), r.state, r.first, r.mask).dist
    assert float((actions.log_prob(dist, r.action) - actions.log_prob(r.extras["dist"], r.action)).abs().max()) <= 1e-4


def test_a_restored_state_continues_in_graphs():
    config = make_config("default", env="popgym/RepeatPreviousEasy", memory="shm", device="cuda", **SMALL)
    trainer = Trainer(config)
    trainer.iteration()
    state = trainer.get_state()
    want = trainer.iteration()
    other = Trainer(config)
    other.set_state(state)
    got = other.iteration()
    for key in ("return", "loss", "kl"):
        assert got[key] == pytest.approx(want[key], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("memory", ["shm", "gru"])
def test_evaluations_leave_the_training_alone_and_do_not_wait_for_the_gpu(memory, monkeypatch):
    """Between the first step and the last of an evaluation nothing waits; torch's own check raises if something does."""
    play, steps = GraphedPlay.play, []

    def watched(*args):
        playing = play(*args)
        yield next(playing)                  # resets the envs, which may wait
        while True:
            torch.cuda.set_sync_debug_mode("error")
            try:
                step = next(playing)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            steps.append(step)
            yield step

    monkeypatch.setattr(GraphedPlay, "play", watched)
    rows = []
    for every in (0, 1):
        config = make_config("default", env="popgym/RepeatPreviousEasy", memory=memory, device="cuda", steps=3 * 16 * 51, eval_every=every,
                             eval_episodes=150, log=(), **SMALL)
        rows.append(train(config).metrics)
    assert len(steps) == 3 * 50
    assert [row["eval_episodes"] for row in rows[1]] == [150] * 3
    assert rows[1][0]["return"] == rows[0][0]["return"]
    for name in ("return", "loss", "kl"):
        assert [row[name] for row in rows[1]] == pytest.approx([row[name] for row in rows[0]], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(("agent", "env", "options"), [
    ("ppo", "popgym/RepeatPreviousEasy", {}), ("ppo", "popgym/BattleshipEasy", {}),
    ("sac", "Wind", {"env_options": {"num_train": 5, "num_eval": 5}, "eval_env_options": {"tasks": "eval", "cycle": True}}),
    ("sac-discrete", "VisualMatch", {"env_options": {"preset": "release", "distractor": 10}})])
def test_evaluations_as_graphs_are_those_of_plain_calls(agent, env, options):
    sizes = SMALL if agent == "ppo" else {"num_envs": 4, "memory_size": 16, "memory_output_size": 16, "tf32": False}
    config = make_config("default", agent=agent, env=env, memory="shm", device="cuda", eval_every=1, eval_episodes=7, log=(),
                         **{**sizes, **options})
    trainer = Trainer(config)
    graphed, plain = Evaluator(trainer), Evaluator(trainer)
    assert graphed.graphed is not None
    plain.graphed = None
    for _ in range(3):      # with other parameters each time
        trainer.iteration()
        a, b = graphed.evaluate(), plain.evaluate()
        assert a["eval_length"] == b["eval_length"]
        assert a["eval_return"] == pytest.approx(b["eval_return"], rel=1e-5, abs=1e-6)
    graphed.close()
    plain.close()
