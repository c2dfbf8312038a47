"""Text and pictures of every task: they exist at every step, keep their size, and hide what the agent cannot see; and playing by hand."""

import builtins
import io
import sys

import numpy as np
import pytest
from gymnasium import spaces

from hadamem import envs
from hadamem.envs import render
from hadamem.envs.play import play
from hadamem.envs.registry import TASKS
from hadamem.envs.render import canvas, pictures
from hadamem.envs.render.blocks import BLACK, Block, Caption, Card, Cards, Plane, Spot, Stroke
from hadamem.envs.spaces import describe

from .toys import Mixed


def episode(name, num_envs=2, seed=0, **options):
    """An env at a few steps from the start of an episode to its end and beyond."""
    env = envs.make(name, num_envs=num_envs, seed=seed, autoreset_mode="disabled", **options)
    env.reset()
    env.action_space.seed(seed)
    stops = {0, 1, 2, 5, env.episode_steps - 1, env.episode_steps, env.episode_steps + 1}
    for t in range(max(stops) + 1):
        if t in stops:
            yield env
        env.step(env.action_space.sample())


ONE_OF_EACH = [name for name in TASKS if not name.endswith(("Medium", "Hard"))]


@pytest.mark.parametrize("name", [*ONE_OF_EACH, "popgym/ConcentrationHard", "popgym/CountRecallHard"])
def test_every_step_has_a_text_and_a_picture_of_one_size(name):
    sizes = {True: set(), False: set()}
    for env in episode(name):
        for hidden in (True, False):
            words = render.text(env, 1, hidden=hidden)
            assert words.strip()
            assert "\x1b" not in words
            assert max(map(len, words.splitlines())) <= 110
            assert render.text(env, 1, hidden=hidden, colour=True).strip()
            picture = render.picture(env, 1, hidden=hidden)
            assert picture.dtype == np.uint8
            sizes[hidden].add(picture.shape)
            assert picture.min() < picture.max()
    for shapes in sizes.values():
        assert len(shapes) == 1
        height, width, channels = next(iter(shapes))
        assert (height % 16, width % 16, channels) == (0, 0, 3)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_without_hidden_parts_a_scene_depends_on_the_observation_only(name):
    env = envs.make(name, num_envs=40, seed=1)
    env.reset()
    env.action_space.seed(1)
    for _ in range(8):
        seen = {}
        for i in range(40):
            view = render.text(env, i, hidden=False)
            assert seen.setdefault((int(env.elapsed[i]), render.format_value(render.row(env.observe(), i))), view) == view
        action = env.action_space.sample()
        env.step(np.broadcast_to(action[:1], action.shape).copy())


def test_hidden_parts_are_shown_on_request():
    env = envs.make("popgym/BattleshipEasy", seed=0)
    env.reset()
    env.step([[2, 3]])
    lines = [line.split()[1:] for line in render.text(env).splitlines()[-8:]]
    ships, shots = env.board[0, :64].view(8, 8).tolist(), env.shot[0].view(8, 8).tolist()
    for r in range(8):
        for c in range(8):
            assert lines[r][c] == {(0, 0): "·", (1, 0): "■", (0, 1): "o", (1, 1): "X"}[ships[r][c], shots[r][c]]
    env = envs.make("popgym/AutoencodeEasy", seed=0)
    env.reset()
    for _ in range(60):
        env.step([0])
    marked = next(word for line in render.text(env).splitlines() for word in line.split("[")[1:])
    _, reward, *_ = env.step(["♠♦♣♥".index(marked.strip()[0])])      # the marked card is the right answer
    assert reward > 0


@pytest.mark.parametrize("name", ["VisualMatch", "KeyToDoor"])
def test_rooms_have_the_colours_of_the_observation(name):
    env = envs.make(name, seed=2)
    obs, _ = env.reset()
    picture = render.picture(env, hidden=False)
    image = obs.view(3, 5, 5).permute(1, 2, 0).numpy()
    for top in range(picture.shape[0] - 4 * 44 - 10):      # wherever the grid starts
        cells = picture[top + 5:top + 5 + 4 * 44 + 1:44, 14 + 5:14 + 5 + 4 * 44 + 1:44]
        if cells.shape == image.shape and (cells == image).all():
            break
    else:
        raise AssertionError("the 5 x 5 cells are not in the picture")
    lines = render.text(env).splitlines()
    assert sum(line.count("@") for line in lines) == 1


def test_other_envs_show_their_observation():
    env = envs.adapt(Mixed)
    env.reset(seed=0)
    assert "pair" in render.text(env)
    assert render.picture(env).shape[2] == 3
    with pytest.raises(ValueError, match="i must be in"):
        render.text(env, 1)
    wrapped = envs.wrap(envs.make("TMaze", seed=0))
    wrapped.reset()
    assert render.text(wrapped) == render.text(wrapped.unwrapped)


def test_symbols():
    """Those that Pillow's font lacks are drawn: all differ, fill their box well and are symmetric."""
    seen = set()
    for char in canvas.SYMBOLS:
        mask = np.asarray(canvas.symbol(char, 36)).astype(int)
        assert mask.shape == (36, 36)
        assert 0.25 < (mask > 127).mean() < 1 or char == "*"
        assert np.abs(mask - mask[:, ::-1]).mean() < 16
        seen.add(mask.tobytes())
    assert len(seen) == len(canvas.SYMBOLS) >= 5
    assert set("♠♥♦♣●") <= set(canvas.SYMBOLS)


def test_drawn_cards_show_their_face():
    up, down = (np.asarray(pictures.draw(Cards([Card(label, BLACK)]))) for label in ("♠", ""))
    assert up.shape == down.shape
    assert (up == BLACK).all(-1).sum() > 400
    assert not (down == BLACK).all(-1).any()


def test_planes_have_y_upwards():
    plane = Plane([Spot(0.5, 0.5, 0.2, (255, 0, 0)), Stroke(-1, -0.5, 1, -0.5, (0, 0, 255), 0.1)], (-1, -1), (1, 1), 100)
    pixels = np.asarray(pictures.draw(plane))
    assert pixels.shape == (100, 100, 3)
    assert tuple(pixels[25, 75]) == (255, 0, 0)
    assert tuple(pixels[75, 25]) == (0, 0, 255)
    assert tuple(pixels[25, 25]) == (255, 255, 255)


def test_captions_below_pictures():
    view = np.zeros((32, 480, 3), np.uint8)
    out = render.caption(view, "left, reward +1")
    assert (out.shape, out.dtype) == ((80, 480, 3), np.uint8)
    assert not out[:32].any()
    assert (out[32:] < 100).any()
    assert render.caption(view[:, :30], "much too long " * 20).shape == (80, 240, 3)


def test_text_needs_no_pillow(monkeypatch):
    def without_pillow(name, *rest, **options):
        if name.partition(".")[0] == "PIL":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return imported(name, *rest, **options)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without_pillow)
    for name in ("pictures", "canvas"):
        monkeypatch.delitem(sys.modules, f"hadamem.envs.render.{name}")
        monkeypatch.delattr(render, name)
    env = envs.make("popgym/RepeatPreviousEasy", seed=0)
    env.reset()
    assert "card 1 of 52" in render.text(env)
    with pytest.raises(ImportError, match=r"pip install 'hadamem\[plot\]'"):
        render.picture(env)


def test_a_block_of_unknown_kind():
    class Strange(Block):
        pass

    with pytest.raises(TypeError, match="cannot draw a Strange"):
        pictures.draw(Strange())
    assert pictures.draw(Caption("")).size == (1, 20)


def test_spaces_as_text():
    assert describe(spaces.Box(0, 255, (3, 5, 5), np.uint8)) == "Box 3 x 5 x 5 uint8"
    assert describe(spaces.Dict({"a": spaces.Discrete(2), "b": spaces.MultiBinary(3)})) == "a: Discrete 2, b: MultiBinary 3"
    assert describe(spaces.MultiDiscrete([3] * 52)) == "MultiDiscrete 52 of 3"


# --- play ----------------------------------------------------------------------------------------------------------


def played(name, lines, **options):
    out = io.StringIO()
    play(name, source=io.StringIO("".join(f"{line}\n" for line in lines)), out=out, **options)
    return out.getvalue()


def test_a_game_by_hand():
    """It gives the rewards of the task, up to the end of the episode; then another one starts."""
    env = envs.make("TMaze", seed=3)
    obs, _ = env.reset()
    turn = "w" if float(obs[0, 1]) > 0 else "s"
    text = played("TMaze", ["d" * 10, turn, "", "q"], seed=3)
    assert f"the cue says {'up' if turn == 'w' else 'down'}" in text
    assert "episode terminated after 11 steps: return +1, success" in text
    assert text.count("step 0 of 11") == 2
    assert text.endswith("bye\n")
    assert "@" not in text
    assert "@" in played("TMaze", ["d"], seed=3, hidden=True)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_keys_stand_for_all_actions(name):
    env = envs.make(name)
    names = env.action_names()
    assert len(names) == len(env.keys)
    assert not names or sorted(names) == list(range(env.single_action_space.n))
    assert not {"q", "r", "?"} & set(env.keys)      # taken by the player's commands


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_task_can_be_played(name):
    env = envs.make(name)
    space = env.single_action_space
    space.seed(0)
    moves = [" ".join(map(str, np.ravel(space.sample()).tolist())) for _ in range(3)]
    text = played(name, [*moves, "?", "r", "nonsense", *moves], seed=1)
    assert text.count("reward") == 6
    assert "is not an action" in text
    assert played(name, moves, seed=1) == played(name, moves, seed=1)


@pytest.mark.parametrize(("name", "line"), [
    ("popgym/RepeatPreviousEasy", "4"), ("popgym/RepeatPreviousEasy", ""), ("popgym/RepeatPreviousEasy", "z"),
    ("popgym/BattleshipEasy", "1"), ("popgym/BattleshipEasy", "8 0"), ("popgym/BattleshipEasy", "a b"),
    ("Wind", "1"), ("Wind", "nan 0"), ("Wind", "x y")])
def test_invalid_actions_are_asked_again(name, line):
    text = played(name, [line, "q"], seed=0)
    assert "reward" not in text
    assert "is not an action" in text or "type an action" in text


def test_gymnasiums_envs_can_be_played():
    text = played("CartPole-v1", ["0", "1 1", "q"], seed=0)
    assert text.count("reward +1") == 3
    assert "a number from 0 to 1" in text
    assert "(Left)" in played("FrozenLake-v1", ["0"], seed=0, options={"render_mode": "ansi"})
