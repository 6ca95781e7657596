"""``NumberedCallback``: the base class of callbacks with state of which a trainer may have several."""

from __future__ import annotations

from hookbus.callback import Callback


class NumberedCallback(Callback):
    """A callback whose instances keep their states apart by their place in ``trainer.callbacks``.

    Attributes:
        twin: how many callbacks with otherwise the same ``state_key`` stand before this one; set by the trainer.
    """

    twin = 0

    @property
    def state_key(self) -> str:
        """The class's name; from the second callback of the class on with a number."""
        return f"{super().state_key}#{self.twin + 1}" if self.twin else super().state_key
