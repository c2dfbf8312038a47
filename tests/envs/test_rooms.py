"""Visual Match and Key-to-Door: recorded episodes, every rule by hand, random draws, and players that see observations only."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
import torch
from scipy import stats

from hadamem import envs
from hadamem.envs.games.key_to_door import KEYS, PLAYERS, KeyToDoor
from hadamem.envs.games.room_tables import APPLE_CELLS, DISTRACTOR, EXPLORE, ORDERS, REWARD
from hadamem.envs.games.visual_match import RING, VisualMatch
from hadamem.testing import traces

from ..conftest import golden_folder

NORTH, SOUTH, WEST, EAST = range(4)
MARKS = {(228, 148, 109): "+", (25, 25, 25): "#", (204, 204, 204): " ", (159, 81, 44): "k", (134, 206, 235): "d", (140, 178, 0): "a",
         (255, 255, 255): "i", (255, 0, 0): "R", (0, 255, 0): "G", (0, 0, 255): "B"}
CODE = {"R": (255, 0, 0), "G": (0, 255, 0), "B": (0, 0, 255)}
TOO_UNLIKELY = 1e-4


def marks(obs):
    """An observation [75] as five lines of text."""
    pixels = obs.reshape(3, 25).T.tolist()
    text = "".join(MARKS[tuple(p)] for p in pixels)
    return [text[i:i + 5] for i in range(0, 25, 5)]


def colours(text):
    return [CODE[c] for c in text]


def play(env, actions, **layout):
    """Steps of a single env from a layout: the frames as text (T + 1 of them), rewards, ends, infos."""
    obs, _ = env.reset(seed=0, options={"layout": {name: np.array([value]) for name, value in layout.items()}})
    frames, rewards, ends, infos = [marks(obs[0])], [], [], []
    for action in actions:
        obs, reward, terminated, truncated, info = env.step(torch.tensor([action]))
        assert not truncated
        frames.append(marks(obs[0]))
        rewards.append(float(reward))
        ends.append(bool(terminated))
        infos.append(info)
    return frames, rewards, ends, infos


# --- recorded episodes


def groups():
    folder = golden_folder("envs")
    files = sorted(folder.glob("visual_match_*.npz")) + sorted(folder.glob("key_to_door_*.npz"))
    return {name: list(paths) for name, paths in groupby(files, key=lambda p: p.stem.rsplit("_", 1)[0])}


@pytest.mark.parametrize("group", groups())
def test_recorded_episodes_replay_as_a_batch_with_autoreset(group):
    """All episodes of a group at once; the last step shows the end in final_obs and the first frame of a new episode."""
    records = [traces.read(path) for path in groups()[group]]
    n = len(records)
    env = traces.room(records[0], num_envs=n)
    twin = traces.room(records[0], num_envs=n, autoreset_mode="disabled")
    layouts = [traces.room_layout(r) for r in records]
    options = {"layout": {name: np.stack([layout[name] for layout in layouts]) for name in layouts[0]}}
    obs, _ = env.reset(seed=3, options=options)
    twin.reset(seed=3, options=options)
    want = np.stack([r["obs"].transpose(0, 3, 1, 2).reshape(len(r["obs"]), -1) for r in records], axis=1)       # [T + 1, N, 75]
    actions, rewards = (torch.as_tensor(np.stack([r[name] for r in records], axis=1)) for name in ("actions", "rewards"))
    np.testing.assert_array_equal(obs, want[0])
    for t, action in enumerate(actions):
        obs, reward, terminated, truncated, info = env.step(action)
        last = t == len(actions) - 1
        np.testing.assert_array_equal(info["final_obs"] if last else obs, want[t + 1])
        assert torch.equal(reward, rewards[t])
        assert terminated.tolist() == [last] * n
        assert not truncated.any()
        np.testing.assert_array_equal(info["success"], [last and bool(r["success"]) for r in records])
    assert torch.equal(obs, twin.reset()[0])           # the second episodes, as drawn
    assert env.phase.tolist() == [EXPLORE] * n


# --- the rules, by hand


def test_a_phase_is_followed_by_the_first_frame_of_the_next():
    env = VisualMatch(explore=2, distractor=3, reward=4)
    frames, rewards, ends, infos = play(env, [EAST] * 9, target=1, target_cell=(1, 4), door_colours=colours("GBR"), apple_cells=[
        (1, 1), (1, 3), (1, 5), (1, 7), (1, 9), (2, 2), (2, 4), (2, 6), (2, 8), (3, 1)])
    cell = ["     ", " B## ", " #+# ", " ### ", "     "]
    assert frames[0] == frames[1] == cell                        # walled in, all frames of the phase
    assert frames[2] == ["     ", "     ", "  +  ", "#####", "     "]      # first of the distractor phase: below row 6 is background
    assert frames[3] == ["     ", "     ", "  +  ", "#####", "     "]
    assert frames[5] == ["     ", "#   #", "# + #", "#####", "     "]      # first of the reward phase
    assert frames[6] == ["     ", "   ##", "  +# ", "#### ", "     "]      # one to the right, then against the wall
    assert frames[8] == frames[6]
    assert ends == [False] * 8 + [True]
    assert not any(rewards)
    assert marks(infos[-1]["final_obs"][0]) == frames[8]
    assert frames[9][2][2] == "+"                                # the first frame of a new episode
    assert not infos[-1]["success"]


def test_episode_lengths_and_presets():
    for name, options, frames, final in [
            ("VisualMatch", {}, (15, 250, 15), 5), ("VisualMatch", dict(preset="release"), (15, 250, 10), 10),
            ("KeyToDoor", {}, (15, 250, 10), 5), ("KeyToDoor", dict(preset="release", distractor=500), (10, 500, 3), 10),
            ("KeyToDoor", dict(preset="release", explore=7, final_reward=2.5), (7, 250, 3), 2.5)]:
        env = envs.make(name, **options)
        assert (env.frames, env.final_reward, env.episode_steps) == (frames, final, sum(frames))
        assert env.single_observation_space.shape == (75,)
        assert env.image_shape == (3, 5, 5)


APPLE_AT_TWO_STEPS_WEST = dict(apple_cells=[(5, 3)])


def test_apples_come_back_and_players_on_their_cell_take_them_a_frame_later():
    env = KeyToDoor(explore=1, distractor=70, reward=1, num_apples=1, respawn_every=20, apple_reward=0.5)
    stay = [NORTH, WEST, WEST] + [SOUTH] * 60                    # the first action belongs to the explore phase; south is a wall
    _, rewards, _, _ = play(env, stay, key_cell=(1, 3), player=(5, 5), **APPLE_AT_TWO_STEPS_WEST)
    assert [frame for frame, reward in enumerate(rewards) if reward] == [2, 24, 46]       # rewards[0] is the explore phase's
    assert set(rewards) == {0.0, 0.5}
    step_aside = [NORTH, WEST, WEST, EAST] + [SOUTH] * 30
    frames, rewards, _, _ = play(env, step_aside, key_cell=(1, 3), player=(5, 5), **APPLE_AT_TWO_STEPS_WEST)
    shown = [f for f in range(3, 34) if frames[f + 1][2][1] == "a"]                       # frame f of the phase is frames[f + 1]
    assert shown == list(range(23, 34))
    assert sum(rewards) == 0.5
    frames, rewards, _, _ = play(env, [*step_aside[:24], WEST], key_cell=(1, 3), player=(5, 5), **APPLE_AT_TWO_STEPS_WEST)
    assert (frames[24][2][1], rewards[-1]) == ("a", 0.5)         # back in frame 23, taken in frame 24
    frames, rewards, _, _ = play(env, [*step_aside[:23], WEST], key_cell=(1, 3), player=(5, 5), **APPLE_AT_TWO_STEPS_WEST)
    assert (frames[23][2][1], rewards[-1]) == (" ", 0.0)         # one frame too early


def test_an_apple_taken_by_the_last_action_of_its_phase_pays():
    env = VisualMatch(explore=1, distractor=2, reward=2, num_apples=1)
    frames, rewards, _, infos = play(env, [NORTH, WEST, WEST, NORTH, NORTH], **APPLE_AT_TWO_STEPS_WEST)
    assert rewards == [0, 0, 1, 0, 0]
    assert frames[1] == ["     ", "     ", "a +  ", "#####", "     "]
    assert frames[3] == ["     ", "#   #", "# + #", "#####", "     "]
    assert not infos[-1]["success"]                              # apples do not count


def test_no_apple_elsewhere_and_the_player_is_drawn_above():
    env = KeyToDoor(explore=1, distractor=40, reward=1, num_apples=22)
    frames, rewards, _, _ = play(env, [NORTH, NORTH, NORTH, WEST], key_cell=(1, 3), player=(5, 5), apple_cells=APPLE_CELLS)
    assert frames[1] == ["a a a", " a a ", "a + a", "#####", "     "]
    assert rewards[1:] == [0, 1, 0]                              # (4, 5) holds none, (3, 5) does
    assert frames[3][2][2] == "+"
    assert frames[4][2][3] == " "


VISIT_RIGHT, VISIT_MIDDLE = [NORTH] * 3 + [EAST] * 3 + [NORTH], [NORTH] * 4


@pytest.mark.parametrize(("moves", "target", "paid"), [
    (VISIT_MIDDLE, 1, 3), (VISIT_MIDDLE, 0, None), (VISIT_RIGHT, 2, 6), (VISIT_RIGHT, 1, None),
    ([*VISIT_MIDDLE, EAST, EAST, EAST], 2, None),                # the wrong one first
    ([*VISIT_MIDDLE, SOUTH, NORTH], 1, 3),                       # the right one twice
])
def test_visual_match_counts_the_first_touch_only(moves, target, paid):
    env = VisualMatch(explore=1, distractor=1, reward=len(moves), final_reward=7.0, num_apples=0)
    frames, rewards, ends, infos = play(env, [NORTH, NORTH, *moves], target=target, door_colours=colours("RGB"))
    assert rewards[2:] == [7.0 if i == paid else 0.0 for i in range(len(moves))]
    assert bool(infos[-1]["success"]) == (paid is not None)
    assert not any(bool(info["success"]) for info in infos[:-1])
    before = frames[2 + 3]                                       # after three moves north
    assert before == ["#####", "  G  ", "  +  ", "     ", "#   #"]
    if moves[:4] == VISIT_MIDDLE and len(moves) > 4:
        assert frames[2 + 4] == ["     ", "#####", "  +  ", "     ", "     "]     # all three are gone
        assert ends[-1]


def test_key_flash_locked_door_and_open_door():
    take = [NORTH, NORTH, SOUTH]
    env = KeyToDoor(explore=3, distractor=1, reward=8, num_apples=0, final_reward=5.0)
    out = [NORTH, NORTH, NORTH, NORTH, WEST, SOUTH, NORTH, SOUTH]
    frames, rewards, _, infos = play(env, [*take, NORTH, *out], key_cell=(2, 5), player=(4, 5))
    assert frames[0] == ["  k  ", "#   #", "  +  ", "     ", "#####"]
    assert frames[1] == ["     ", "  k  ", "# + #", "     ", "     "]
    assert frames[2] == ["##i##", "     ", "  +  ", "#   #", "     "]             # the frame of the pickup
    assert frames[4] == ["##d##", "#   #", "# + #", "#   #", "#####"]
    assert frames[5] == ["     ", "##d##", "# + #", "#   #", "#   #"]
    assert frames[6] == ["     ", "     ", "##d##", "#   #", "#   #"]             # the door hides the player
    assert rewards[4:] == [0, 5, 0, 0, 0, 0, 0, 0]
    assert frames[7] == ["     ", "     ", "  +  ", "##d##", "#   #"]             # outside, at the board's edge
    assert frames[8] == frames[7]
    assert frames[10] == frames[9] == ["     ", "     ", "  +  ", " ##d#", " #   "]      # the wall is a wall from outside too
    assert bool(infos[-1]["success"])
    locked, rewards, _, infos = play(env, [SOUTH, SOUTH, SOUTH, NORTH, *[NORTH] * 8], key_cell=(2, 5), player=(4, 5))
    assert locked[6] == locked[11] == ["     ", "##d##", "# + #", "#   #", "#   #"]
    assert not any(rewards)
    assert not infos[-1]["success"]


def test_indicator_lasts_one_frame_and_the_key_stays_gone():
    env = KeyToDoor(explore=9, distractor=1, reward=1, num_apples=0)
    frames, _, _, _ = play(env, [NORTH, NORTH, NORTH, SOUTH, NORTH], key_cell=(1, 5), player=(4, 5))
    assert [frame[1] for frame in frames[3:]] == ["##i##", "     ", "#####"]
    assert frames[4][0] == "#####"
    assert "k" not in "".join(frames[4])
    blocked, _, _, _ = play(env, [NORTH, NORTH, NORTH, NORTH], key_cell=(1, 5), player=(4, 5))
    assert blocked[4] == ["     ", "#####", "  +  ", "     ", "#   #"]             # the white cell cannot be entered


def test_everything_on_the_last_possible_action():
    env = KeyToDoor(explore=2, distractor=2, reward=2, num_apples=1)
    frames, rewards, ends, infos = play(env, [NORTH, NORTH, WEST, WEST, NORTH, NORTH], key_cell=(2, 5), player=(4, 5),
                                        **APPLE_AT_TWO_STEPS_WEST)
    assert rewards == [0, 0, 0, 1, 0, 5]
    assert frames[2][2][2] == "+"
    assert "i" not in "".join(map("".join, frames))              # never seen
    assert ends == [False] * 5 + [True]
    assert bool(infos[-1]["success"])
    assert marks(infos[-1]["final_obs"][0])[2] == "##d##"


def test_steps_after_the_end_are_no_error():
    env = VisualMatch(2, explore=1, distractor=1, reward=1, autoreset_mode="disabled")
    env.reset(seed=0)
    for t in range(9):
        *_, terminated, _, _ = env.step(torch.tensor([NORTH, EAST]))
        assert terminated.tolist() == [t >= 2] * 2


# --- random draws


def uniform(counts):
    assert stats.chisquare(counts).pvalue > TOO_UNLIKELY, counts


def layouts(cls, n=4000, episodes=4, **options):
    """Of n envs and a few episodes each: situations at the start, and the apples that are visible when the second phase starts."""
    env = cls(n, explore=1, distractor=1, reward=1, seed=11, **options)
    env.reset()
    drawn, apples = [], []
    for _ in range(episodes):
        drawn.append(env.situation.clone())
        env.step(torch.zeros(n, dtype=torch.int64))
        assert (env.phase == DISTRACTOR).all()
        apples.append(env.apples)
        env.step(torch.zeros(n, dtype=torch.int64))
        assert (env.phase == REWARD).all()
        env.step(torch.zeros(n, dtype=torch.int64))
    return env, torch.cat(drawn), torch.cat(apples)


def test_visual_match_layouts():
    env, drawn, apples = layouts(VisualMatch)
    assert len(env.order.unique()) == 1
    start = drawn - env.order[0] * env.situations
    uniform(start.bincount(minlength=24))
    assert (apples.sum(1) == 10).all()
    each = apples.double().mean(0)
    assert ((each - 10 / 22).abs() < 5 * (0.25 / len(apples)) ** 0.5).all()
    table = torch.stack([(apples[:, 5] & (start % 3 == target)).sum() for target in range(3)])      # colour says nothing about apples
    uniform(table)
    assert RING == [(1, 4), (1, 5), (1, 6), (2, 4), (2, 6), (3, 4), (3, 5), (3, 6)]


def test_key_to_door_layouts():
    env, drawn, _ = layouts(KeyToDoor)
    uniform(drawn.bincount(minlength=100))
    env.reset(seed=1)
    assert (env.player >= torch.tensor([4, 3])).all()
    assert (env.player <= torch.tensor([5, 7])).all()
    assert set(KEYS) == {(r, c) for r in (1, 2) for c in range(3, 8)}
    assert set(PLAYERS) == {(r, c) for r in (4, 5) for c in range(3, 8)}


def test_apples_are_any_subset():
    _, _, apples = layouts(KeyToDoor, num_apples=2)
    first, second = apples.int().topk(2, dim=1).indices.sort(1).values.unbind(1)
    counts = (first * 22 + second).bincount(minlength=22 * 22)
    pairs = torch.triu(torch.ones(22, 22), diagonal=1).bool().flatten()
    assert counts[~pairs].sum() == 0
    uniform(counts[pairs])
    for size in (0, 1, 21, 22):
        _, _, apples = layouts(KeyToDoor, n=100, episodes=1, num_apples=size)
        assert (apples.sum(1) == size).all()


def test_successive_episodes_do_not_resemble_each_other():
    _, drawn, apples = layouts(KeyToDoor, n=6000, episodes=2)
    first, second = drawn.view(2, -1)
    pairs = (first // 10 * 10 + second // 10).bincount(minlength=100)
    uniform(pairs)
    same = (apples[:6000] & apples[6000:]).sum(1).double().mean()
    assert abs(same - 100 / 22) < 0.1


def test_colours_depend_on_the_seed_of_the_run():
    def orders(**options):
        env = VisualMatch(16, **options)
        env.reset(seed=options.pop("seed", None))
        return env.order.tolist()

    found = [orders(seed=s)[0] for s in range(600)]
    uniform(np.bincount(found, minlength=6))
    assert orders(seed=5) == [found[5]] * 16 == orders(seed=5, first_env=10_000)
    assert len(set(orders(seed=5, per_env=True))) > 1
    assert orders(seed=5, per_env=True)[3:] == orders(seed=5, per_env=True, first_env=3)[:13]
    env = VisualMatch(4, explore=1, distractor=1, reward=1)
    env.reset(seed=7)
    before = env.order.clone()
    for _ in range(7):
        env.step(torch.zeros(4, dtype=torch.int64))
    assert torch.equal(before, env.order)
    assert env.reset(seed=[3, 4, 5, 3]) is not None
    assert env.order.tolist() == [found[3], found[4], found[5], found[3]]


def test_objects_have_the_colours_of_the_order():
    env = VisualMatch(6, explore=1, distractor=1, reward=12, num_apples=0)
    triples = torch.tensor([[list(CODE["RGB"[i]]) for i in order] for order in ORDERS])
    obs, _ = env.reset(seed=0, options={"layout": {"door_colours": triples, "target": [0, 1, 2, 2, 1, 0]}})
    shown = [next(c for row in marks(o) for c in row if c in "RGB") for o in obs]
    assert shown == ["RGB"[order[t]] for order, t in zip(ORDERS, [0, 1, 2, 2, 1, 0], strict=True)]
    assert env.target.tolist() == [0, 1, 2, 2, 1, 0]
    for action in [NORTH, NORTH, NORTH, NORTH, NORTH, WEST]:
        obs, *_ = env.step(torch.full((6,), action))
    seen = ["".join(c for c in marks(o)[1] if c in "RGB") for o in obs]            # from (2, 4): b and c
    assert seen == ["".join("RGB"[i] for i in order[:2]) for order in ORDERS]


def test_apple_values_from_a_pair():
    n, options = 400, dict(explore=1, distractor=12, reward=1, num_apples=22, apple_reward=(0.5, 1.7), seed=2)
    plan = [NORTH, *[WEST, WEST, NORTH, NORTH, NORTH, EAST] * 2]                   # (5, 3), (3, 3), ...
    for fixed in (True, False):
        env = KeyToDoor(n, fix_apple_reward=fixed, **options)
        env.reset()
        paid = torch.stack([env.step(torch.full((n,), a))[1] for a in plan])       # [T, N]
        got = paid[(paid != 0).all(1)]
        assert len(got) >= 3
        if fixed:
            assert (got == got[0]).all()
            assert set(got.unique().tolist()) == {0.5, torch.tensor(1.7).item()}
            uniform([int((got[0] == 0.5).sum()), int((got[0] != 0.5).sum())])
        else:
            assert stats.kstest(got.flatten().double().numpy(), stats.uniform(0.5, 1.2).cdf).pvalue > TOO_UNLIKELY
            assert (got[0] != got[1]).all()


# --- players that see observations only


class Matcher:
    """Remembers the colour of the first room, and looks for it in the last."""

    def __init__(self, env):
        self.explore, self.opens = env.frames[0], sum(env.frames[:2])

    def act(self, t, view, rng):
        if t == 0:
            self.colour = next(c for row in view for c in row if c in "RGB")
        if t < self.opens:
            return rng.integers(4)
        t -= self.opens
        if t < 3:
            return NORTH
        if t == 3:
            self.plan = [NORTH] if view[1][2] == self.colour else [WEST]
        elif t == 4 and self.colour in view[1]:
            self.plan = [WEST, WEST, NORTH]
        elif t == 4:
            self.plan = [EAST] * 4 + [NORTH]
        return self.plan.pop(0) if self.plan else SOUTH


class Fetcher:
    """Into the middle, north to the wall, then to the key; at the end north."""

    def __init__(self, env):
        self.explore, self.opens = env.frames[0], sum(env.frames[:2])
        self.plan = None

    def act(self, t, view, rng):
        if t >= self.opens:
            return NORTH
        if t >= self.explore:
            return rng.integers(4)
        if self.plan is None:
            shift = [EAST] if view[2][1] == "#" else [WEST] if view[2][3] == "#" else []
            self.plan = shift + [NORTH] * 4
        if self.plan:
            return self.plan.pop(0)
        where = [(r, c) for r in range(5) for c in range(5) if view[r][c] == "k"]
        if where:
            row, column = where[0][0] - 2, where[0][1] - 2
            self.plan = [EAST if column > 0 else WEST] * abs(column) + [SOUTH if row > 0 else NORTH] * abs(row)
            return self.plan.pop(0)
        return EAST if view[2][0] == "#" else WEST if view[2][4] == "#" else SOUTH


def successes(cls, player, n=48, **options):
    if cls is VisualMatch:
        options["per_env"] = True                                 # so that an object's place does not reveal its colour
    env = cls(n, distractor=20, seed=4, **options)
    players = [player(env) for _ in range(n)]
    rng = np.random.default_rng(0)
    obs, _ = env.reset()
    for t in range(env.episode_steps):
        obs, *_, info = env.step([p.act(t, marks(o), rng) for p, o in zip(players, obs, strict=True)])
    return info["success"]


@pytest.mark.parametrize(("cls", "player", "preset"), [
    (VisualMatch, Matcher, "mrl"), (VisualMatch, Matcher, "release"), (KeyToDoor, Fetcher, "mrl"), (KeyToDoor, Fetcher, "release")])
def test_players_with_memory_succeed(cls, player, preset):
    assert successes(cls, player, preset=preset).all()


def test_players_without_memory_do_not():
    for cls, most in ((VisualMatch, 0.15), (KeyToDoor, 0.25)):
        env = cls(4000, distractor=20, seed=0)
        env.reset()
        for _ in range(env.episode_steps):
            *_, info = env.step(torch.randint(4, (4000,)))
        assert 0 < info["success"].double().mean() < most
    env = VisualMatch(3000, distractor=1, explore=1, seed=0)       # always the one in the middle
    env.reset()
    for _ in range(env.episode_steps):
        *_, info = env.step(torch.full((3000,), NORTH))
    assert abs(info["success"].double().mean() - 1 / 3) < 0.04


# --- interface


def test_picture_instead_of_a_vector():
    flat, picture = VisualMatch(3, seed=1), VisualMatch(3, seed=1, image=True)
    assert picture.single_observation_space.shape == (3, 5, 5)
    assert torch.equal(flat.reset()[0].view(3, 3, 5, 5), picture.reset()[0])
    assert torch.equal(flat.step([0, 1, 2])[0].view(3, 3, 5, 5), picture.step([0, 1, 2])[0])


def test_layout_touches_only_what_it_names():
    env, other = VisualMatch(5), VisualMatch(5)
    env.reset(seed=1, options={"layout": {"target": [2] * 5}})
    other.reset(seed=1)
    assert env.target.tolist() == [2] * 5
    assert torch.equal(env.ripe, other.ripe)
    assert torch.equal(env.situation // 3, other.situation // 3)    # the ring's cell and the colours are as drawn
    for _ in range(3):
        env.step(torch.zeros(5, dtype=torch.int64))
    before = env.get_state()
    mask = torch.tensor([True, False, True, False, False])
    env.reset(options={"reset_mask": mask, "layout": {"target": [0] * 5, "door_colours": [colours("BGR")] * 5}})
    assert env.target.tolist() == [0, 2, 0, 2, 2]
    assert torch.equal(env.order[~mask], before["order"][~mask])


@pytest.mark.parametrize(("options", "error", "text"), [
    (dict(explore=0), ValueError, "explore"), (dict(distractor=2.5), TypeError, "distractor"), (dict(reward=-1), ValueError, "reward"),
    (dict(distractor=1 << 20), ValueError, "at most"), (dict(final_reward=0.0), ValueError, "final_reward"),
    (dict(final_reward="much"), TypeError, "final_reward"), (dict(num_apples=23), ValueError, "num_apples"),
    (dict(num_apples=True), TypeError, "num_apples"), (dict(respawn_every=-1), ValueError, "respawn_every"),
    (dict(apple_reward=(1, 2, 3)), ValueError, "apple_reward"), (dict(apple_reward=float("nan")), ValueError, "apple_reward"),
    (dict(preset="paper"), ValueError, "mrl, release"), (dict(colour="red"), TypeError, "colour"),
])
@pytest.mark.parametrize("name", ["VisualMatch", "KeyToDoor"])
def test_bad_options_say_what_is_wrong(name, options, error, text):
    with pytest.raises(error, match=text):
        envs.make(name, **options)


@pytest.mark.parametrize(("name", "layout", "text"), [
    ("VisualMatch", dict(target=[3]), "0, 1 or 2"), ("VisualMatch", dict(target_cell=[[0, 0]]), "target_cell"),
    ("VisualMatch", dict(door_colours=[colours("RRG")]), "red, green and blue"),
    ("VisualMatch", dict(door_colours=[colours("RG")]), "door_colours"),
    ("VisualMatch", dict(key_cell=[[1, 3]]), "key_cell"), ("KeyToDoor", dict(key_cell=[[4, 3]]), "key_cell"),
    ("KeyToDoor", dict(player=[[-4, 3]]), "player"), ("KeyToDoor", dict(player=[[4, 13]]), "player"),
    ("KeyToDoor", dict(apple_cells=[APPLE_CELLS[:9]]), "apple_cells"), ("KeyToDoor", dict(apple_cells=[[(1, 1)] * 10]), "twice"),
])
def test_bad_layouts_say_what_is_wrong(name, layout, text):
    with pytest.raises(ValueError, match=text):
        envs.make(name).reset(seed=0, options={"layout": layout})
