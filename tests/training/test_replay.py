"""A replay gives back what was recorded: steps, features, memory states; and says what does not fit."""

import itertools
import math

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import hadamem as hm
from hadamem import states
from hadamem.agents import ReplaySpec
from hadamem.envs import trees
from hadamem.runs.config import make_config
from hadamem.training import replay as replays
from hadamem.training.trainer import Trainer

N, T, SLOTS = 3, 4, 5
LENGTHS = [1, 2, 7, 3, 12, 4, 1, 1, 5]
SMALL = {"agent": "sac-discrete", "num_envs": N, "num_steps": T, "device": "cpu", "memory": "gru", "memory_size": 4,
         "memory_output_size": 4, "hidden_sizes": (8,), "obs_embedding": 4, "action_embedding": 3, "reward_embedding": 2, "batch_size": 4,
         "replay_size": N * T * SLOTS, "learning_starts": 10**6, "previous_reward": True, "workers": 0, "log": ()}


class Walk(gymnasium.Env):
    """Episodes of many lengths that end in both ways. Every observation is another one. `bad`: the step whose reward or observation is
    not finite."""

    made = 0

    def __init__(self, bad=None, what="reward"):
        self.number, self.bad, self.what, self.steps, self.episode = Walk.made, bad, what, 0, 0
        Walk.made += 1
        self.observation_space = spaces.Dict({"x": spaces.Box(-np.inf, np.inf, (2,), np.float32),
                                              "pixels": spaces.Box(0, 255, (3,), np.uint8)})
        self.action_space = spaces.Discrete(3, start=2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.length = 0, LENGTHS[(self.episode + self.number) % len(LENGTHS)]
        self.episode += 1
        return self.obs(), {"action_mask": self.mask()}

    def step(self, action):
        self.t += 1
        self.steps += 1
        over, ill = self.t == self.length, self.steps == self.bad
        reward = float("inf") if ill and self.what == "reward" else self.steps + 0.25 * int(action) + self.number / 8
        return self.obs(ill and self.what == "obs"), reward, over and self.episode % 2 == 0, over and self.episode % 2 == 1, {
            "action_mask": self.mask()}

    def obs(self, ill=False):
        x = np.array([self.steps + self.number / 4 + self.episode / 64, np.nan if ill else self.t], np.float32)
        return {"x": x, "pixels": np.array([self.t, self.steps % 256, self.number], np.uint8)}

    def mask(self):
        return np.array([True, self.steps % 2 == 0, self.steps % 3 > 0])


def make(env=Walk, **changes):
    Walk.made = -1                                                               # the first is a probe
    settings = {**SMALL, **changes}
    if isinstance(env, str):
        return Trainer(make_config(env=env, **settings))
    return Trainer(make_config(env="walk", **settings), env)


class History:
    """Runs a trainer and keeps every step: what the collector recorded, and what the networks saw and gave while acting."""

    def __init__(self, trainer):
        self.trainer, self.steps = trainer, []                                   # a dict of [N, ...] for each step
        agent = trainer.agent
        self._wrap(agent.network.body, "actor")
        if agent.network.critic.body is not None:
            self._wrap(agent.network.critic.body, "critic")
        self.seen = {}
        plain = agent.explore

        def explore(features, *rest):
            self.seen["features"] = features.clone()
            acted = plain(features, *rest)
            self.now.append(self.seen)
            self.seen = {}
            return acted

        agent.explore = explore

    def _wrap(self, body, name):
        plain = body.step

        def step(x, state, reset):
            seen, after = plain(x, state, reset)
            self.seen |= {f"{name}.output": seen.memory.clone(), f"{name}.before": states.apply(torch.clone, state)}
            return seen, after

        body.step = step

    def run(self, iterations):
        for _ in range(iterations):
            self.now = []
            self.row = self.trainer.iteration()
            r = self.trainer.collector.rollout
            for t, seen in enumerate(self.now):
                own = {name: getattr(r, name)[:, t].clone() for name in ("first", "action", "reward", "terminal", "done")}
                last = trees.apply(lambda x: x.expand(-1, len(self.now), *x.shape[2:]), r.next_obs)      # whole: there is only one
                self.steps.append({**seen, **own, "mask": None if r.mask is None else r.mask[:, t].clone(),
                                   "next_mask": None if r.mask is None else torch.cat([r.mask, r.next_mask[:, None]], 1)[:, t + 1].clone(),
                                   "obs": trees.apply(lambda x, t=t: x[:, t].clone(), r.obs),
                                   "next_obs": trees.apply(lambda x, t=t: x[:, t].clone(), last)})
        return self

    def entries(self, row):
        """The env, and (step, whether it is the observation after it) of the entries of a sequence, by a slow loop."""
        replay = self.trainer.replay
        env, place = divmod(row, replay.capacity)
        oldest = max(0, len(self.steps) - replay.capacity)
        start = next(g for g in range(oldest, len(self.steps)) if g % replay.capacity == place)
        assert start + replay.length <= len(self.steps)                          # does not cross the write head
        found = []
        for g in range(start, start + replay.length):
            found.append((g, False))
            if bool(self.steps[g]["done"][env]) or g == start + replay.length - 1:
                found.append((g, True))
        return env, found[:replay.length + 1]

    def features_after(self, g, env):
        """Features of the observation after a step, as acting would make them."""
        step, trainer = self.steps[g], self.trainer
        taken = trainer.agent.actions.to_env(step["action"])
        inputs = trainer.inputs(step["next_obs"], taken, torch.zeros(trainer.num_envs, dtype=torch.bool), step["reward"])
        return inputs[env].to(trainer.collector.dtype)


def every_row(replay):
    """All row numbers that `choose` can give, found by asking for many."""
    return sorted(set(replay.choose(200 * len(replay), torch.Generator().manual_seed(0)).tolist()))


def check(history):
    """Every sequence of the replay, entry by entry."""
    replay = history.trainer.replay
    rows = every_row(replay)
    assert len(rows) == len(replay) > 0
    batch = replay.take(torch.tensor(rows))
    features = batch.features()
    L = replay.length
    assert features.shape[:2] == (len(rows), L + 1)
    ends = 0
    for b, row in enumerate(rows):
        env, entries = history.entries(row)
        for i, (g, later) in enumerate(entries):
            step = history.steps[g]
            want = trees.apply(lambda x: x[env], step["next_obs" if later else "obs"])  # noqa: B023
            for got, x in zip(trees.leaves(batch.obs), trees.leaves(want), strict=True):
                assert torch.equal(got[b, i], x)
                assert got.dtype == x.dtype
            assert bool(batch.first[b, i]) == (not later and bool(step["first"][env]))
            expected = history.features_after(g, env) if later else step["features"][env]
            assert torch.equal(features[b, i], expected), (row, i)
            if batch.mask is not None:
                allowed = step["next_mask"][env] | step["done"][env] if later else step["mask"][env]      # after an end, all are
                assert torch.equal(batch.mask[b, i], allowed)
            if i < L:
                assert bool(batch.valid[b, i]) == (not later)
                ends += later
            if i < L and not later:
                assert torch.equal(batch.action[b, i], step["action"][env])
                assert float(batch.reward[b, i]) == float(step["reward"][env])
                assert bool(batch.terminal[b, i]) == bool(step["terminal"][env])
    return ends


# --- samples -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [4, 5, 6, 13])
@pytest.mark.parametrize(("length", "changes"), [(4, {}), (6, {}), (11, {}), (3, {"stored_state": False}),
                                                 (1, {"memory": "none"}), (6, {"memory": "none"}), (11, {"memory": "none"})])
def test_sequences_are_what_was_recorded(length, changes, iterations):
    """Before the ring is full, when it just is, and after it went round; starts at rollouts, or anywhere."""
    history = History(make(sequence_length=length, **changes)).run(iterations)
    replay = history.trainer.replay
    assert (replay.length, replay.whole, replay.capacity) == (length, False, T * SLOTS)
    anywhere = bool(changes)
    assert replay.stride == (1 if anywhere else T)
    filled = min(iterations, SLOTS) * T - (0 if iterations <= SLOTS else 1 if anywhere else T)
    assert len(replay) == N * ((filled - length) // replay.stride + 1)
    ends = check(history)
    assert ends > 0 or length == 1
    assert history.row["bad_steps"] == 0


@pytest.mark.parametrize("iterations", [2, 5, 8])
def test_whole_episodes_are_what_was_recorded(iterations):
    options = {"horizon": 6, "radius": 0.95}
    changes = {"agent": "sac", "num_steps": None, "env_options": options, "replay_size": N * 6 * SLOTS}
    history = History(make("Wind", **changes)).run(iterations)
    replay = history.trainer.replay
    assert (replay.whole, replay.length, len(replay)) == (True, 6, N * min(iterations, SLOTS))
    assert check(history) == 0
    batch = replay.take(torch.tensor(every_row(replay)))
    assert bool(batch.first[:, 0].all())
    assert not bool(batch.first[:, 1:].any())
    assert bool(batch.valid.all())
    assert bool(batch.terminal.any())                                            # the goal, in the middle of episodes
    assert not bool(batch.terminal.all())


def test_goals_are_terminal_inside_windows_without_a_reset():
    options = {"horizon": 6, "radius": 0.95}
    history = History(make("Wind", agent="sac", env_options=options, sequence_length=7)).run(8)
    check(history)
    batch = history.trainer.replay.take(torch.tensor(every_row(history.trainer.replay)))
    follows = batch.terminal[:, :-1] & batch.valid[:, 1:] & batch.valid[:, :-1]
    assert bool(follows.any())
    assert not bool((follows & batch.first[:, 1:-1]).any())


MEMORIES = hm.list_memories()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("memory", MEMORIES)
def test_sequences_replay_to_the_memory_that_acting_had(memory, whole):
    """From the stored state, forward over a sequence gives the outputs of acting, in actor and critics.

    A final observation inside a window is a step for the memory, too. Where rows are drawn at random for every step (shm-paper), those of
    the episodes after it are others; so there the comparison stops.
    """
    size = {} if memory == "none" else {"memory_size": 4}
    changes = {**SMALL, "agent": "sac", "memory": memory, "memory_size": None, "env_options": {"horizon": 6}, **size}
    changes |= {"num_steps": None, "replay_size": N * 6 * SLOTS, "sequence_length": None} if whole else {"sequence_length": 9}
    trainer = make("Wind", **changes)
    assert trainer.replay.whole == whole
    torch.manual_seed(1)
    for p in trainer.network.parameters():                                       # some start at 0
        p.data += 0.1 * torch.randn_like(p)
    history = History(trainer).run(7)
    replay = trainer.replay
    rows = every_row(replay)
    batch = replay.take(torch.tensor(rows))
    bodies = {"actor": trainer.network.body, "critic": trainer.network.critic.body}
    draws = memory == "shm-paper"
    compared = 0
    for name, body in bodies.items():
        state = getattr(batch.state, name)
        with torch.no_grad():
            outputs = body(batch.features(), state, batch.first, batch.whole)[0].memory
        for b, row in enumerate(rows):
            env, entries = history.entries(row)
            if not whole and memory != "none":
                before = history.steps[entries[0][0]][f"{name}.before"]
                assert all(torch.equal(x[b], y[env]) for x, y in zip(states.tensors(state), states.tensors(before), strict=True))
            for i, (g, later) in enumerate(entries):
                if later and draws:
                    break
                if not later and memory == "none" and name == "critic":      # has no step while acting
                    compared += 1
                elif not later:
                    torch.testing.assert_close(outputs[b, i], history.steps[g][f"{name}.output"][env], rtol=1e-4, atol=1e-5)
                    compared += 1
    most = sum(not later for row in rows for _, later in history.entries(row)[1]) * 2
    assert compared == most if not draws or whole else 0 < compared < most


def test_whole_episodes_keep_counters_but_no_other_state():
    options = {"agent": "sac", "num_steps": None, "env_options": {"horizon": 6}, "replay_size": N * 6 * SLOTS}
    kept = {memory: make("Wind", memory=memory, **options).replay.tensors for memory in ("gru", "shm-paper")}
    assert not [name for name in kept["gru"] if name.startswith("state")]
    found = {name: x for name, x in kept["shm-paper"].items() if name.startswith("state")}
    assert [(x.dtype, x.shape) for x in found.values()] == [(torch.int64, (N, SLOTS))] * 2      # clocks of actor and critics
    assert kept["gru"]["next_obs.0"].shape == (N, SLOTS, 2)


def test_sequences_from_anywhere_start_with_a_fresh_memory():
    """DNC's is not all zeros."""
    trainer = make(memory="dnc", memory_size=None, memory_output_size=None, sequence_length=3, stored_state=False)
    fresh = states.tensors(trainer.agent.initial_state(1))
    for _ in range(6):
        trainer.iteration()
    batch = trainer.replay.take(trainer.replay.choose(4, torch.Generator().manual_seed(0)))
    for x, want in zip(states.tensors(batch.state), fresh, strict=True):
        assert torch.equal(x, want.expand_as(x))
    assert any(bool(x.any()) for x in fresh)


def test_sampling_is_uniform():
    for changes, iterations in (({"sequence_length": 6}, 9), ({"sequence_length": 6, "stored_state": False}, 9),
                                ({"sequence_length": 3, "memory": "none"}, 3)):
        trainer = make(**changes)
        for _ in range(iterations):
            trainer.iteration()
        replay = trainer.replay
        each = 400
        rows = replay.choose(each * len(replay), torch.Generator().manual_seed(3))
        _, counts = rows.unique(return_counts=True)
        assert len(counts) == len(replay)
        chi = float(((counts - each) ** 2).sum() / each)                         # its mean is len - 1, its variance twice that
        assert abs(chi - (len(replay) - 1)) < 5 * math.sqrt(2 * len(replay))


# --- what is not finite --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "count"), [("reward", 1), ("obs", 2)])
def test_steps_that_are_not_finite_are_zeroed_and_not_learned_from(what, count):
    """A bad observation makes two steps bad: the one that led to it, and the one from it."""
    trainer = make(env_options={"bad": 6, "what": what}, sequence_length=6)
    rows = [trainer.iteration() for _ in range(4)]
    assert [row["bad_steps"] for row in rows] == [0, *[N * count] * 3]           # in every env, in the second rollout
    replay = trainer.replay
    assert int((~replay.tensors["valid"][:, :16]).sum()) == N * count
    assert not bool(replay.tensors["valid"][:, 5].any())                         # the sixth step
    assert bool(replay.tensors["valid"][:, 6].any()) == (what == "reward")
    assert all(bool(torch.isfinite(x).all()) for x in replay.tensors.values())
    if what == "reward":
        assert not bool(replay.tensors["reward"][:, 5].any())
    batch = replay.take(torch.tensor(every_row(replay)))
    assert bool(torch.isfinite(batch.features()).all())


def test_whole_episodes_with_a_bad_observation():
    trainer = make("Wind", agent="sac", num_steps=None, env_options={"horizon": 6}, replay_size=N * 6 * SLOTS)
    trainer.collector.draw(0)
    trainer.collector.collect()
    rollout, replay = trainer.collector.rollout, trainer.replay
    rollout.obs[0, 3] = math.nan
    rollout.next_obs[1, 0] = math.inf
    replay.add()
    want = torch.ones(N, 6, dtype=torch.bool)
    want[0, 2:4] = want[1, 5] = False
    assert torch.equal(replay.tensors["valid"][:, :6], want)
    assert int(replay.bad) == 3
    assert not bool(replay.tensors["next_obs.0"][1, 0].any())


def test_a_memory_that_is_not_finite_starts_as_zeros():
    trainer = make("Wind", agent="sac", env_options={"horizon": 6}, sequence_length=4)
    states.apply(lambda x: x[1:2].fill_(math.nan), trainer.collector.state)
    trainer.iteration()
    kept = trainer.replay.tensors["state.0"]
    assert bool(torch.isfinite(kept).all())
    assert not bool(kept[1, 0].any())


# --- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("env", "changes"), [(Walk, {"sequence_length": 6}),
                                              ("Wind", {"num_steps": None, "env_options": {"horizon": 6}, "agent": "sac"})])
def test_bytes_are_those_that_are_allocated(env, changes):
    trainer = make(env, **{**changes, "replay_size": N * 6 * SLOTS})
    replay = trainer.replay
    before = {name: x.data_ptr() for name, x in replay.tensors.items()}
    assert replay.nbytes == sum(x.untyped_storage().nbytes() for x in replay.tensors.values())
    for _ in range(2 * SLOTS):
        trainer.iteration()
    assert {name: x.data_ptr() for name, x in replay.tensors.items()} == before      # CUDA graphs refer to them
    if env is Walk:
        assert {replay.tensors["obs.0"].dtype, replay.tensors["obs.1"].dtype} == {torch.uint8, torch.float32}
        assert replay.tensors["next_obs.0"].dtype == replay.tensors["obs.0"].dtype


def test_a_replay_that_does_not_fit_allocates_nothing(monkeypatch):
    trainer = make(sequence_length=6)
    rollout, spec = trainer.collector.rollout, ReplaySpec(N * T * 1000, 6)
    replay = replays.Replay(rollout, spec, None, None)
    monkeypatch.setattr(replays, "free_memory", lambda device: replay.nbytes - 1)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: pytest.fail("allocated"))
    with pytest.raises(ValueError, match=r"a replay of 12,000 steps needs .*, but only .* are free on cpu; lower replay_size to 5,9"):
        replay.allocate()
    assert not replay.tensors
    monkeypatch.undo()
    monkeypatch.setattr(replays, "free_memory", lambda device: replay.nbytes)
    replay.allocate()


@pytest.mark.parametrize(("length", "slots"), [(4, 2), (5, 3), (8, 3)])
def test_the_smallest_replay(length, slots):
    size = slots * N * T
    with pytest.raises(ValueError, match=rf"replay_size must be at least {size} env steps to hold sequences of {length} steps"):
        make(sequence_length=length, replay_size=size - 1)
    history = History(make(sequence_length=length, replay_size=size)).run(slots - 1)
    assert len(history.trainer.replay) >= N
    for _ in range(3):
        check(history.run(1))


# --- chunks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
@pytest.mark.parametrize("iterations", [1, 4, 5, 6, 12, 13])
def test_chunks_restore_the_replay(monkeypatch, chunk, iterations):
    monkeypatch.setattr(replays, "CHUNK", chunk * N * T)
    history = History(make(sequence_length=4)).run(iterations)
    old = history.trainer.replay
    names = old.chunk_names()
    ends = [tuple(map(int, name.split("-"))) for name in names]
    assert ends[0][0] <= max(0, iterations - SLOTS) < ends[0][1]                 # the oldest may be partly overwritten
    assert ends[-1][1] == iterations
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ends))
    assert all(j - i == chunk for i, j in ends[:-1])
    new = make(sequence_length=4).replay
    for x in new.tensors.values():
        x.copy_(torch.ones_like(x))                                              # whatever it held
    new.load_chunks((name, {key: x.clone() for key, x in old.read_chunk(name).items()}) for name in names)
    assert new.added == old.added
    filled = min(iterations, SLOTS)
    for name in old.tensors:
        assert torch.equal(old._by_slot(name)[:, :filled], new._by_slot(name)[:, :filled]), name
    if len(old):
        rows = old.choose(20, torch.Generator().manual_seed(0))
        assert torch.equal(rows, new.choose(20, torch.Generator().manual_seed(0)))
        assert torch.equal(old.take(rows).features(), new.take(rows).features())


def test_a_chunk_that_never_changes_has_one_name(monkeypatch):
    """A name stands for the same tensors for ever, except what the ring has overwritten since."""
    monkeypatch.setattr(replays, "CHUNK", 2 * N * T)
    trainer, seen = make(sequence_length=4, replay_size=N * T * 50), {}
    for _ in range(7):
        trainer.iteration()
        for name in trainer.replay.chunk_names():
            now = trainer.replay.read_chunk(name)
            for key, x in seen.setdefault(name, {key: x.clone() for key, x in now.items()}).items():
                assert torch.equal(x, now[key])


def test_chunks_of_another_env_do_not_fit():
    one, other = make(sequence_length=4), make("Wind", agent="sac", sequence_length=4, env_options={"horizon": 6})
    one.iteration()
    with pytest.raises(ValueError, match=r"chunk 00000000-00000001 of the replay does not fit: .* was it made with another env\?"):
        other.replay.load_chunks((name, one.replay.read_chunk(name)) for name in one.replay.chunk_names())


# --- after a resume ------------------------------------------------------------------------------------------------


def test_a_replay_that_begins_inside_episodes_leaves_out_what_it_cannot_know():
    """After a resume without the replay, the action before its first step is not known."""
    trainer = make(sequence_length=3, stored_state=False)
    trainer.collector.collect()                                                  # a rollout that is not added
    history = History(trainer)
    history.run(2)
    replay = trainer.replay
    assert replay.begins_inside
    assert len(replay) == N * (2 * T - 1 - 3 + 1)
    rows = every_row(replay)
    assert min(row % replay.capacity for row in rows) == 1
    check(history)
    check(history.run(4))


def test_episodes_that_a_resume_cut_off_are_not_joined():
    """A foreign env starts anew: the last step before that is followed by its own next observation, not by the new episode."""
    trainer = make(memory="none", sequence_length=6)
    history = History(trainer).run(1)
    trainer.collector._restart(1)
    history.run(1)
    cut = history.steps[T - 1]
    assert not bool(cut["done"].all())
    cut["done"] = torch.ones_like(cut["done"])
    check(history)
