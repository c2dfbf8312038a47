"""Statistics of runs: scores of one run, aggregates over seeds and tasks with confidence intervals, comparisons, learning curves.

Needs numpy and scipy only; scipy is imported at the first use. docs/statistics.md says when to use which.
"""

from .bootstrap import bootstrap_interval
from .comparisons import Estimate, Profile, performance_profile, probability_of_improvement
from .curves import Band, band, moving_mean
from .intervals import mean_interval, mean_std, rate_interval
from .runs import best_score, final_score, series
from .scores import iqm, task_mean

__all__ = ["Band", "Estimate", "Profile", "band", "best_score", "bootstrap_interval", "final_score", "iqm", "mean_interval", "mean_std",
           "moving_mean", "performance_profile", "probability_of_improvement", "rate_interval", "series", "task_mean"]
