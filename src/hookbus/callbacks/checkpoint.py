"""``Checkpoint``: the base class by which a trainer recognises callbacks that save."""

from __future__ import annotations

from typing import ClassVar

from hookbus.callback import Callback


class Checkpoint(Callback):
    """Base class of callbacks that save checkpoints, also of your own.

    The trainer puts them at the end of ``trainer.callbacks``, so that what they save holds the state which all other
    callbacks have after the same event.
    """

    role: ClassVar[str] = "mutator"  # it observes, but a state that could not be saved must not be passed over
    placement: ClassVar[str] = "last"
