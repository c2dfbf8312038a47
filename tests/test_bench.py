"""The benchmark: that what it reports is what it measured. Speeds themselves are not tested."""

import json

import pytest
import torch

import hadamem as hm
from hadamem.bench import memory, plots, tables, timing, zoo
from hadamem.bench.memory import Bench, Case, Contender, Result, Settings
from hadamem.bench.timing import Timing

CPU = torch.device("cpu")
TINY = {
    "device": "cpu", "batch": 2, "time": [3, 6], "memory_size": [4, 8], "input_size": 5, "peer_size": 6, "repeats": 2,
}


def result(model, seconds, direction="both", **changes):
    values = {"part": "op", "B": 8, "T": 64, "H": 32, "peak_bytes": None, **changes}
    same = Timing(seconds, seconds, seconds, seconds, 3, None)
    return Result(model=model, direction=direction, seconds=same, **values)


@pytest.mark.slow
def test_tiny_grid(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    results = memory.run(Settings.make(**TINY, out=str(tmp_path)))
    out = capsys.readouterr().out
    saved = json.loads((tmp_path / "results.json").read_text())
    assert len(saved["results"]) == len(results)
    assert {r.part for r in results} == {"op", "module", "step"}
    assert {"shm[reference]", "shm[scan]", "gru", "lstm"} <= {r.model for r in results}
    assert all((r.seconds is None) == (r.skipped is not None) for r in results)
    assert all(r.seconds is not None for r in results if r.model in ("shm[reference]", "shm[scan]", "gru", "lstm"))
    assert not any(r.model == "shm[triton]" for r in results)
    assert {"torch", "threads", "commit", "cpu", "load"} <= set(saved["machine"])
    assert not list(tmp_path.glob("*.part"))
    assert (tmp_path / "op_time_vs_T.png").stat().st_size > 5000
    assert (tmp_path / "module_time_vs_H.png").exists()
    assert "1.00x" in out
    assert "peak MiB" in out


def test_the_interpreter_is_never_timed(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ValueError, match="interpreter"):
        Settings.make(**TINY, backends=["triton"])
    names = [c.model for c in memory.contenders(Case("op", 1, 2, 3), Settings.make(**TINY), CPU)]
    assert "shm[triton]" not in names


def test_peers_are_timed_anew_in_every_case():
    """A GRU timed once and reused set one busy minute of the machine against all later cases."""
    bench = Bench(Settings.make(**{**TINY, "backends": "reference", "what": "op"}))
    for case in bench.cases():
        bench.run_case(case)
    timings = [r.seconds for r in bench.results if r.model == "gru"]
    assert len(timings) == 8   # two T, two H, two directions
    assert len({t.median for t in timings}) > 4


def test_contenders_take_turns():
    order = []
    calls = {name: (lambda i, name=name: order.append(name)) for name in "ab"}
    timing.measure(calls, CPU, repeats=10, limit_seconds=1.0)
    timed = order[4:]   # after warm-up
    assert timed.index("b") < len(timed) - 1 - timed[::-1].index("a")   # b's first turn comes before a's last


def test_a_call_that_fails_leaves_the_others():
    def fail(i):
        raise RuntimeError("no such kernel")

    found = timing.measure({"bad": fail, "good": lambda i: None}, CPU, 3, 0.1)
    assert isinstance(found["bad"], RuntimeError)
    assert found["good"].runs == 3


def test_measure_times_what_it_says():
    import time

    found = timing.measure({"sleep": lambda i: time.sleep(0.02)}, CPU, 5, 1.0)["sleep"]
    assert 0.019 < found.best <= found.low <= found.median <= found.high
    assert found.runs == 5


def test_peak_memory_sees_an_allocation():
    if timing.peak_memory(lambda i: None, CPU) is None:
        pytest.skip("peak memory cannot be measured here")
    peak = timing.peak_memory(lambda i: torch.ones(64 << 18).sum(), CPU)   # 64 MiB
    assert 56 < peak / 2**20 < 90


def test_speedup_compares_within_a_case_only():
    results = [result("shm[reference]", 2.0), result("shm[cpu]", 0.5), result("gru", 9.0, T=128)]
    assert memory.speedup(results[1], results, memory.LOOP) == 4.0
    assert memory.speedup(results[1], results, memory.GRU) is None


def test_skips_what_does_not_fit():
    bench = Bench(Settings.make(**TINY, limit_seconds=0.5))
    case = Case("op", 8, 640, 32)
    loop = Contender("shm[reference]", dict, {"forward": 1.0, "both": 1.0})
    assert bench._too_big(case, loop, "both") is None
    bench.results = [result("shm[reference]", 0.5, others=0.5)]
    assert bench._too_big(case, loop, "both") is None                        # a disturbed timing predicts nothing
    bench.results = [result("shm[reference]", 0.5, others=0.0)]
    assert "about 5.0 s" in bench._too_big(case, loop, "both")
    assert "GiB" in bench._too_big(case, Contender("shm[scan]", dict, {"both": 1e15}), "both")
    assert bench._too_big(case, Contender("gru", dict), "both") is None      # every ratio needs it


def test_disturbance_is_said():
    assert tables.disturbed([result("gru", 1.0, others=0.02)]) == []
    assert "50%" in tables.disturbed([result("gru", 1.0, others=0.5)])[0]


def test_no_matplotlib_is_no_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda name: None)
    assert plots.draw([result("gru", 1.0)], tmp_path, "") == []
    assert "matplotlib" in capsys.readouterr().out


@pytest.mark.gpu
def test_on_a_gpu(tmp_path):
    results = memory.run(Settings.make(**{**TINY, "device": "cuda", "plots": False}, out=str(tmp_path)))
    timed = [r for r in results if r.seconds is not None]
    assert {"shm[triton]", "gru"} <= {r.model for r in timed}
    assert all(r.seconds.wall > 0 for r in timed)
    assert all(r.peak_bytes > 0 for r in timed if r.part != "step")


# --- bench memory --all


def test_all_memories_in_two_tables(tmp_path, capsys):
    found = zoo.run(zoo.Settings(device="cpu", batch=2, time=5, acting=3, input_size=6, output_size=4, state=64, peer_size=8, repeats=1,
                                  limit_seconds=1e-3, out=str(tmp_path)))
    out = capsys.readouterr().out
    paper, equal = found.values()
    assert {row.memory for row in paper} == {*hm.list_memories(), zoo.PEER} - {"shm-paper", "shm-release"}
    assert {row.memory for row in equal} == {row.memory for row in paper} - {"none"}
    for row in (*paper, *equal):
        assert not row.note
        assert set(row.times) == ({"whole", "act"} if row.memory == zoo.PEER else {"whole", "resets", "act"})
        assert row.memory in out
    assert all(row.state == hm.make_memory(row.memory, 6, 4, **row.options).state_size for row in paper if row.memory != zoo.PEER)
    saved = json.loads((tmp_path / "results.json").read_text())
    assert [len(rows) for rows in saved["tables"].values()] == [len(paper), len(equal)]
    assert (tmp_path / "tables.md").read_text().count("| shm |") == 2


def test_equal_state_is_as_near_as_a_size_can_come():
    found = zoo.equal_sizes(hm.list_memories(), zoo.Settings(state=1000))
    assert "none" not in found
    for name, options in found.items():
        fitted = zoo.FITTED.get(name, "memory_size")

        def distance(size, name=name, options=options, fitted=fitted):
            return abs(hm.make_memory(name, 64, 64, **{**options, fitted: size}).state_size - 1000)

        assert distance(options[fitted]) <= min(distance(options[fitted] - 1), distance(options[fitted] + 1)), name


def test_a_memory_that_fails_says_so_and_the_others_go_on(tmp_path):
    class Broken(hm.NoMemory):
        def forward(self, x, state=None, reset=None):
            raise RuntimeError("out of order")

    hm.register_memory("broken", Broken)
    try:
        settings = zoo.Settings(device="cpu", batch=1, time=3, only=("broken", "none"), repeats=1, out=str(tmp_path))
        broken, none, _ = zoo.Contest(settings, zoo.paper_sizes(["broken", "none"])).run()
    finally:
        hm.memory.MEMORIES.pop("broken")
    assert "out of order" in broken.note
    assert not broken.times
    assert set(none.times) == {"whole", "resets", "act"}
