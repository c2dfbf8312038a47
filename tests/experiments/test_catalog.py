"""The studies of the paper as data: every run has settings that exist, and importing trains nothing."""

import json
from pathlib import Path

import pytest

from hadamem.experiments import paper
from hadamem.experiments.catalog import PAPER, PRESETS, make_study
from hadamem.experiments.own import grid
from hadamem.experiments.records import flatten, misfit, read_record
from hadamem.experiments.running import check
from hadamem.experiments.studies import ablation
from hadamem.experiments.studies.popgym_table import BEST, MEMORIES, TASKS, title
from hadamem.experiments.study import MeasureTask
from hadamem.experiments.worker import find_measure
from hadamem.runs.config import make_config, to_dict


@pytest.mark.parametrize(("name", "protocol"), [(name, protocol) for name, entry in PAPER.items() for protocol in entry.protocols])
def test_every_task_can_be_built(name, protocol):
    for quick in (False, True):
        study = make_study(name, protocol=protocol, quick=quick)
        assert study.tasks
        assert study.source["paper"] == name
        check(study.tasks if quick else study.tasks[:40:3])
        for task in study.tasks:
            if isinstance(task, MeasureTask):
                find_measure(task.function)


def test_sizes_of_the_paper():
    assert len(make_study("popgym-table", seeds=1).runs) == 12 * 6
    assert len(make_study("meta-rl").runs) == 4 * 7 * 5
    assert len(make_study("credit").runs) == 4 * 7 * 3
    assert len({task.labels["memory"] for task in make_study("calibration").runs}) == 9
    config = make_study("popgym-table", budget=0.5).runs[0].config()
    assert config.total_steps == 7_500_000
    assert make_study("meta-rl", protocol="release").runs[0].config().network.actor_memory == "gru"
    chosen = make_study("popgym-table", memories=["gru"], tasks=["AutoencodeHard"], seeds=2)
    assert [task.name for task in chosen.runs] == ["popgym-fair-AutoencodeHard-gru-0", "popgym-fair-AutoencodeHard-gru-1"]


def test_quick_has_one_seed_unless_told():
    for name in (name for name, entry in PAPER.items() if entry.trains):
        one, two = (make_study(name, quick=True, seeds=seeds) for seeds in (None, 2))
        assert {task.config().seed for task in one.runs} == {0}
        assert {task.config().seed for task in two.runs} == {0, 1}
        assert len(two.runs) == 2 * len(one.runs)


def test_tasks_are_named_alike():
    """Names with the level after a dash, as the paper's numbers have them."""
    names = {task.labels["task"] for name in ("popgym-table", "calibration", "memory-size", "clipping") for task in make_study(name).runs}
    assert names == {title(task) for task in TASKS}


def test_no_number_where_the_paper_has_none():
    assert paper.find("Visual Match, 250", "ffm") == 77.0
    assert paper.find("Visual Match, 250", "shm") is None
    assert "near-perfect" in make_study("credit").about
    assert all(len(row) == 4 for row in paper.DIFFERENCES)
    assert len({row[0] for row in paper.DIFFERENCES}) == len(paper.DIFFERENCES)


def test_the_protocol_best_is_for_popgym_alone():
    have = [name for name, entry in PAPER.items() if "best" in entry.protocols]
    assert have == ["popgym-table", "calibration", "popgym-ablation", "memory-size", "clipping"]
    others = ((*PRESETS, "gae"), ("best", "gae", "best-small", "gae-small"))
    assert all(entry.protocols in (PRESETS, PRESETS[:2], *others) for entry in PAPER.values())
    study = make_study("popgym-table", protocol="best")
    assert (study.name, len(study.runs)) == ("popgym-table-best", 12 * 10 * 3)
    assert {task.config().preset for task in study.runs[:120]} == {"popgym-best"}
    window = next(task for task in study.runs if task.name == "popgym-best-AutoencodeHard-gpt2-0").config().network.memory_options["window"]
    assert window == 311
    assert {task.config().network.memory for task in make_study("memory-size", protocol="best").runs} == {"shm"}
    with pytest.raises(ValueError, match=r"study 'credit' has no protocol 'best', only fair and release; popgym-table, .* have it"):
        make_study("credit", protocol="best")


def test_seeds_without_end_are_refused():
    for make in (lambda: make_study("learning", seeds=10**18), lambda: grid("mine", ["TMaze"], ["gru"], seeds=10**18)):
        with pytest.raises(ValueError, match=r"seeds must be .*1000, got 1000000000000000000"):
            make()


@pytest.mark.parametrize("protocol", ["best", "gae"])
def test_the_ablation_has_the_preset_itself(protocol):
    study = make_study("popgym-ablation", protocol=protocol)
    assert study.name == ("popgym-ablation" if protocol == "best" else "popgym-ablation-gae")
    assert {task.labels["task"] for task in study.runs} == {title(task) for task in ablation.TASKS}
    table = make_study("popgym-table", protocol=protocol, seeds=1)
    cells = {task.name: task.config() for task in table.runs}
    shared = [task.name for task in study.runs if cells.get(task.name) == task.config()]
    assert len(shared) == len(ablation.TASKS)      # the preset itself has the records of the table


def test_the_ablation_changes_the_preset():
    best, named = ({task.labels["memory"]: task.config() for task in make_study("popgym-ablation", protocol=protocol).runs
                    if "BattleshipEasy" in task.name} for protocol in ("best", "gae"))
    assert (best["popgym-best"].network.memory_size, best["popgym-best"].network.memory_options["key_size"]) == (256, 64)
    assert (best["square"].network.memory_size, best["square"].network.memory_options["key_size"]) == (128, 128)
    for name in ("square", "calibration-none"):
        assert (best[name].network.memory_options["rotary"], best[name].network.memory_options["normalize_keys"]) == (True, False)
    assert named["gamma-0.5"].algorithm.gamma == named["gamma-0.5"].algorithm.gae_lambda == 0.5
    both = named["actor-gamma-0-signed-keys-linear-output"]
    assert (both.network.memory_options["rotary"], both.network.memory_options["normalize_keys"]) == (True, False)
    assert (both.network.memory_activation, both.algorithm.actor_gamma) == ("none", 0.0)
    assert named["popgym-gae"].network.memory_activation == "relu"
    assert named["separate-actions"].algorithm.joint_actions == "never"
    with pytest.raises(ValueError, match=r"unknown variant 'x'; choose from popgym-best, narrow-input, separate-actions, fair-batch"):
        make_study("popgym-ablation", variants=["x"])
    with pytest.raises(ValueError, match="study 'popgym-ablation' has no protocol 'fair', only best and gae and best-small and gae-small"):
        make_study("popgym-ablation", protocol="fair")


@pytest.mark.parametrize("preset", ["best", "gae"])
def test_the_small_ablation_changes_sizes_alone(preset):
    best, small = (make_study("popgym-ablation", protocol=protocol, budget=0.5) for protocol in (preset, f"{preset}-small"))
    assert [task.name.replace("-small", "") for task in small.runs] == [task.name for task in best.runs]
    for a, b in zip(best.runs, small.runs, strict=True):
        a, b = (flatten(to_dict(task.config())) for task in (a, b))
        assert b["total_steps"] == 300_000
        assert 2 * b["network.memory_size"] == a["network.memory_size"]
        assert {name for name in a if a[name] != b[name]} <= {
            "total_steps", "steps_per_iteration", "network.memory_size", "network.memory_output_size", "network.memory_options.key_size"}


@pytest.mark.parametrize(("preset", "undone"), [("popgym-best", ablation.BEST_UNDONE), ("popgym-gae", ablation.GAE_UNDONE)])
def test_the_ablation_names_all_that_tells_a_preset_from_popgym_fair(preset, undone):
    def settings(preset, **changes):
        found = to_dict(make_config(preset=preset, env="popgym/BattleshipEasy", memory="shm", **changes))
        return {name: x for name, x in found.items() if name != "preset"}

    usual = make_config(preset=preset, memory="shm").network.memory_options

    def undo(but=None):
        found = {}
        for changes in (changes for name, changes in undone.items() if name != but):
            options = changes.get(ablation.OPTIONS, {})
            changed = {name: x for name, x in options.items() if usual[name] != x}
            found |= {**changes, ablation.OPTIONS: {**found.get(ablation.OPTIONS, {}), **changed}}
        return {**found, ablation.OPTIONS: {**usual, **found[ablation.OPTIONS]}}

    assert settings(preset, **undo()) == settings("popgym-fair")
    assert all(settings(preset, **undo(but=name)) != settings("popgym-fair") for name in undone)


def test_records_fit_their_studies():
    """What was measured is not repeated, and a change of a preset that would make records unusable is noticed."""
    folder = Path(__file__).parents[2] / "docs" / "results"
    memories = sorted({*MEMORIES, *BEST})
    studies = [make_study("popgym-table", protocol=protocol, memories=memories, seeds=5)
               for protocol in ("fair", "release", "best", "gae")]
    studies += [make_study("popgym-ablation", protocol=protocol, tasks=TASKS, memories=BEST, seeds=5)
                for protocol in ("best", "gae", "best-small", "gae-small")]
    found = {task.name: task for study in studies for task in study.runs if (folder / f"{task.name}.json").exists()}
    for preset, own in (("fair", 10), ("release", 10), ("best", 0), ("gae", 0)):      # runs with settings of their own, in no study
        names = {path.stem for path in folder.glob(f"popgym-{preset}-*.json")}
        assert len(names - set(found)) <= own, sorted(names - set(found))
    misfits = {name: misfit(read_record(folder / f"{name}.json"), task.config()) for name, task in found.items()}
    assert misfits == dict.fromkeys(found, "")


def test_a_record_is_older_than_a_setting():
    """The setting's default means what was done before it existed."""
    record = {"config": to_dict(make_config())}
    del record["config"]["joint_previous_action"], record["config"]["ppo"]["actor_gamma"]
    assert misfit(record, make_config()) == ""
    assert misfit(record, make_config(joint_previous_action=True)) == "joint_previous_action: False there, True here"
    assert misfit(record, make_config(actor_gamma=0.0)) == "ppo.actor_gamma: None there, 0.0 here"


def test_records_with_other_options_do_not_fit():
    def config(**more):
        return make_config(env="popgym/RepeatPreviousEasy", memory="shm", **more)

    def fits(there, here, **record):
        return misfit({"config": json.loads(json.dumps(to_dict(config(**there)))), **record}, config(**here))

    options, rows = {"env_options": {"k": 6}}, {"memory_options": {"row_mode": "step"}}
    assert fits({}, {}) == fits(options, options) == fits(rows, rows) == ""
    assert fits(options, {}) == "env_options.k: 6 there, not given here"
    assert fits({}, options) == "env_options.k: not given there, 6 here"
    assert fits(rows, {"memory_options": {}}) == "network.memory_options.row_mode: 'step' there, 'first' here"
    assert fits({"memory_options": {}}, rows) == "network.memory_options.row_mode: 'first' there, 'step' here"
    assert fits({"memory_options": {"row_mode": "first"}}, {"memory_options": {}}) == ""      # its default
    assert fits({"memory_options": {"clip": None}}, {"memory_options": {}}) == "network.memory_options.clip: None there, 100000000.0 here"
    few = {"eval_every": 1000, "eval_episodes": 2}
    assert fits(few, {**few, "eval_episodes": 9}) == ""
    assert fits(few, {**few, "eval_episodes": 9}, eval={"steps": [1000]}) == "eval_episodes: 2 there, 9 here"
