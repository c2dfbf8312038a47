"""What a run is on disk: settings, folder, checkpoints, metrics, logs."""
