"""Training loop, learning-rate schedule, checkpoints and logs."""
