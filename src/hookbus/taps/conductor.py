"""Who says when a forward pass begins and ends: the trainer's steps, or the network's own calls outside of any trainer."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Generator
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from torch import distributed, nn
from torch._compile import _disable_dynamo

from hookbus.markers import hookimpl
from hookbus.taps.event import Moment
from hookbus.taps.trampoline import GONE, Trampoline, fresh_id, is_traced, take_off

if TYPE_CHECKING:
    from collections import OrderedDict

    from torch.utils.hooks import RemovableHandle

    from hookbus.taps.taps import Taps


class TrainerConductor:
    """A plugin of the trainer's bus, there only while somebody taps: arms taps round each step.

    Forward taps are off again when the step returns, before the backward pass; what that still needs is off at the end
    of the batch.

    Args:
        taps: of the trainer.
    """

    def __init__(self, taps: Taps) -> None:
        self._taps: Any = weakref.ref(taps)
        self._evaluated: dict[str, int] = {}

    @hookimpl(wrapper=True, tryfirst=True)
    def training_step(self, trainer: Any) -> Generator[None, Any, Any]:
        """Training, one batch."""
        progress = trainer.progress
        moment = Moment(
            trainer.global_step,
            number=progress.logging_step + 1,
            micro_step=max(0, progress.batch_idx - progress.batch_stepped),
            last_micro=not trainer.fit_loop._should_accumulate(),
            epoch=trainer.current_epoch,
            rank=trainer.global_rank,
            scaler=trainer.scaler,
        )
        return (yield from self._around(moment))

    @hookimpl(wrapper=True, tryfirst=True)
    def validation_step(self, trainer: Any) -> Generator[None, Any, Any]:
        """Validation, one batch; also in the sanity check."""
        return (yield from self._around(self._evaluation(trainer, "sanity" if trainer.sanity_checking else "val")))

    @hookimpl(wrapper=True, tryfirst=True)
    def test_step(self, trainer: Any) -> Generator[None, Any, Any]:
        """Test, one batch."""
        return (yield from self._around(self._evaluation(trainer, "test")))

    @hookimpl(wrapper=True, tryfirst=True)
    def predict_step(self, trainer: Any) -> Generator[None, Any, Any]:
        """Prediction, one batch."""
        return (yield from self._around(self._evaluation(trainer, "predict")))

    @hookimpl(tryfirst=True)
    def on_train_batch_end(self) -> None:
        """The backward pass is over."""
        taps = self._taps()
        if taps is not None:
            taps.finish()

    def _evaluation(self, trainer: Any, phase: str) -> Moment:
        number = self._evaluated[phase] = self._evaluated.get(phase, 0) + 1
        return Moment(
            trainer.global_step, number=number, epoch=trainer.current_epoch, phase=phase, rank=trainer.global_rank
        )

    def _around(self, moment: Moment) -> Generator[None, Any, Any]:
        taps: Taps | None = self._taps()
        if taps is None:
            return (yield)
        taps.begin(moment)
        try:
            result = yield
        except BaseException as error:
            taps.abandon(error)
            raise
        taps.end_forward()
        if moment.phase != "train":
            taps.finish()
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        return (_conductor_of_nothing, ())


class _Nothing:
    """Stands for taps that are gone."""


def _conductor_of_nothing() -> TrainerConductor:
    """A copy: it conducts no taps, for those of the original are the original's."""
    return TrainerConductor(_Nothing())  # type: ignore[arg-type]


class RootConductor:
    """Two hooks on the network itself, or a frame around a compiled one: its call is a forward pass, and one step.

    Args:
        taps: told of each pass.
        model: the network, as it is called.

    Attributes:
        said: what the user has said of the passes to come, which counts more than what is found out: see
            :meth:`hookbus.taps.Taps.at`.
    """

    def __init__(self, taps: Taps, model: nn.Module) -> None:
        self.said: dict[str, Any] = {}
        self._taps = weakref.ref(taps)
        self._model = model
        self._passes: dict[str, int] = {}
        self._depth = 0
        self._frame = 0
        self._handled: BaseException | None = None
        self._handles: list[RemovableHandle] = []
        self._around: _Around | None = None

    def install(self, wanted: bool) -> None:
        """Put the hooks on, or take them off."""
        if not wanted:
            self._remove_hooks()
            if self._around is not None and self._model._compiled_call_impl is self._around:
                self._model._compiled_call_impl = self._around.compiled
            self._around = None
            self._depth = 0
        elif self._model._compiled_call_impl is not None:
            self._stand_around()
        elif not self._handles:
            fresh_id(self._model._forward_pre_hooks)
            fresh_id(self._model._forward_hooks)
            enter = self._model.register_forward_pre_hook(_Enter(self).run, prepend=True, with_kwargs=True)
            leave = self._model.register_forward_hook(_Leave(self).run, always_call=True)
            self._handles = [enter, leave]

    def enter_around(self, frame: FrameType) -> None:
        """The network, compiled in place, is about to be called; hooks are not needed for that."""
        self._remove_hooks()
        self.enter(frame)

    def enter(self, frame: FrameType | None) -> None:
        """The network is called; ``frame`` is whence."""
        if self._depth and not _is_running(self._frame, frame):
            self._depth = 0  # the call before was left by a KeyboardInterrupt, which torch does not tell hooks of
        self._depth += 1
        taps = self._taps()
        if self._depth > 1 or taps is None:
            return
        self._frame, self._handled = id(frame), sys.exc_info()[1]
        phase = self.said.get("phase") or ("train" if self._model.training else "val")
        passes = self._passes[phase] = self._passes.get(phase, 0) + 1
        step = self.said.get("step", passes - 1)
        others = {"rank": _rank()} | {key: value for key, value in self.said.items() if key not in ("phase", "step")}
        taps.begin(Moment(step, number=step + 1, phase=phase, **others))
        if (
            self._handles
        ):  # the pass must not end before the network's own taps have been told, which may just have come
            cast("OrderedDict[int, Any]", self._model._forward_hooks).move_to_end(self._handles[1].id)

    def call_what_came(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None) -> Any:
        """Enter; then do for the pre-hook of the network's own taps, if it was put on just now, what torch will not."""
        taps = self._taps()
        before = taps is not None and taps.hears_before(self._model)
        self.enter(frame)
        if self._model._compiled_call_impl is not None:  # since the hooks were put on
            self._stand_around()
        if taps is None or before or not taps.hears_before(self._model):
            return None
        return taps.sites[id(self._model)].before(args, kwargs)

    def leave(self, *, early: bool = False) -> None:
        """The network has returned, or raised; or was ended early, so that what was not called may be called yet."""
        self._depth = max(0, self._depth - 1)
        taps = self._taps()
        error, self._handled, before = sys.exc_info()[1], None, self._handled
        if self._depth == 0 and taps is not None:
            taps.end_forward(careful=error is not None and error is not before, early=early)

    def _stand_around(self) -> None:
        compiled = self._model._compiled_call_impl
        if compiled is not None and compiled is not self._around:
            self._around = self._model._compiled_call_impl = _Around(self, compiled)

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


class _Around(Trampoline):
    """In the place of what ``Module.compile`` has put on the network.

    Hooks on such a network are called when the compiler is at work already, too late to do a step without it.
    """

    __slots__ = ("compiled",)

    def __init__(self, conductor: RootConductor, compiled: Callable[..., Any]) -> None:
        super().__init__(conductor)
        self.compiled = compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A forward pass, from beginning to end."""
        return _call_apart(self, args, kwargs)


class _Enter(Trampoline):
    """The pre-hook of the network itself."""

    __slots__ = ()

    def run(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] = GONE) -> Any:
        """A forward pass begins."""
        return (_enter_apart if is_traced() else _enter)(self, module, args, kwargs)


class _Leave(Trampoline):
    """The hook of the network itself, called even when it raises."""

    __slots__ = ()

    def run(self, module: nn.Module, args: Any, output: Any) -> None:
        """It is over."""
        (_leave_apart if is_traced() else _leave)(self, module)

    def cut_short(self) -> None:
        """It is over early."""
        conductor: RootConductor | None = self.site()
        if conductor is not None:
            conductor.leave(early=True)


def _enter(trampoline: _Enter, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    conductor: RootConductor | None = trampoline.site()
    if conductor is None:
        return take_off(module, trampoline)
    if kwargs is GONE:
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_call_impl":
        frame = frame.f_back
    return conductor.call_what_came(args, kwargs, frame)


def _leave(trampoline: _Leave, module: nn.Module) -> None:
    conductor: RootConductor | None = trampoline.site()
    if conductor is None:
        take_off(module, trampoline)
    else:
        conductor.leave()


@_disable_dynamo  # a compiled function may call the network
def _call_apart(around: _Around, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    conductor: RootConductor | None = around.site()
    if conductor is None:
        return around.compiled(*args, **kwargs)
    conductor.enter_around(sys._getframe())
    try:
        return around.compiled(*args, **kwargs)
    finally:
        conductor.leave()


_enter_apart, _leave_apart = _disable_dynamo(_enter), _disable_dynamo(_leave)


def _rank() -> int:
    """The global rank of this process, 0 outside of a process group."""
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def _is_running(wanted: int, frame: FrameType | None) -> bool:
    """Whether the frame with this identity is among those that have called ``frame``."""
    frame = frame.f_back if frame is not None else None
    while frame is not None:
        if id(frame) == wanted:
            return True
        frame = frame.f_back
    return False
