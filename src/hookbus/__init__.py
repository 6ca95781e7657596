"""PyTorch training as an event bus: every lifecycle point is a pluggy hook."""
