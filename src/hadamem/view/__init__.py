"""What people look at: the progress of a run, learning curves, episodes."""
