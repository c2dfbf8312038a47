"""What a run is on disk: settings, folder, checkpoints, metrics, logs. Names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _lazy

if TYPE_CHECKING:
    from .config import TrainConfig, make_config
    from .presets import PRESETS

__getattr__, __dir__ = _lazy.attach(__name__, {"PRESETS": "presets", "TrainConfig": "config", "make_config": "config"})

__all__ = ["PRESETS", "TrainConfig", "make_config"]
