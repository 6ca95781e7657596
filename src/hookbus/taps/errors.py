"""What can go wrong with taps: a selection that means nothing, an edit that does not fit, a capture that is full."""

from __future__ import annotations


class TapError(RuntimeError):
    """A tap was used in a way that cannot work; the message names the plugin and the module of the network."""


class SelectionError(TapError, LookupError):
    """A selection matches no module that is ever called; the message suggests names that exist."""


class EditError(TapError, ValueError):
    """What an editing tap returned does not fit in the place of what it was given."""


class CaptureFullError(TapError, MemoryError):
    """A capture with ``on_full="raise"`` has no room for another record."""


class StaleCaptureError(TapError):
    """A capture with ``clone="never"`` was overwritten by an in-place operation after it was taken."""


class TapWarning(UserWarning):
    """Something about taps that needs attention but does not stop anything: a selection that never fired, a late tap."""
