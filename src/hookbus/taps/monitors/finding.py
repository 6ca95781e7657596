"""What a guard has found, and the error that says so."""

from __future__ import annotations

from dataclasses import dataclass

from hookbus.taps import leaves
from hookbus.taps.errors import TapError

_SAID = {
    "forward": "{where} gives {what}, and was given finite values only",
    "input": "{where} was given values that are not finite ({what} in what it gives): they came with the batch, or from code "
    "that no tapped module contains",
    "loss": "the loss is not finite, though what every tapped module gave was: look at the loss function and the targets",
    "backward": "the backward pass of {where} turns finite gradients into others",
    "gradient": "the gradient of the output of {where} is not finite when it comes: look at the loss, and what follows "
    "the module",
    "parameters": "gradients are not finite before the optimizer steps, of {where}",
}


@dataclass(frozen=True)
class Finding:
    """Where values that are not finite come from.

    Attributes:
        kind: ``forward``: a module makes them; ``input``: they come from outside; ``loss``; ``backward``: the backward
            pass of a module makes them; ``gradient``: they come with the gradient of the loss; ``parameters``: nothing
            but the parameters' gradients shows them.
        name: dotted name of the module, ``""`` for the network itself; of the parameters.
        path: which tensor of its output, or of its arguments in a backward pass; see :mod:`hookbus.taps.leaves`.
        call_index: number of the call of the module in its forward pass.
        step, epoch, phase: when.
        batch_idx, dataloader_idx: of the batch; None outside of any trainer.
        what: the values, in words: ``3 NaN, 1 inf of 12``; empty if they have not been counted.
        note: what else is known.
        rank: of the process in which they came up; None if there is one only.
    """

    kind: str
    name: str
    path: leaves.Path = ()
    call_index: int = 0
    step: int = 0
    epoch: int = 0
    phase: str = "train"
    batch_idx: int | None = None
    dataloader_idx: int | None = None
    what: str = ""
    note: str = ""
    rank: int | None = None

    def __str__(self) -> str:
        where = f"{self.name!r}{leaves.spelled(self.path)}" if self.name else f"the network{leaves.spelled(self.path)}"
        where += f" (call {self.call_index})" if self.call_index else ""
        text = _SAID[self.kind].format(where=where, what=self.what or "values that are not finite")
        batch = "" if self.batch_idx is None else f", batch {self.batch_idx}"
        batch += f" of dataloader {self.dataloader_idx}" if self.dataloader_idx else ""
        rank = "" if self.rank is None else f", rank {self.rank}"
        return f"{text}{f' ({self.note})' if self.note else ''}; {self.phase} step {self.step}, epoch {self.epoch}{batch}{rank}"


class NonFiniteError(TapError, FloatingPointError):
    """A value is NaN or infinite.

    Args:
        finding: what and where.
    """

    def __init__(self, finding: Finding) -> None:
        hint = (
            f"; if that is meant, allow it: NaNGuard(allow={{{finding.name!r}: …}})"
            if finding.kind == "forward"
            else ""
        )
        super().__init__(f"{finding}{hint}")
        self.finding = finding

    def __reduce__(self) -> tuple[type[NonFiniteError], tuple[Finding]]:
        return (NonFiniteError, (self.finding,))
