"""``NaNGuard``: names the module from which NaN or infinity comes, when it comes."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from hookbus.markers import hookimpl
from hookbus.taps import leaves
from hookbus.taps.errors import TapWarning
from hookbus.taps.event import Moment, TapEvent
from hookbus.taps.monitors import processes
from hookbus.taps.monitors.finding import Finding, NonFiniteError
from hookbus.taps.monitors.finite import KINDS, Flag, described, is_bad, read_flags, shares_memory
from hookbus.taps.monitors.monitor import Monitor, checked_choice
from hookbus.taps.monitors.origin import Backward, Call, Forward
from hookbus.taps.select import compiled_pattern
from hookbus.taps.selection import Which
from hookbus.taps.trampoline import current_backward

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from hookbus.hookspecs import types as pl

#: So many findings are kept.
_MOST_FINDINGS = 100


class NaNGuard(Monitor):
    """Looks for NaN and infinity in what modules give, in the loss, and in gradients.

    The module that is named is the one that was given finite values and gives others, not those that these reach after it.
    If the code of a module between those that it calls is to blame, it is that module. On a CPU a module is judged as it
    returns; on a device all of them when the forward pass is over, before the backward pass, with one wait.

    Gradients are not judged under a Trainer's gradient scaler, to which infinite ones are a part of the search for the scale.
    In a loop by hand with a scaler say ``gradients=False``.

    Args:
        modules: which modules; by default all. With a selection the code between the selected ones cannot be told from
            what comes before.
        every, phases, **selection: see :class:`hookbus.taps.monitors.Monitor`; all phases, sanity check included.
        action: ``raise`` :class:`NonFiniteError`; ``warn``, once for each origin; or ``stop`` the training after the step,
            with a warning, which saves neither the weights from that step nor a loop by hand from going on.
        gradients: whether to look at gradients, too.
        allow: modules that may give, or be given, values that are not finite: names or patterns; or a mapping from those
            to which values they may: ``nan``, ``inf``, ``-inf``, or several: ``{"decoder.**": "-inf"}``. That a module is
            *given* a mask of 0 and ``-inf`` is always allowed.

    Attributes:
        findings: what has been found, at most 100.

    Raises:
        TypeError, ValueError: an argument is not known, or out of range.
        NonFiniteError: in a run, with ``action="raise"``.

    Example:
        >>> import torch
        >>> from hookbus import tapping
        >>> from hookbus.taps.monitors import NaNGuard, NonFiniteError
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softplus(), torch.nn.Linear(2, 2))
        >>> _ = model[0].weight.data.fill_(float("inf"))
        >>> with tapping(model, NaNGuard()):
        ...     try:
        ...         _ = model(torch.ones(1, 2))
        ...     except NonFiniteError as error:
        ...         print(error.finding)
        '0' gives 2 inf of 2, and was given finite values only (its weight is not finite); train step 0, epoch 0
    """

    def __init__(
        self,
        modules: Which | Collection[Which] | None = None,
        *,
        every: int | None = 1,
        phases: str | Collection[str] | None = None,
        action: Literal["raise", "warn", "stop"] = "raise",
        gradients: bool = True,
        allow: str | Collection[str] | Mapping[str, str | Collection[str]] = (),
        **selection: Any,
    ) -> None:
        super().__init__(modules, every=every, phases=phases, prefix="nan_guard", **selection)
        checked_choice("action", action, ("raise", "warn", "stop"))
        self.action = action
        self.gradients = gradients
        self.role = "monitor" if action == "warn" else "mutator"
        self._allow = _checked_allowance(allow)
        self._partial = modules is not None or bool({"types", "where"} & selection.keys())
        if gradients:
            self.on_module_grad_output = _Gradients(self, of_output=True).hear
            self.on_module_grad_input = _Gradients(self, of_output=False).hear
        self.findings: list[Finding] = []
        self.reset()

    def reset(self) -> None:
        """Forget what has been found."""
        self.findings = []
        self._said: set[tuple[str, str]] = set()
        self._allowed: dict[str, frozenset[str]] = {}
        self._batch: tuple[int | None, int | None] = (None, None)
        self._stop = False
        self._forget_pass()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Begin anew."""
        super().setup(trainer, pl_module, stage)
        self._stop = False
        self._forget_pass()

    def _forget_pass(self) -> None:
        self._moment: Moment | None = None
        self._forward = Forward()
        self._pending: list[Call] = []
        self._known: dict[int, tuple[weakref.ref[Tensor], int, Flag]] = {}
        self._excused: dict[int, tuple[weakref.ref[Tensor], frozenset[str]]] = {}
        self._found = False
        self._backward = Backward()
        self._tasks: set[int] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_known": {}, "_excused": {}, "_pending": []}

    # -- forward pass ------------------------------------------------------------------------------------------------

    @hookimpl
    def on_module_forward(self, event: TapEvent) -> None:
        """Judge a call, or note it down to be judged when the pass is over."""
        if event.moment is not self._moment:
            self._end_pass()
            self._forget_pass()
            self._moment = event.moment
        allowed = self._allowed_of(event)
        call = Call(event.name, event.call_index, module=event.module)
        given: list[Tensor] | None = None
        for path, tensor in leaves.tensors(event._output):
            flag = self._flag(tensor, allowed)
            if allowed:
                self._excused[id(tensor)] = (weakref.ref(tensor), allowed)
            if flag is False:
                continue
            if given is None:
                given = [one for _, one in leaves.tensors([list(event._args), dict(event._kwargs)])]
            flag = self._unless_excused(flag, tensor, given, allowed)
            if flag is not False:
                call.outputs.append((path, flag))
                if flag is True and not call.what:
                    call.what = described(tensor)
        if call.outputs and given is not None:
            call.unseen = any(_written_over(one, event._output) for one in given)
            call.inputs = [self._flag(one, allowed | self._excuse_of(one), masks=True) for one in given]
            self._pending.append(call)
            if all(isinstance(flag, bool) for one in self._pending for flag in one.flags):
                self._settle()
        if not event.name and not self._partial:
            self._end_pass()

    def _flag(self, tensor: Tensor, allowed: frozenset[str], *, masks: bool = False) -> Flag:
        """Whether a tensor is bad; remembered for the modules that pass it on."""
        version = -1 if tensor.is_inference() else tensor._version
        if not allowed and version >= 0:
            known = self._known.get(id(tensor))
            if known is not None and known[0]() is tensor and known[1] == version:
                return known[2]
        flag = is_bad(tensor, allowed, masks=masks)
        if not allowed and not masks:
            self._known[id(tensor)] = (weakref.ref(tensor), version, flag)
        return flag

    def _excuse_of(self, tensor: Tensor) -> frozenset[str]:
        """What a tensor may hold because a module that may give it has given it."""
        reference, kinds = self._excused.get(id(tensor), (None, frozenset[str]()))
        return kinds if reference is not None and reference() is tensor else frozenset()

    def _unless_excused(self, flag: Flag, tensor: Tensor, given: list[Tensor], allowed: frozenset[str]) -> Flag:
        """Judge an output more leniently if it has been allowed before, or is an argument that is passed on."""
        excuse = self._excuse_of(tensor)
        for one in given:
            if shares_memory(one, tensor):
                excuse |= self._excuse_of(one)
        if excuse:
            self._excused[id(tensor)] = (weakref.ref(tensor), excuse)
        passed_on = any(one is tensor for one in given)
        return is_bad(tensor, allowed | excuse, masks=passed_on) if excuse or passed_on else flag

    def _judge(self, call: Call) -> None:
        blamed = self._forward.judge(call)
        if blamed is not None:
            self._find("forward", blamed)
        elif self._partial and self._forward.came_into is not None and not self._found:
            self._find("input", self._forward.came_into)

    def _end_pass(self, loss: Flag = False) -> bool:
        """All calls are over: judge those that wait, and what came from outside; whether the loss is bad."""
        bad_loss = self._settle(loss)
        came_into, self._forward.came_into = self._forward.came_into, None
        if came_into is not None and not self._partial:
            self._find("input", came_into)
        return bad_loss

    def _settle(self, loss: Flag = False) -> bool:
        """Judge the calls that wait, in their order; whether the loss is bad."""
        pending, self._pending = self._pending, []
        flags = [flag for call in pending for flag in call.flags]
        read = iter(read_flags([*flags, loss]))
        for call in pending:
            call.settle(read)
        for call in pending:
            self._judge(call)
        return next(read)

    def _allowed_of(self, event: TapEvent) -> frozenset[str]:
        if not self._allow:
            return frozenset()
        found = self._allowed.get(event.name)
        if found is None:
            names = (event.name, *event.aliases)
            words = [kinds for fits, kinds in self._allow if any(fits(name) for name in names)]
            found = self._allowed[event.name] = frozenset().union(*words)
        return found

    # -- backward pass -----------------------------------------------------------------------------------------------

    def _hear_gradient(self, event: TapEvent, *, of_output: bool) -> None:
        grad = event._grad
        if grad is None or event.moment.scaler is not None:
            return
        task = current_backward()
        if task not in self._tasks:  # more than one at a time: checkpointing starts backward passes within one
            self._tasks.add(task)
            # At the end of this backward pass, before whoever has started it goes on.
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._end_backward(task))
        flag = self._flag(grad, self._allowed_of(event))
        self._backward.add((event.name, event.call_index), event.path, flag, of_output=of_output)

    def _end_backward(self, task: int) -> None:
        self._tasks.discard(task)
        if self._tasks:
            return
        backward, self._backward = self._backward, Backward()
        both = (backward.outputs, backward.inputs)
        read = iter(read_flags([flag for side in both for flags in side.values() for flag in flags]))
        for side in both:
            for key, flags in side.items():
                side[key] = [next(read) for _ in flags]
        for call in backward.judge():
            self._find("gradient" if call.given else "backward", call)

    # -- in a trainer ------------------------------------------------------------------------------------------------

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        """The forward pass is over; the loss must be finite, too."""
        if self._moment is None:
            return
        scaled = ("inf", "-inf") if trainer.scaler is not None else ()  # the scale may have been too great
        if self._end_pass(is_bad(loss, scaled)) and not self._found:
            self._find("loss", Call("", 0))
        self._stop_if_asked(trainer)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Look at the gradients of all parameters: the first layer's show nowhere else."""
        if self._moment is None or not self.gradients or trainer.scaler is not None:
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        flags = read_flags([is_bad(p.grad) for p in parameters])
        bad = {id(p) for p, flag in zip(parameters, flags, strict=True) if flag}
        if bad and not self._found:
            names = [name for name, parameter in pl_module.named_parameters() if id(parameter) in bad]
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            self._find("parameters", Call(", ".join(names[:3]) + more, 0))
        self._stop_if_asked(trainer)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Remember which batch it is."""
        self._batch = (batch_idx, None)

    def on_validation_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Remember which batch it is."""
        self._batch = (batch_idx, dataloader_idx)

    on_test_batch_start = on_predict_batch_start = on_validation_batch_start

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The batch is over."""
        self._end_pass()
        self._forget_pass()
        self._stop_if_asked(trainer)

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """The batch is over."""
        self.on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """What was under way leads nowhere."""
        super().on_exception(trainer, pl_module, exception)
        self._forget_pass()

    def _end_period(self, phase: str, *, merge: bool = False) -> dict[str, float]:
        return {}

    # -- what follows ------------------------------------------------------------------------------------------------

    def _find(self, kind: str, call: Call) -> None:
        moment = self._moment or Moment()
        if kind == "forward" and call.module is not None and not call.note:
            spoilt = [name for name, p in call.module.named_parameters(recurse=False) if bool(is_bad(p))]
            call.note = f"its {spoilt[0]} is not finite" if spoilt else ""
        batch_idx, dataloader_idx = self._batch
        finding = Finding(
            kind,
            call.name,
            call.path,
            call.call_index,
            moment.step,
            moment.epoch,
            moment.phase,
            batch_idx,
            dataloader_idx,
            call.what,
            call.note,
            processes.rank(),
        )
        self._found = True
        if len(self.findings) < _MOST_FINDINGS:
            self.findings.append(finding)
        if self.action == "raise":
            raise NonFiniteError(finding)
        self._stop = self.action == "stop"
        if (kind, call.name) not in self._said:
            self._said.add((kind, call.name))
            warnings.warn(str(finding), TapWarning, stacklevel=2)

    def _stop_if_asked(self, trainer: Any) -> None:
        if self._stop:
            self._stop = False
            trainer.control.stop(str(self.findings[-1]))


class _Gradients:
    """The implementation of a hook of gradients, which a guard has only if it is to look at them."""

    def __init__(self, guard: NaNGuard, *, of_output: bool) -> None:
        self._guard, self._of_output = guard, of_output

    @hookimpl
    def hear(self, event: TapEvent) -> None:
        """Tell the guard."""
        self._guard._hear_gradient(event, of_output=self._of_output)


def _written_over(given: Tensor, output: Any) -> bool:
    """Whether an argument shares its memory with the output and has been changed since it was made."""
    if not given.is_inference() and not given._version:
        return False
    return any(shares_memory(given, tensor) for _, tensor in leaves.tensors(output))


def _checked_allowance(given: Any) -> list[tuple[Callable[[str], object], frozenset[str]]]:
    """Tests of names, and what each allows."""
    if not isinstance(given, Mapping):
        given = dict.fromkeys([given] if isinstance(given, str) else given, KINDS)
    made: list[tuple[Callable[[str], object], frozenset[str]]] = []
    for pattern, kinds in given.items():
        words = frozenset([kinds] if isinstance(kinds, str) else kinds)
        if not isinstance(pattern, str) or not words or not words <= set(KINDS):
            raise ValueError(
                f"allow must name modules, or map their names to some of {', '.join(KINDS)}; got {pattern!r}: {kinds!r}"
            )
        made.append((compiled_pattern(pattern).fullmatch, words))
    return made
