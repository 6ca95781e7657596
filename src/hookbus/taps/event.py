"""What a tap is told: which module, which tensors, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from hookbus.engine.nested import map_leaves
from hookbus.taps import leaves

if TYPE_CHECKING:
    from hookbus.taps.site import Site

#: What the gradient of a parameter is, see :attr:`TapEvent.grad_kind`.
GradKind: TypeAlias = Literal["local", "accumulated", "reduced"]

_NO_KWARGS: Mapping[str, Any] = MappingProxyType({})

#: What events have that are not about it.
_DEFAULTS: dict[str, Any] = {
    "_brought": False,
    "_grad": None,
    "recompute": False,
    "path": (),
    "parameter": None,
    "exception": None,
    "own_name": None,
    "own_aliases": (),
}


class Moment:
    """When a forward pass took place; one object per pass.

    Attributes:
        step: optimiser steps before this one.
        micro_step: the place of the batch in its accumulation window, from 0.
        last_micro: whether the window ends with this batch.
        epoch: the training epoch, from 0.
        phase: one of :data:`hookbus.markers.PHASES`.
        number: of the step in its phase, from 1; what schedules count.
        rank: global rank of this process.
        scaler: the gradient scaler of mixed precision, None without one.
    """

    __slots__ = ("epoch", "last_micro", "micro_step", "number", "phase", "rank", "scaler", "step")

    def __init__(
        self,
        step: int = 0,
        *,
        number: int = 1,
        micro_step: int = 0,
        last_micro: bool = True,
        epoch: int = 0,
        phase: str = "train",
        rank: int = 0,
        scaler: Any = None,
    ) -> None:
        self.step, self.number, self.micro_step, self.last_micro = step, number, micro_step, last_micro
        self.epoch, self.phase, self.rank, self.scaler = epoch, phase, rank, scaler


class TapEvent:
    """One thing that happened inside the network.

    Tensors are those of the network itself, detached: who keeps one keeps no graph, and what is computed from it is not
    recorded. But they share its memory, so clone what is kept. Editing taps get them attached.

    Attributes:
        kind: ``forward_pre``, ``forward``, ``forward_error``, ``grad_output``, ``grad_input`` or ``parameter_grad``.
        call_index: number of this call of the module within its forward pass, from 0.
        recompute: whether activation checkpointing runs this forward pass again.
        path: where the tensor of this gradient stands in the output, or in the arguments: see
            :mod:`hookbus.taps.leaves`.
        parameter: the parameter whose gradient has come.
        exception: what was raised.
        moment: step, epoch, phase and so on, shared by all events of a forward pass.
        site: of the module.
    """

    __slots__ = (
        "_args", "_brought", "_grad", "_kwargs", "_output", "call_index", "exception", "kind", "moment", "own_aliases",
        "own_name", "parameter", "path", "recompute", "site",
    )  # fmt: skip

    kind: str
    recompute: bool
    _brought: Tensor | bool
    _grad: Tensor | None
    path: leaves.Path
    parameter: nn.Parameter | None
    exception: BaseException | None
    own_name: str | None
    own_aliases: tuple[str, ...]

    def __init__(
        self,
        site: Site,
        moment: Moment,
        call_index: int,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = _NO_KWARGS,
        output: Any = None,
    ) -> None:
        self.site = site
        self.moment = moment
        self.call_index = call_index
        self._args = args
        self._kwargs = kwargs
        self._output = output

    def __getattr__(self, name: str) -> Any:  # a slot that this kind of event leaves empty
        try:
            return _DEFAULTS[name]
        except KeyError:
            raise AttributeError(f"a tap's event has no attribute {name!r}") from None

    @property
    def args(self) -> tuple[Any, ...]:
        """What the module is, or was, called with: positional arguments."""
        value: tuple[Any, ...] = _detached(self._args)
        return value

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """What the module is, or was, called with: keyword arguments."""
        value: Mapping[str, Any] = _detached(self._kwargs)
        return value

    @property
    def output(self) -> Any:
        """What the module returned, in whatever structure."""
        return _detached(self._output)

    @property
    def grad(self) -> Tensor | None:
        """A gradient; None where an operation with several outputs has one for the others only."""
        value: Tensor | None = _detached(self._grad)
        return value

    @property
    def grad_kind(self) -> GradKind | None:
        """What the gradient of a parameter is; None for other kinds of events.

        ``local``: what one backward pass has brought in this process, and nothing else. ``accumulated``: the sum of that
        and of what ``.grad`` held before, such as earlier batches of the accumulation window. ``reduced``: not brought by
        this process's backward pass but set from outside, as FSDP2 does once the mean over all processes is known; it may
        hold earlier batches, too.

        To be asked while the event is told. Where ``.grad`` was not empty it compares values, to tell a sum from a
        gradient that was added to zeros (``zero_grad(set_to_none=False)``), and so waits for the device.
        """
        if self.kind != "parameter_grad":
            return None
        if self._brought is False:
            return "reduced"
        return "local" if self._brought is True or _same(self._grad, self._brought) else "accumulated"

    @property
    def grad_enabled(self) -> bool:
        """Whether gradients are recorded where this happens."""
        return torch.is_grad_enabled()

    @property
    def name(self) -> str:
        """Dotted name of the module; of the parameter, for ``parameter_grad``."""
        return self.site.name if self.own_name is None else self.own_name

    @property
    def aliases(self) -> tuple[str, ...]:
        """Its other names, if it stands in several places of the network."""
        return self.site.aliases if self.own_name is None else self.own_aliases

    @property
    def module(self) -> nn.Module:
        """The module, without what is wrapped around it."""
        return self.site.module

    @property
    def step(self) -> int:
        """Optimiser steps before this one."""
        return self.moment.step

    @property
    def micro_step(self) -> int:
        """The place of the batch in its accumulation window, from 0."""
        return self.moment.micro_step

    @property
    def epoch(self) -> int:
        """The training epoch, from 0."""
        return self.moment.epoch

    @property
    def phase(self) -> str:
        """``train``, ``val``, ``sanity``, ``test`` or ``predict``."""
        return self.moment.phase

    @property
    def rank(self) -> int:
        """Global rank of this process."""
        return self.moment.rank

    @property
    def amp_scale(self) -> float | None:
        """What gradients are multiplied by under mixed precision with a scaler; None without one. Waits for the device."""
        scaler = self.moment.scaler
        return None if scaler is None else float(scaler.get_scale())

    @property
    def inference(self) -> bool:
        """Whether inference mode is on."""
        return torch.is_inference_mode_enabled()

    @property
    def tensor(self) -> Tensor | None:
        """The tensor this is about: the gradient, else the first tensor of the output, else of the arguments."""
        if self.grad is not None:
            return self.grad
        if self.kind == "forward":
            return leaves.first(self.output)
        return leaves.first([list(self.args), dict(self.kwargs)])

    @property
    def device(self) -> torch.device | None:
        """The device of :attr:`tensor`."""
        return None if self.tensor is None else self.tensor.device

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of :attr:`tensor`."""
        return None if self.tensor is None else self.tensor.dtype

    @classmethod
    def of(
        cls, kind: str, site: Site, moment: Moment, call_index: int, recompute: bool = False, *call: Any
    ) -> TapEvent:
        """An event of whatever kind; ``call`` is what the module was called with, and what it returned."""
        event = cls(site, moment, call_index, *call)
        event.kind, event.recompute = kind, recompute
        return event

    def copy(self, *, live: bool = False) -> TapEvent:
        """Another event that says the same, for observers or for editors."""
        call = (self._args, self._kwargs, self._output)
        kind = LiveEvent if live else TapEvent
        other = kind.of(self.kind, self.site, self.moment, self.call_index, self.recompute, *call)
        other._grad, other.path = self._grad, self.path
        if self.kind == "parameter_grad":
            other.own_name, other.own_aliases = self.own_name, self.own_aliases
            other.parameter, other._brought = self.parameter, self._brought
        return other

    def outputs(self) -> Iterator[tuple[leaves.Path, Tensor]]:
        """The tensors of the output with their paths."""
        return leaves.tensors(self.output)

    def inputs(self) -> Iterator[tuple[leaves.Path, Tensor]]:
        """The tensors among the arguments with their paths: ``(0,)`` for the first, ``("mask",)`` for ``mask=…``."""
        yield from leaves.tensors(self.args)
        yield from leaves.tensors(self.kwargs)

    def __repr__(self) -> str:
        where = f"{self.name or 'the network'}{leaves.spelled(self.path)}"
        again = ", again" if self.recompute else ""
        return f"<{self.kind} of {where}, call {self.call_index}, {self.phase} step {self.step}{again}>"


# The kinds of events that there are many of.


class BeforeEvent(TapEvent):
    """A module is about to be called."""

    __slots__ = ()

    kind = "forward_pre"


class ForwardEvent(TapEvent):
    """A module has been called."""

    __slots__ = ()

    kind = "forward"


class LiveEvent(TapEvent):
    """What an editing tap is told: tensors are attached to the graph, as the module gives and takes them."""

    __slots__ = ()

    @property
    def args(self) -> tuple[Any, ...]:
        """What the module is called with: positional arguments."""
        return self._args

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """What the module is called with: keyword arguments."""
        return self._kwargs

    @property
    def output(self) -> Any:
        """What the module returned, in whatever structure."""
        return self._output

    @property
    def grad(self) -> Tensor | None:
        """A gradient."""
        return self._grad


def _same(one: Tensor | None, other: Tensor) -> bool:
    """Whether two gradients are the same, number for number; NaN is NaN here."""
    return one is not None and torch.allclose(_plain(one), _plain(other), rtol=0.0, atol=0.0, equal_nan=True)


def _plain(tensor: Tensor) -> Tensor:
    """This process's part of a distributed tensor, and a sparse one as a dense one."""
    own: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return own if own.layout is torch.strided else own.to_dense()


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach() if value.requires_grad else value
    if value is None:
        return None
    return map_leaves(value, _detached)


class Replace:
    """What an editing tap returns to change what a module is called with, or what it gave.

    Args:
        args: the positional arguments; by default as they are.
        kwargs: the keyword arguments; by default as they are.
        output: the output; by default as it is.
    """

    __slots__ = ("args", "kwargs", "output")

    def __init__(
        self, *, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, output: Any = None
    ) -> None:
        self.args = None if args is None else tuple(args)
        self.kwargs = None if kwargs is None else dict(kwargs)
        self.output = output
