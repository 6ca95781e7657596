"""Checkpoints: what stands in one, how it is written and read, and how a run takes it up again."""
