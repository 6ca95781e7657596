"""Private names of Lightning's trainer that packages use all the same, as thin views of hookbus's own parts.

One class for each of Lightning's "connectors", with only what was seen in use in published packages. In code of your
own use what stands behind them: ``strategy``, ``bus``, ``callbacks``, ``save_checkpoint``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookbus.checkpoint.dump import dump
from hookbus.trainer import roster


class _View:
    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer


class AcceleratorView(_View):
    """``trainer._accelerator_connector``."""

    @property
    def is_distributed(self) -> bool:
        """Whether several processes train together."""
        return int(self._trainer.world_size) > 1

    @property
    def strategy(self) -> Any:
        """The strategy."""
        return self._trainer.strategy

    @property
    def use_distributed_sampler(self) -> bool:
        """Whether samplers are replaced by distributed ones."""
        return bool(self._trainer.settings.use_distributed_sampler)


class CheckpointView(_View):
    """``trainer._checkpoint_connector``."""

    def dump_checkpoint(self, weights_only: bool = False) -> dict[str, Any]:
        """The dictionary that ``save_checkpoint`` would write."""
        return dump(self._trainer, weights_only=weights_only)


class CallbackView(_View):
    """``trainer._callback_connector``."""

    @staticmethod
    def _reorder_callbacks(callbacks: Sequence[Any]) -> list[Any]:
        """Those that must come first (tuners), the others, those that save."""
        return roster.ordered(callbacks)

    def _attach_model_callbacks(self) -> None:
        """Ask ``configure_callbacks``, and put what it gives into the list."""
        self._trainer._participants.attach_model_callbacks()


class LoggerView(_View):
    """``trainer._logger_connector``."""

    @property
    def should_update_logs(self) -> bool:
        """Whether the loggers are called after the current training batch; outside of training True."""
        trainer = self._trainer
        every = trainer.log_every_n_steps
        if every == 0 or not trainer.training:
            return bool(every)
        return bool((trainer.progress.logging_step + 1) % every == 0 or trainer.should_stop)


class SignalView(_View):
    """``trainer._signal_connector``."""

    @property
    def received_sigterm(self) -> bool:
        """Whether the process was asked to end."""
        return bool(self._trainer.received_sigterm)
