"""What anybody may ask of the loop, from any hook, and where the loop honours it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """One wish: what (``skip_batch``, ``stop_epoch``, …), why, and at which step it was uttered."""

    what: str
    reason: str
    step: int


class Control:
    """Requests to the training loop.

    Each may be made from any hook; the loop honours it at a fixed point and then forgets it, but for ``stop``, which
    holds to the end of the run. The reasons stay in ``history``.

    Attributes:
        history: all requests of this run, in order.
        step: the current optimiser step; kept by the loop.
    """

    def __init__(self) -> None:
        self.history: list[Request] = []
        self.step = 0
        self.reset()

    def reset(self) -> None:
        """Forget all pending requests, at the start of a run."""
        self.history.clear()
        self.should_stop = False
        self.pending = False
        self._skip = self._stop_epoch = self._evaluate = self._save = False
        self._for_now = False

    def skip_batch(self, reason: str = "") -> None:
        """Do not train the current batch: honoured after ``on_train_batch_start``; its ``_end`` is left out too."""
        self._note("skip_batch", reason)
        self._skip = True

    def stop_epoch(self, reason: str = "") -> None:
        """Make the current batch the last of its epoch; schedulers and a validation due at the end still run."""
        self._note("stop_epoch", reason)
        self._stop_epoch = True

    def stop(self, reason: str = "", *, for_good: bool = True) -> None:
        """End the training after the current batch, as ``trainer.should_stop = True`` does; minimum limits hold.

        Args:
            reason: why, for those who read ``history``.
            for_good: whether a run that resumes from a later checkpoint stays stopped. False for what has nothing to do
                with the training itself, such as a time limit or the preemption of a machine.
        """
        self._note("stop", reason)
        self._for_now = not for_good and (self._for_now or not self.should_stop)
        self.should_stop = True

    def evaluate(self, reason: str = "") -> None:
        """Run a validation after the current batch."""
        self._note("evaluate", reason)
        self._evaluate = True

    def save(self, reason: str = "") -> None:
        """Save a checkpoint after the current batch, and after the validation if one is due."""
        self._note("save", reason)
        self._save = True

    def state_dict(self) -> dict[str, bool]:
        """What was asked for and is not done yet, or holds to the end; a save is being done right now."""
        return {
            "should_stop": self.should_stop and not self._for_now,
            "skip_batch": self._skip,
            "stop_epoch": self._stop_epoch,
            "evaluate": self._evaluate,
        }

    def load_state_dict(self, state: dict[str, bool], *, lift_stop: bool = False) -> None:
        """Take over saved requests.

        Args:
            state: of :meth:`state_dict`.
            lift_stop: forget that the run was stopped.
        """
        self.should_stop = self.should_stop or (state["should_stop"] and not lift_stop)
        self._skip, self._stop_epoch = state["skip_batch"], state["stop_epoch"]
        self._evaluate = state["evaluate"]
        self.pending = self._skip or self._stop_epoch or self._evaluate

    def look(self) -> None:
        """Let the loop look, after the current batch, at what is not asked for here: a checkpoint that was written."""
        self.pending = True

    def take_skip(self) -> bool:
        """Whether the current batch is to be skipped; forgets the request."""
        skip, self._skip = self._skip, False
        return skip

    def take_stop_epoch(self) -> bool:
        """Whether the epoch is to end with the current batch; forgets the request."""
        stop, self._stop_epoch = self._stop_epoch, False
        return stop

    def take_evaluate(self) -> bool:
        """Whether a validation was asked for; forgets the request."""
        evaluate, self._evaluate = self._evaluate, False
        return evaluate

    def take_save(self) -> bool:
        """Whether a checkpoint was asked for; forgets the request."""
        save, self._save = self._save, False
        return save

    def _note(self, what: str, reason: str) -> None:
        self.history.append(Request(what, reason, self.step))
        self.pending = True
