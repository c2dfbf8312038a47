"""The POPGym tasks beyond the paper's twelve: the same episodes as the popgym package, step by step, and their statistics."""

from __future__ import annotations

import itertools
import math

import gymnasium
import numpy as np
import pytest
import torch
from scipy import stats

from hadamem import envs, random

pytest.importorskip("popgym", reason="popgym is the judge of these tasks: pip install popgym==1.0.7")

STEMS = ("RepeatFirst", "CountRecall", "HigherLower", "MultiarmedBandit", "MineSweeper", "PositionOnlyCartPole", "VelocityOnlyCartpole",
         "NoisyPositionOnlyCartPole", "PositionOnlyPendulum", "NoisyPositionOnlyPendulum")
NAMES = [stem + level for stem in STEMS for level in ("Easy", "Medium", "Hard")]
EPISODES = 20


def make_oracle(name):
    return gymnasium.make(f"popgym-{name}-v0").unwrapped


class OurLuck:
    """A generator that gives popgym the numbers that our stream drew for env i at this step."""

    def __init__(self, env, i):
        self.env, self.i = env, i

    def random(self):
        return float(random.uniform(self.env.counter()[self.i]))

    def normal(self, mean, sigma):
        slots = torch.arange(32, 34)
        return mean + sigma * random.normal(self.env.counter()[self.i] + slots).numpy().astype(np.float64)


def layout_of(oracle, name):
    """What was drawn at random for the oracle's episode, as a layout of ours."""
    if name.startswith("CountRecall"):
        return {"deck": oracle.deck_idx_type[oracle.value_deck.idx[::-1]], "queries": oracle.deck_idx_type[oracle.query_deck.idx[::-1]]}
    if name.startswith("MultiarmedBandit"):
        return {"payouts": oracle.bandits}
    if name.startswith("MineSweeper"):
        return {"mines": oracle.hidden_grid == 1}
    if hasattr(oracle, "deck"):
        return {"deck": (oracle.deck.ranks_idx if name.startswith("Higher") else oracle.deck.suits_idx)[oracle.deck.idx[::-1]]}
    return {"state": oracle.state}


def random_actions(space, n, rng):
    if isinstance(space, gymnasium.spaces.Box):
        return rng.uniform(1.2 * space.low, 1.2 * space.high, size=(n, *space.shape)).astype(np.float32)
    return rng.integers(space.nvec if hasattr(space, "nvec") else space.n, size=(n, *space.shape))


def compare(name, play, seed=1000, n=EPISODES):
    """Play n episodes in one batch, next to the oracle; the return of each. `play(env, obs, t)` gives the actions."""
    oracles = [make_oracle(name) for _ in range(n)]
    first = [oracle.reset(seed=seed + i)[0] for i, oracle in enumerate(oracles)]
    layouts = [layout_of(oracle, name) for oracle in oracles]
    env = envs.make(f"popgym/{name}", num_envs=n, autoreset_mode="disabled", validate=True)
    obs, _ = env.reset(seed=0, options={"layout": {key: np.stack([layout[key] for layout in layouts]) for key in layouts[0]}})
    for i, oracle in enumerate(oracles):
        oracle.np_random = OurLuck(env, i)
    if name.startswith("Noisy"):
        high = oracles[0].observation_space.high
        clear = np.stack([[np.cos(o.state[0]), np.sin(o.state[0])] if "Pend" in name else o.state[::2] for o in oracles])
        noise = np.stack([o.np_random.normal(0, o.noise_sigma) for o in oracles])
        first = np.clip(clear + noise, -high, high)
    same(obs, first, range(n))
    alive, returns = set(range(n)), np.zeros(n)
    for t in itertools.count():
        action = play(env, obs, t)
        obs, reward, terminated, truncated, _ = env.step(action)
        wants = {i: oracles[i].step(action[i] if action[i].ndim else int(action[i])) for i in alive}
        same(obs, [wants[i][0] for i in wants], wants)
        for i, (_, want, over, cut, _) in wants.items():
            assert abs(float(reward[i]) - want) <= 1e-6, (name, i, t)
            assert (bool(terminated[i]), bool(truncated[i])) == (bool(over), bool(cut)), (name, i, t)
            returns[i] += want
            if over or cut:
                alive.discard(i)
        if not alive:
            assert t < env.episode_steps
            return returns


def same(obs, want, index):
    got, want = obs[list(index)].numpy(), np.array(want)
    if np.issubdtype(got.dtype, np.floating):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", NAMES)
def test_random_play_is_identical(name):
    rng = np.random.default_rng(7)
    compare(name, lambda env, obs, t: random_actions(env.single_action_space, EPISODES, rng))


@pytest.mark.parametrize("name", NAMES)
def test_spaces_are_the_same(name):
    env, oracle = envs.make(f"popgym/{name}"), make_oracle(name)
    assert env.single_action_space == oracle.action_space
    assert env.single_observation_space == oracle.observation_space
    assert env.episode_steps == getattr(oracle, "max_episode_length", env.episode_steps)


@pytest.mark.parametrize("name", NAMES)
def test_random_policy_has_the_same_mean_return(name):
    """Our own layouts against the oracle's: means within three standard errors of their difference."""
    rng, n, limit = np.random.default_rng(1), 500, make_oracle(name).action_space
    env = envs.make(f"popgym/{name}", num_envs=n, seed=1)
    env.reset()
    ours, playing = torch.zeros(n), torch.ones(n, dtype=torch.bool)
    for _ in range(env.episode_steps):
        _, reward, terminated, truncated, _ = env.step(random_actions(limit, n, rng))
        ours += reward * playing
        playing &= ~(terminated | truncated)
        if not playing.any():
            break
    oracle, theirs = make_oracle(name), []
    short = "pole" in name.lower() or name.startswith("MineSweeper")
    for i in range(200 if short else max(60, 6000 // env.episode_steps)):
        oracle.reset(seed=i)
        total, over = 0.0, False
        while not over:
            action = random_actions(limit, 1, rng)[0]
            _, reward, terminated, truncated, _ = oracle.step(action if action.ndim else int(action))
            total, over = total + float(reward), terminated or truncated
        theirs.append(total)
    error = math.hypot(float(ours.std()) / math.sqrt(n), np.std(theirs) / math.sqrt(len(theirs)))
    assert abs(float(ours.mean()) - np.mean(theirs)) <= 3 * error


# --- scripted players ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["Easy", "Medium", "Hard"])
def test_players_with_a_perfect_memory_get_the_best_return(level):
    """They see observations only."""
    seen = []

    def first(env, obs, t):
        seen.append(obs.numpy())
        return seen[0]

    counts = []

    def count(env, obs, t):
        counts.append(obs[:, 0].numpy())
        return (np.stack(counts) == obs[:, 1].numpy()).sum(0)

    np.testing.assert_allclose(compare(f"RepeatFirst{level}", first, n=5), 1.0, atol=1e-6)
    np.testing.assert_allclose(compare(f"CountRecall{level}", count, n=5), 1.0, atol=1e-6)


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith(("PositionOnlyCartPole", "VelocityOnly"))])
def test_a_pole_is_balanced_from_half_of_the_state(name):
    """A linear controller that recovers the other half by differences or sums."""
    seen = []

    def balance(env, obs, t):
        seen.append(obs.numpy().astype(float))
        now, before = seen[-1], seen[max(t - 1, 0)]
        if "Position" in name:
            position, velocity = now, (now - before) / 0.02
        else:
            velocity = now if t else 0 * now
            position = seen[0] + 0.02 * sum(seen[1:-1], 0 * now)
        push = 0.3 * position[:, 0] + 0.6 * velocity[:, 0] + 8 * position[:, 1] + 1.5 * velocity[:, 1]
        return (push > 0).astype(np.int64)

    np.testing.assert_allclose(compare(name, balance, n=5), 1.0, atol=1e-6)


@pytest.mark.parametrize("level", ["Easy", "Medium", "Hard"])
def test_a_player_who_knows_the_mines_clears_the_board_and_pays_for_looking_twice(level):
    def clear(env, obs, t):
        free = (~env.mines & ~env.seen).float()
        free[:, 0] += 0.5 * ~env.mines[:, 0]                     # when done: somewhere safe
        if t == 3:
            free = env.seen.float()                              # one wasted look
        cell = free.argmax(1)
        return torch.stack((cell // env.size, cell % env.size), 1).numpy()

    steps = {"Easy": 14, "Medium": 30, "Hard": 54}[level]
    np.testing.assert_allclose(compare(f"MineSweeper{level}", clear), 1 - 1 / steps - 0.5 / (steps - 2), atol=1e-6)


def test_counting_cards_helps_in_higher_lower():
    left = np.full((EPISODES, 13), 4)

    def bet(env, obs, t):
        card = obs.numpy()
        left[np.arange(EPISODES), card] -= 1
        higher = (left * (np.arange(13) > card[:, None])).sum(1)
        lower = (left * (np.arange(13) < card[:, None])).sum(1)
        return (lower > higher).astype(np.int64)

    assert compare("HigherLowerEasy", bet).mean() > 0.4


# --- random draws --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("episode", [0, 1])
def test_every_set_of_mines_is_equally_likely(episode):
    env = envs.make("popgym/MineSweeperEasy", num_envs=12000, seed=4, size=3, num_mines=3)
    env.reset()
    if episode:
        env.reset(options={"reset_mask": torch.ones(12000, dtype=torch.bool)})
    codes = (env.mines.long() << torch.arange(9)).sum(1)
    counts = torch.bincount(codes, minlength=512).numpy()
    sets = np.array([bin(code).count("1") == 3 for code in range(512)])
    assert counts[~sets].sum() == 0
    assert stats.chisquare(counts[sets]).pvalue > 1e-3


def test_payouts_are_uniform_and_arms_pay_by_them():
    n = 4000
    env = envs.make("popgym/MultiarmedBanditEasy", num_envs=n, seed=4)
    env.reset()
    assert stats.kstest(env.payouts.flatten().numpy(), "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(env.payouts.numpy().T) - np.eye(10)).max() < 5 / math.sqrt(n)
    payouts, paid = env.payouts[:, 3].double(), torch.zeros(n, dtype=torch.float64)
    for _ in range(100):
        paid += env.step(torch.full((n,), 3))[0]
    z = (paid - 100 * payouts) / (100 * payouts * (1 - payouts)).sqrt()
    inner = (payouts > 0.1) & (payouts < 0.9)
    assert abs(z[inner].mean()) < 4 / math.sqrt(n)
    assert abs(z[inner].std() - 1) < 0.1


@pytest.mark.parametrize("name", ["CountRecallEasy", "CountRecallHard"])
def test_cards_and_queries_are_shuffled_independently(name):
    n = 3000
    env = envs.make(f"popgym/{name}", num_envs=n, seed=5)
    kinds = int(env.single_observation_space.nvec[0])
    for _ in range(2):                                           # the second time decks were used before
        obs, _ = env.reset()
        for _ in range(env.episode_steps // 4):
            obs, *_ = env.step(torch.zeros(n, dtype=torch.int64))
        table = torch.bincount(obs[:, 0] * kinds + obs[:, 1], minlength=kinds**2).reshape(kinds, kinds).numpy()
        assert stats.chi2_contingency(table).pvalue > 1e-3
        assert stats.chisquare(table.sum(0)).pvalue > 1e-3
        assert stats.chisquare(table.sum(1)).pvalue > 1e-3


@pytest.mark.parametrize(("name", "spread"), [("PositionOnlyCartPoleEasy", [0.05] * 4), ("PositionOnlyPendulumEasy", [math.pi, 1.0])])
def test_starts_are_uniform(name, spread):
    env = envs.make(f"popgym/{name}", num_envs=100_000, seed=6)
    env.reset()
    for values, bound in zip(env.state.T.numpy(), spread, strict=True):
        assert stats.kstest((values / bound + 1) / 2, "uniform").pvalue > 1e-3


def test_noise_is_normal_new_at_each_step_and_the_same_when_observed_again():
    env = envs.make("popgym/NoisyPositionOnlyCartPoleEasy", num_envs=4000, seed=7, noise=0.01)
    obs, _ = env.reset()
    assert torch.equal(obs, env.observe())
    first = (obs - env.state[:, ::2]).flatten().numpy()
    obs, *_ = env.step(torch.ones(4000, dtype=torch.int64))
    second = (obs - env.state[:, ::2]).flatten().numpy()
    for noise in (first, second):
        assert stats.kstest(noise / 0.01, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / math.sqrt(len(first))


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "options", "words"), [
    ("RepeatFirstEasy", dict(num_decks=0), "num_decks must be at least 1"),
    ("CountRecallEasy", dict(kind="jokers"), "unknown kind of card"),
    ("HigherLowerEasy", dict(num_decks=-1), "num_decks must be at least 1"),
    ("MultiarmedBanditEasy", dict(num_arms=0), "num_arms must be at least 1"),
    ("MultiarmedBanditEasy", dict(steps=0), "steps must be at least 1"),
    ("MineSweeperEasy", dict(num_mines=14), "must leave three cells"),
    ("MineSweeperEasy", dict(size=0), "size must be at least 1"),
    ("PositionOnlyCartPoleEasy", dict(steps=0), "steps must be at least 1"),
    ("PositionOnlyCartPoleEasy", dict(shows="all"), "shows must be"),
    ("NoisyPositionOnlyPendulumEasy", dict(noise=-0.1), "noise must be at least 0"),
])
def test_impossible_parameters(name, options, words):
    with pytest.raises(ValueError, match=words):
        envs.make(f"popgym/{name}", **options)


@pytest.mark.parametrize(("name", "layout", "words"), [
    ("CountRecallEasy", dict(deck=np.zeros((2, 52))), "both"),
    ("CountRecallEasy", dict(deck=np.tile([0, 1], (2, 26)), queries=np.zeros((2, 50))), "queries"),
    ("MultiarmedBanditEasy", dict(payouts=np.zeros((2, 9))), r"must be \[2, 10\]"),
    ("MineSweeperEasy", dict(mines=np.zeros((2, 4, 4))), "must have 2 mines"),
    ("PositionOnlyPendulumEasy", dict(state=np.zeros((2, 4))), r"must be \[2, 2\]"),
])
def test_impossible_layouts(name, layout, words):
    with pytest.raises(ValueError, match=words):
        envs.make(f"popgym/{name}", num_envs=2).reset(seed=0, options={"layout": layout})
