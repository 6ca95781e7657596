"""Monitors: plugins on top of taps that watch a training, or any network, and cannot disturb it.

:class:`ActivationStats`, :class:`GradientStats`, :class:`DeadNeurons` and :class:`LayerTimer` measure every N-th step, log,
and keep a table of their last results; :class:`NaNGuard` looks for the module that gives NaN or infinity. They go to
``Trainer(callbacks=[…])``, to ``Trainer(plugins=[…])``, or to ``hookbus.tapping(model, …)``.
"""

from hookbus.taps.monitors.activation_row import ActivationRow
from hookbus.taps.monitors.activation_stats import ActivationStats
from hookbus.taps.monitors.dead_neurons import DeadNeurons, DeadRow
from hookbus.taps.monitors.finding import Finding, NonFiniteError
from hookbus.taps.monitors.gradient_stats import GradientStats
from hookbus.taps.monitors.gradient_step import GradientRow
from hookbus.taps.monitors.layer_timer import LayerTimer
from hookbus.taps.monitors.monitor import Monitor
from hookbus.taps.monitors.nan_guard import NaNGuard
from hookbus.taps.monitors.table import Table
from hookbus.taps.monitors.timed_pass import LayerRow

__all__ = [
    "ActivationRow",
    "ActivationStats",
    "DeadNeurons",
    "DeadRow",
    "Finding",
    "GradientRow",
    "GradientStats",
    "LayerRow",
    "LayerTimer",
    "Monitor",
    "NaNGuard",
    "NonFiniteError",
    "Table",
]
