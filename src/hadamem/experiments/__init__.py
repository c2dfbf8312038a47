"""Studies: every table and figure of the paper, and comparisons of your own, as data that a launcher runs.

    study = grid("mine", envs=["CartPole-v1"], memories=["shm", "gru"], seeds=3, steps=100_000)
    run_study(study, "studies/mine")
    results = read_results("studies/mine")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _lazy

if TYPE_CHECKING:
    from .catalog import PAPER, make_study
    from .comparing import compare_runs
    from .own import grid, read_study
    from .reporting import build_report
    from .results import Results, read_results
    from .running import run_study
    from .study import MeasureTask, Study, TrainTask
    from .sweep import Sweep, make_sweep, read_sweep
    from .sweeping import run_sweep

__getattr__, __dir__ = _lazy.attach(__name__, {
    "PAPER": "catalog", "make_study": "catalog", "compare_runs": "comparing", "grid": "own", "read_study": "own",
    "build_report": "reporting", "Results": "results", "read_results": "results", "run_study": "running",
    "MeasureTask": "study", "Study": "study", "TrainTask": "study",
    "Sweep": "sweep", "make_sweep": "sweep", "read_sweep": "sweep", "run_sweep": "sweeping",
})

__all__ = ["PAPER", "MeasureTask", "Results", "Study", "Sweep", "TrainTask", "build_report", "compare_runs", "grid", "make_study",
           "make_sweep", "read_results", "read_study", "read_sweep", "run_study", "run_sweep"]
