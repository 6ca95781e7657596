"""What is wrong with a checkpoint, as errors that name the file."""

from __future__ import annotations

import pickle


class CheckpointError(ValueError):
    """A file cannot be used as a checkpoint: it is something else, of a newer format, or does not fit the model."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is not whole: the file is empty or cut off, or some of its bytes are not those that were written."""


class UnsafeCheckpointError(CheckpointError, pickle.UnpicklingError):
    """A checkpoint names classes or functions that are not plain data; nothing of them was called."""
