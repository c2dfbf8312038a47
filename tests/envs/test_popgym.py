"""The twelve POPGym tasks of the paper: the same episodes as the popgym package, step by step, and their statistics."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats

import popgym_players  # of benchmarks/
from hadamem import envs

popgym = pytest.importorskip("popgym", reason="popgym is the judge of these tasks: pip install popgym==1.0.7")

from popgym.envs.autoencode import AutoencodeEasy, AutoencodeHard, AutoencodeMedium  # noqa: E402
from popgym.envs.battleship import BattleshipEasy, BattleshipHard, BattleshipMedium  # noqa: E402
from popgym.envs.concentration import ConcentrationEasy, ConcentrationHard, ConcentrationMedium  # noqa: E402
from popgym.envs.repeat_previous import RepeatPreviousEasy, RepeatPreviousHard, RepeatPreviousMedium  # noqa: E402

ORACLES = {cls.__name__: cls for cls in (
    AutoencodeEasy, AutoencodeMedium, AutoencodeHard, BattleshipEasy, BattleshipMedium, BattleshipHard,
    ConcentrationEasy, ConcentrationMedium, ConcentrationHard, RepeatPreviousEasy, RepeatPreviousMedium, RepeatPreviousHard)}
EPISODES = 200


def family(name):
    return next(f for f in ("Autoencode", "Battleship", "Concentration", "RepeatPrevious") if name.startswith(f))


def layout_of(oracle, name):
    """What was drawn at random for the oracle's episode, as a layout of ours."""
    if family(name) == "Battleship":
        return "board", oracle.board
    if family(name) == "Concentration":
        return "deck", oracle.deck_idx_type[oracle.deck.idx]
    return "deck", oracle.deck.suits_idx[oracle.deck.idx[::-1]]


class RandomPlayer:
    """Random actions; in Concentration mostly from a few places, so that pairs, repeats and face-up cards all occur."""

    def __init__(self, env, seed):
        self.env, self.rng = env, np.random.default_rng(seed)

    def act(self, t, obs):
        n, space = self.env.num_envs, self.env.single_action_space
        if hasattr(space, "nvec"):
            return self.rng.integers(space.nvec, size=(n, 2))
        if space.n > 4 and t % 3:
            return self.rng.integers(8, size=n)
        return self.rng.integers(space.n, size=n)


class CheatingPlayer:
    """Perfect play in Battleship takes luck, so this player looks at the board."""

    def __init__(self, env):
        self.env = env

    def act(self, t, obs):
        return np.array([self.next_cell(i) for i in range(self.env.num_envs)])

    def next_cell(self, i):
        cells = (self.env.board[i, :-1] & ~self.env.shot[i]).nonzero()[:, 0]
        return divmod(int(cells[0]) if len(cells) else 0, self.env.board_size)


def compare(name, make_player, seed):
    """Play EPISODES episodes in one batch, next to the oracle; the return of each."""
    oracles = [ORACLES[name]() for _ in range(EPISODES)]
    first = [o.reset(seed=seed + i)[0] for i, o in enumerate(oracles)]
    key = layout_of(oracles[0], name)[0]
    env = envs.make(f"popgym/{name}", num_envs=EPISODES, autoreset_mode="disabled", validate=True)
    obs, _ = env.reset(seed=0, options={"layout": {key: np.stack([layout_of(o, name)[1] for o in oracles])}})
    player = make_player(env)
    same(obs, first, range(EPISODES))
    alive, returns, t = set(range(EPISODES)), np.zeros(EPISODES), 0
    while alive:
        action = player.act(t, obs)
        obs, reward, terminated, truncated, _ = env.step(action)
        results = {i: oracles[i].step(action[i].tolist()) for i in alive}
        same(obs, [results[i][0] for i in results], results)
        for i, (_, want, over, cut, _) in results.items():
            assert abs(float(reward[i]) - want) <= 1e-6, (name, i, t)
            assert (bool(terminated[i]), bool(truncated[i])) == (bool(over), bool(cut)), (name, i, t)
            returns[i] += want
            if over or cut:
                alive.discard(i)
        t += 1
    assert t <= env.episode_steps
    return returns


def same(obs, want, index):
    index = list(index)
    if isinstance(obs, tuple):
        for part, values in zip(obs, zip(*want, strict=True), strict=True):
            np.testing.assert_array_equal(part[index].numpy(), np.array(values))
    else:
        np.testing.assert_array_equal(obs[index].numpy(), np.array(want))


@pytest.mark.parametrize("name", ORACLES)
def test_random_play_is_identical(name):
    compare(name, lambda env: RandomPlayer(env, seed=7), seed=1000)


@pytest.mark.parametrize("name", ORACLES)
def test_perfect_play_is_identical_and_reaches_the_best_return(name):
    def player(env):
        return CheatingPlayer(env) if family(name) == "Battleship" else popgym_players.make_player("perfect memory", env, name)

    returns = compare(name, player, seed=5000)
    if family(name) == "Concentration":      # even a perfect memory must turn every card once
        assert returns.mean() > 0.3
    else:
        np.testing.assert_allclose(returns, 1.0, atol=1e-6)


@pytest.mark.parametrize("name", [n for n in ORACLES if n.startswith("Concentration")])
def test_a_player_who_knows_the_cards_clears_concentration(name):
    """With luck at every turn the return is 1, the upper bound."""
    env = envs.make(f"popgym/{name}", num_envs=20, seed=3)
    env.reset()
    order = torch.sort(env.deck.long(), dim=1, stable=True).indices       # classes have an even number of cards: neighbours are pairs
    total = torch.zeros(20)
    for t in range(env.num_cards):
        _, reward, terminated, truncated, _ = env.step(order[:, t])
        total += reward
        assert bool(terminated.all()) == (t == env.num_cards - 1)
        assert not truncated.any()
    torch.testing.assert_close(total, torch.ones(20))


@pytest.mark.parametrize("player", popgym_players.PLAYERS)
@pytest.mark.parametrize("name", ["AutoencodeEasy", "BattleshipEasy", "ConcentrationEasy", "RepeatPreviousEasy"])
def test_players_reach_what_was_recorded(name, player):
    found = popgym_players.play(name, player, 300)
    recorded = json.loads(popgym_players.OUT.read_text(encoding="utf-8"))["returns"][name][player]
    assert abs(found.mean() - recorded["mean"]) <= 4 * math.hypot(recorded["error"], found.std() / math.sqrt(300)) + 1e-6


def test_a_hunter_shoots_no_cell_twice():
    env = envs.make("popgym/BattleshipMedium", num_envs=20, seed=1, autoreset_mode="disabled")
    obs, _ = env.reset()
    player, before = popgym_players.HuntPlayer(env), np.zeros((20, 100), bool)
    over = np.zeros(20, bool)
    for t in range(100):
        action = player.act(t, obs)
        cell = action[:, 0] * 10 + action[:, 1]
        assert not before[np.arange(20), cell][~over].any()
        before[np.arange(20), cell] = True
        obs, _, terminated, truncated, _ = env.step(action)
        over |= (terminated | truncated).numpy()
    assert over.all()


@pytest.mark.parametrize("name", ORACLES)
def test_random_policy_has_the_same_mean_return(name):
    """Our own layouts against the oracle's: means within three standard errors of their difference."""
    n = 400
    env = envs.make(f"popgym/{name}", num_envs=2000, seed=1)
    env.reset()
    rng, ours, total = np.random.default_rng(0), [], torch.zeros(2000)
    for _ in range(2 * env.episode_steps):
        action = rng.integers(choices(env.single_action_space), size=(2000, *env.single_action_space.shape))
        _, reward, terminated, truncated, _ = env.step(action)
        total += reward
        done = terminated | truncated
        ours += total[done].tolist()
        total[done] = 0
    oracle, theirs = ORACLES[name](), []
    for i in range(n if oracle_is_quick(name) else n // 4):
        oracle.reset(seed=i)
        total, over = 0.0, False
        while not over:
            action = np.asarray(rng.integers(choices(oracle.action_space), size=oracle.action_space.shape))
            _, reward, terminated, truncated, _ = oracle.step(action if action.ndim else int(action))
            total, over = total + reward, terminated or truncated
        theirs.append(total)
    error = math.hypot(np.std(ours) / math.sqrt(len(ours)), np.std(theirs) / math.sqrt(len(theirs)))
    assert abs(np.mean(ours) - np.mean(theirs)) <= 3 * error


def choices(space):
    return space.nvec if hasattr(space, "nvec") else space.n


def oracle_is_quick(name):
    return not name.startswith("Concentration")


@pytest.mark.parametrize("name", ORACLES)
def test_spaces_are_the_same(name):
    env, oracle = envs.make(f"popgym/{name}"), ORACLES[name]()
    assert env.single_action_space == oracle.action_space
    ours, theirs = env.single_observation_space, oracle.observation_space
    if family(name) == "Concentration":      # ours has dtype uint8
        np.testing.assert_array_equal(ours.nvec, theirs.nvec)
    else:
        assert ours == theirs


# --- layouts -------------------------------------------------------------------------------------------------------


def chi_square(counts, expected=None):
    return stats.chisquare(counts, expected).pvalue


@pytest.mark.parametrize("name", ["RepeatPreviousEasy", "ConcentrationHard"])
@pytest.mark.parametrize("episode", [0, 2])
def test_every_card_is_equally_likely_at_every_place(name, episode):
    """In first episodes (all swaps in reset) and in later ones (one swap per step)."""
    n = 6000
    env = envs.make(f"popgym/{name}", num_envs=n, seed=11)
    env.reset()
    for _ in range(episode):
        for t in range(env.episode_steps):
            env.step(torch.full((n,), t % 2))
    if name == "RepeatPreviousEasy":
        for _ in range(env.episode_steps - 1):
            env.step(torch.zeros(n, dtype=torch.int64))
    deck, kinds = env.deck.long(), int(env.deck.max()) + 1
    assert torch.equal(deck.sort(1).values, deck[:1].sort(1).values.expand_as(deck))       # a permutation of the deck
    counts = torch.zeros(52, kinds).scatter_add_(1, deck.T, torch.ones(52, n)).numpy()
    p = [chi_square(c) for c in counts]
    assert stats.kstest(p, "uniform").pvalue > 1e-3
    assert min(p) > 1e-5
    pairs = torch.bincount(deck[:, 3] * kinds + deck[:, 40], minlength=kinds * kinds).numpy()
    per = 52 / kinds
    expected = np.where(np.eye(kinds), per * (per - 1), per * per).ravel() / (52 * 51) * n
    assert chi_square(pairs, expected) > 1e-3


@pytest.mark.parametrize("episode", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_ships_are_placed_by_the_rules(episode):
    """Small boards, compared with a plain loop that draws until a ship fits."""
    n, size, ships = 20000, 4, (2, 3)
    env = envs.make("popgym/BattleshipEasy", num_envs=n, board_size=size, ship_sizes=ships, seed=2)
    env.reset()
    for _ in range(episode * size * size):
        env.step(torch.zeros(n, 2, dtype=torch.int64))
    boards = env.board[:, :-1].long()
    assert (boards.sum(1) == 5).all()
    rng = np.random.default_rng(0)
    want: dict[int, int] = {}
    for _ in range(n):
        board = np.zeros((size, size), int)
        for length in ships:
            while True:
                start, (axis, sign) = rng.integers(size, size=2), rng.integers(2, size=2)
                cells = [tuple(start + (1 - 2 * sign) * i * np.eye(2, dtype=int)[axis]) for i in range(length)]
                if all(0 <= x < size for c in cells for x in c) and not any(board[c] for c in cells):
                    break
            for c in cells:
                board[c] = 1
        code = int((board.ravel() << np.arange(16)).sum())
        want[code] = want.get(code, 0) + 1
    codes = (boards << torch.arange(16)).sum(1).tolist()
    got: dict[int, int] = {}
    for code in codes:
        got[code] = got.get(code, 0) + 1
    assert set(got) == set(want)
    table = np.array([[got[c], want[c]] for c in sorted(want)])
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_boards_of_one_long_ship_are_never_empty():
    """A perfect player leaves little time to build the next board."""
    n = 4000
    env = envs.make("popgym/BattleshipEasy", num_envs=n, board_size=5, ship_sizes=[5], seed=0)
    env.reset()
    for _ in range(20):
        cell = (env.board[:, :-1] & ~env.shot).int().argmax(1)
        env.step(torch.stack((cell // 5, cell % 5), 1))
        assert (env.board[:, :-1].sum(1) == 5).all()


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "options", "words"), [
    ("RepeatPreviousEasy", dict(k=52), "k must be smaller than the deck"),
    ("RepeatPreviousEasy", dict(k=0), "k must be at least 1"),
    ("AutoencodeEasy", dict(num_decks=0), "num_decks must be at least 1"),
    ("BattleshipEasy", dict(board_size=3, ship_sizes=[4]), "may not fit"),
    ("BattleshipEasy", dict(board_size=1, ship_sizes=[1]), "leave water"),
    ("ConcentrationEasy", dict(kind="suits"), "'colors' or 'ranks'"),
])
def test_impossible_parameters(name, options, words):
    with pytest.raises(ValueError, match=words):
        envs.make(f"popgym/{name}", **options)
