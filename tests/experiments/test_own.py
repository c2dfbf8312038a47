"""Studies of one's own, from Python and YAML."""

from dataclasses import replace

import pytest

from hadamem.experiments.own import grid, read_study
from hadamem.experiments.study import MeasureTask, Study, TrainTask, from_plain, to_plain


def test_a_grid_has_a_run_for_every_combination():
    study = grid("mine", ["TMaze", {"env": "TMaze", "label": "long", "env_options": {"length": 30}}],
                 {"shm": {"memory": "shm"}, "big": {"memory": "shm", "memory_size": 64}},
                 variants={"slow": {"lr": 1e-4}, "fast": {"lr": 1e-2}}, seeds=[3, 5], steps=1000, settings={"gamma": 0.9})
    assert len(study.tasks) == 2 * 2 * 2 * 2
    task = study.tasks[-1]
    assert task.name == "long-big-fast-5"
    assert task.labels == {"task": "long", "memory": "big", "variant": "fast"}
    config = task.config()
    assert (config.env_options, config.network.memory_size, config.algorithm.learning_rate, config.algorithm.gamma, config.seed,
            config.total_steps) == ({"length": 30}, 64, 1e-2, 0.9, 5, 1000)


def test_numbers_in_yaml_need_no_dot(tmp_path):
    (tmp_path / "mine.yaml").write_text("envs: [TMaze]\nmemories: [shm]\nsteps: 1e3\nvariants: {slow: {lr: 1e-4}}\n"
                                        "settings: {log: none, max_grad_norm: none, ppo: {gamma: '0.9'}}\n")
    config = read_study(tmp_path / "mine.yaml").tasks[0].config()
    assert (config.total_steps, config.algorithm.learning_rate) == (1000, 1e-4)
    assert (config.log, config.algorithm.max_grad_norm, config.algorithm.gamma) == ((), None, 0.9)      # as in the file of a run


def test_yaml_and_python_give_the_same_study(tmp_path):
    (tmp_path / "mine.yaml").write_text("envs: [TMaze]\nmemories: [shm, gru]\nagents: [ppo]\nseeds: 2\nsteps: 1000\n"
                                        "score: success\nscale: 100\n")
    study = read_study(tmp_path / "mine.yaml")
    assert study.source == {"file": str(tmp_path / "mine.yaml")}
    same = grid("mine", ["TMaze"], ["shm", "gru"], agents=["ppo"], seeds=2, steps=1000, score="success", scale=100)
    assert replace(study, source={}) == same


@pytest.mark.parametrize(("text", "words"), [
    ("memories: [shm]", "envs is missing"), ("envs: [TMaze]", "memories is missing"), ("envs: [TMaze]\nmemories: [shmm]", "shmm"),
    ("envs: TMaze\nmemories: shm\nseeds: 0", "seeds must be how many"), ("envs: [TMaze]\nmemories: [shm]\nseeds: [a]", "seeds must be"),
    ("envs: [TMaze, TMaze]\nmemories: [shm]", "envs has 'TMaze' twice"), ("envs: [TMaze]\nmemories: [shm]\nsettings: {gama: 1}", "gama"),
    ("envs: [TMaze]\nmemories: [shm]\nsettings: {seed: 1}", "which is a key of the study itself"),
    ("envs: [TMaze]\nmemories: [shm]\nscore: fun", "score must be one of"), ("envs: [TMaze]\nmemories: [shm]\nname: a/b", "folder's name"),
    ("envs: [{label: x}]\nmemories: [shm]", "must be a name, or have 'env'"),
    ("envs: [TMaze]\nmemories: [shm]\nvariants: [a]", "variants must be"),
    ("envs: [TMaze]\nmemories: [shm]\nscale: x", "scale must be a positive number"),
    ("envs: [TMaze]\nmemories: [shm]\nabout: [x]", "about must be"),
    ("envs: [TMaze]\nmemories: [shm]\nscore: eval_return", "needs evaluations"), ("envs: [TMaze]\nmemories: [shm]\nseeds: [1, 1]", "twice"),
    ("envs: [3]\nmemories: [shm]", "must be a mapping"), ("envs: {", "is not YAML"),
    ("envs: [TMaze]\nmemories: [shm]\nvariants: {a: 3}", "variants: a must be a mapping"),
    ("envs: [TMaze]\nmemories: [shm]\npreset: nice", "unknown preset 'nice'"), ("envs: [TMaze]\nmemories: [shm]\nagents: [dqn]", "dqn"),
])
def test_bad_files(tmp_path, text, words):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=words) as error:
        read_study(file)
    assert str(file) in str(error.value)


def test_tasks_survive_json_and_have_names_of_their_own():
    tasks = [TrainTask("a", {"task": "T"}, {"env": "TMaze", "log": []}), MeasureTask("b", "theory:x", {"n": 3})]
    assert [from_plain(to_plain(task)) for task in tasks] == tasks
    with pytest.raises(ValueError, match="two tasks named 'a'"):
        Study("s", "S", [tasks[0], tasks[0]])
