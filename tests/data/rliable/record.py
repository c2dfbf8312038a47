"""Write recorded.json: what rliable computes for a few fixed arrays. tests/test_statistics_rliable.py compares hadamem with it.

    python -m venv /tmp/rliable && /tmp/rliable/bin/pip install rliable==1.2.0 'pandas<3'
    /tmp/rliable/bin/python tests/data/rliable/record.py
"""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import numpy as np
from rliable import library, metrics

REPS = 50_000
THRESHOLDS = [-1.0, 0.0, 0.25, 0.5, 0.75, 1.0, 3.0]


def arrays() -> dict[str, np.ndarray]:
    """Scores [seeds, tasks]: odd sizes, an outlier, many ties, few seeds, one task, one value."""
    rng = np.random.default_rng(2024)
    outlier = rng.normal(0.5, 0.3, (10, 4)).round(4)
    outlier[3, 1] = 40.0
    return {
        "normal": rng.normal(0.4, 0.4, (5, 7)).round(4), "outlier": outlier, "ties": rng.integers(0, 4, (8, 3)) / 4,
        "few": rng.uniform(-1, 1, (3, 5)).round(4), "one task": rng.normal(0, 1, (9, 1)).round(4), "equal": np.full((4, 2), 0.5),
    }


def pairs() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """X and Y [seeds, tasks], with different numbers of seeds, ties, or the same runs."""
    rng = np.random.default_rng(2025)
    x = rng.normal(0.5, 0.4, (6, 5)).round(4)
    return {
        "better": (x, rng.normal(0.2, 0.4, (9, 5)).round(4)), "ties": (rng.integers(0, 5, (7, 4)) / 4, rng.integers(0, 4, (5, 4)) / 4),
        "same": (x, x), "always": (x + 10, x),
    }


def record() -> dict:
    """Point estimates and 95 % percentile intervals."""
    np.random.seed(0)      # noqa: NPY002  # rliable draws from the global generator
    found = {"rliable": importlib.metadata.version("rliable"), "reps": REPS, "thresholds": THRESHOLDS, "scores": {}, "pairs": {}}
    for name, scores in arrays().items():
        (iqm, interval), (mean, mean_interval) = (estimate(scores, f) for f in (metrics.aggregate_iqm, metrics.aggregate_mean))
        profiles, bands = library.create_performance_profile({"x": scores}, np.array(THRESHOLDS), reps=2000)
        found["scores"][name] = {
            "scores": scores.tolist(), "iqm": iqm, "iqm interval": interval, "mean": mean, "mean interval": mean_interval,
            "profile": profiles["x"].tolist(), "band": bands["x"].tolist(),
        }
    for name, (x, y) in pairs().items():
        value, interval = estimate((x, y), metrics.probability_of_improvement, reps=5000)
        found["pairs"][name] = {"x": x.tolist(), "y": y.tolist(), "probability": value, "interval": interval}
    return found


def estimate(scores, metric, reps: int = REPS) -> tuple[float, list[float]]:
    points, intervals = library.get_interval_estimates({"x": scores}, lambda *parts: np.array([metric(*parts)]), reps=reps)
    return float(points["x"][0]), intervals["x"][:, 0].tolist()


if __name__ == "__main__":
    path = Path(__file__).with_name("recorded.json")
    path.write_text(json.dumps(record(), indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")
