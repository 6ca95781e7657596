"""The bus: registration, order, compiled dispatch, discovery and configuration of plugins. Knows no torch."""

from hookbus.bus.bus import Bus
from hookbus.bus.dispatch import blame
from hookbus.bus.errors import (
    DuplicateStateKeyError,
    EarlierError,
    OrderCycleError,
    RegistrationError,
    UnknownHookError,
    add_note,
    raise_first,
)
from hookbus.bus.order import Position
from hookbus.bus.registration import Registration
from hookbus.bus.timing import Timing

__all__ = [
    "Bus",
    "DuplicateStateKeyError",
    "EarlierError",
    "OrderCycleError",
    "Position",
    "Registration",
    "RegistrationError",
    "Timing",
    "UnknownHookError",
    "add_note",
    "blame",
    "raise_first",
]
