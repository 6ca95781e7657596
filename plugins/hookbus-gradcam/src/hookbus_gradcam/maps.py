"""Class activation maps of a model: one forward pass, one backward pass down to the layers, and a formula.

The layers' outputs are captured by taps as clones that stay in the graph, so that a ReLU that works in place changes
neither activations nor gradients; ``torch.autograd.grad`` differentiates the scores with respect to them and writes to
nobody's ``.grad``. Everything happens within :func:`hookbus_gradcam.untouched.untouched`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from hookbus import tapping
from hookbus.engine.nested import map_leaves, tensors_in
from hookbus.taps import Capture, Record, Selection, TapEvent
from hookbus.taps.select import places, select
from hookbus_gradcam.methods import method_called
from hookbus_gradcam.targets import Targets, Where, described, scores
from hookbus_gradcam.untouched import untouched

#: One layer, by dotted name, pattern (``*``, ``**``) or compiled regular expression, or the module itself.
Layer: TypeAlias = "str | re.Pattern[str] | nn.Module"
#: From a layer's output to (N, K, …): what :func:`tokens` makes, or a function of one's own.
Reshape: TypeAlias = "Callable[[Tensor], Tensor]"
#: How the model is called.
Forward: TypeAlias = "Callable[[nn.Module, Any], Any]"

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class LayerError(ValueError):
    """No map can be drawn of a layer; the message says of which, and why."""


@dataclass(frozen=True)
class ClassActivationMaps:
    """The maps of some layers, and what they explain.

    Attributes:
        maps: by the layer's name, of shape (N, …), as large as the layer's output is in space; not normalised, see
            :func:`hookbus_gradcam.normalised` and :func:`hookbus_gradcam.resized`.
        output: what the model returned, detached.
        scores: what was differentiated, of shape (N,).
        classes: each sample's class; None where the target was a function.
    """

    maps: dict[str, Tensor]
    output: Any
    scores: Tensor
    classes: list[int | None]

    def __getitem__(self, layer: str) -> Tensor:
        """The maps of one layer."""
        return self.maps[layer]


def class_activation_maps(
    model: nn.Module,
    inputs: Any,
    layers: Layer | Sequence[Layer],
    *,
    method: str = "gradcam",
    targets: Targets = None,
    call: int | None = None,
    reshape: Reshape | Mapping[str, Reshape] | None = None,
    output: Where = None,
    forward: Forward | None = None,
    evaluating: bool = True,
    relu: bool = True,
) -> ClassActivationMaps:
    """Class activation maps of one or several layers, from one pass.

    May be called anywhere, also between the forward and the backward pass of a training step, and in ``torch.no_grad`` or
    ``torch.inference_mode``: gradients, flags, buffers and random streams of the model and the process stay what they are.
    Under autocast the passes run in its precision; the formulas are computed in float32 at least.

    Args:
        model: the network, on any device, frozen or not, compiled or in DistributedDataParallel.
        inputs: a tensor, a tuple of positional arguments, or a mapping of keyword arguments. The first dimension of its
            first tensor is the number of samples, N.
        layers: one or several of the model's modules. Their output has the shape (N, K, …) with at least one dimension
            of space: (N, K, H, W) for images. Of an output with several tensors the first one is taken.
        method: one of ``gradcam``, ``gradcam++``, ``xgradcam``, ``hirescam``, ``layercam`` and ``elementwise``; see
            :mod:`hookbus_gradcam.methods`.
        targets: what is explained: a class, a list or tensor of one per sample, a function (or a list of one per sample)
            from a sample's output to a scalar, or None for the class with the highest score.
        call: which call of the layer in the forward pass, from 0, or from the end if negative. May be left out where there
            is only one.
        reshape: brings the layer's output into the shape (N, K, …), where it is not: ``tokens(14, 14)`` for a
            transformer's. Or a mapping from names of layers.
        output: where the class scores are in what the model returns: a key, an attribute, an index, or a function.
        forward: calls the model in another way, ``lambda model, inputs: model.decode(model.encode(inputs))``.
        evaluating: whether the model is in evaluation mode for it. Otherwise as it is; in training mode dropout draws,
            batch normalization mixes samples, and a map explains the others' scores as well.
        relu: cut off what is negative, as the papers do.

    Returns:
        The maps, with what they explain.

    Raises:
        hookbus.taps.SelectionError: the model has no such layer; the message suggests the nearest name.
        LayerError: a layer was not called, or more than once while ``call`` does not say which; its output has no
            dimension of space; or the scores do not depend on it.
        TypeError: the model is no module, or a layer is neither a name, a pattern nor a module.
        ValueError: targets or a method that make no sense.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}: {model!r}")
    formula = method_called(method)
    selected = [layers] if isinstance(layers, (str, re.Pattern, nn.Module)) else list(layers)
    if not selected:
        raise ValueError("expected at least one layer, got an empty list")
    count = _samples(inputs)
    network = _bare(model)
    select(places(network), Selection(tuple(selected), on_missing="error"), called=True, who=method)
    with untouched(network, evaluating=evaluating):
        arguments = map_leaves(inputs, lambda tensor: tensor.detach().clone())
        with (
            tapping(network) as taps,
            taps.capture(selected, attached=True, keep="all", on_missing="ignore") as captured,
        ):
            given = _called(network, arguments, forward)
        values, classes = scores(given, targets, count, output)
        activations = _activations(network, captured, selected, call)
        gradients = _gradients(values, activations)
        maps = {}
        for name, activation in activations.items():
            shape = reshape.get(name) if isinstance(reshape, Mapping) else reshape
            pair = [_shaped(tensor.detach(), shape, name, count) for tensor in (activation, gradients[name])]
            made = formula(*pair)
            maps[name] = made.clamp(min=0) if relu else made
        return ClassActivationMaps(maps, map_leaves(given, Tensor.detach), values.detach(), classes)


def last_convolution(model: nn.Module, inputs: Any, *, forward: Forward | None = None) -> str | None:
    """The name of the convolution that is called last, of those whose output is larger than one place.

    Its features are the most abstract ones that still have a place in the image: the usual layer for Grad-CAM.

    Args:
        model: the network.
        inputs: as for :func:`class_activation_maps`; the network is called once, and left as it was.
        forward: as there.

    Returns:
        The name, or None if no convolution was called.
    """
    found: list[str] = []

    def look(event: TapEvent) -> None:
        if isinstance(event.output, Tensor) and event.output.shape[2:].numel() > 1:
            found.append(event.name)

    network = _bare(model)
    with (
        untouched(network),
        torch.no_grad(),
        tapping(network) as taps,
        taps.tap(None, look, types=_CONVOLUTIONS, on_missing="ignore"),
    ):
        _called(network, map_leaves(inputs, lambda tensor: tensor.detach().clone()), forward)
    return found[-1] if found else None


def tokens(*size: int, skip: int = 1) -> Reshape:
    """For transformers: from tokens (N, T, K) to maps (N, K, \\*size).

    Args:
        *size: rows and columns of patches, ``tokens(14, 14)``.
        skip: how many tokens at the beginning are no patches: 1 for a class token.

    Returns:
        For the argument ``reshape`` of :func:`class_activation_maps`.
    """

    def reshape(tensor: Tensor) -> Tensor:
        if tensor.ndim != 3 or tensor.shape[1] != skip + math.prod(size):
            raise LayerError(
                f"expected tokens of shape (N, {skip + math.prod(size)}, K): {skip} to skip and {' x '.join(map(str, size))}; "
                f"got {tuple(tensor.shape)}"
            )
        return tensor[:, skip:].transpose(1, 2).reshape(tensor.shape[0], tensor.shape[2], *size)

    return reshape


# -- the passes ----------------------------------------------------------------------------------------------------------


def _bare(model: nn.Module) -> nn.Module:
    """The model without what would join other processes, or run compiled."""
    while True:
        if isinstance(model, (DistributedDataParallel, DataParallel)):
            model = model.module
        elif isinstance(model._modules.get("_orig_mod"), nn.Module):
            model = model._modules["_orig_mod"]  # type: ignore[assignment]
        else:
            return model


def _called(model: nn.Module, inputs: Any, forward: Forward | None) -> Any:
    if forward is not None:
        return forward(model, inputs)
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def _samples(inputs: Any) -> int:
    for tensor in tensors_in(inputs):
        if tensor.ndim:
            return int(tensor.shape[0])
    raise ValueError(f"expected a tensor with a first dimension for samples among the inputs, got {described(inputs)}")


def _activations(network: nn.Module, captured: Capture, layers: list[Layer], call: int | None) -> dict[str, Tensor]:
    """One tensor of each layer, by the name under which it was asked for."""
    known = places(network)
    found: dict[str, Tensor] = {}
    for layer in layers:
        asked = [place for place in known if layer in place.names or layer is place.module]
        if asked and asked[0].name not in captured:
            raise LayerError(
                f"layer {asked[0].name!r} is not called in the forward pass, so there is nothing to explain"
            )
        if asked and isinstance(layer, str):
            found[layer] = _activation(captured.records(asked[0].name), call)
    taken = {place.name for place in known if set(place.names) & found.keys()}
    for name in captured.names():
        if name not in taken:
            found[name] = _activation(captured.records(name), call)
    if not found:
        raise LayerError(f"none of the layers {', '.join(map(str, layers))} is called in the forward pass")
    return found


def _activation(records: list[Record], call: int | None) -> Tensor:
    record = _one_call(records, call)
    tensor = next((t for t in tensors_in(record.value) if t.is_floating_point()), None)
    if tensor is None:
        raise LayerError(f"layer {record.name!r} gives {described(record.value)}, which has no gradient")
    return tensor


def _one_call(records: list[Record], call: int | None) -> Record:
    name, calls = records[0].name, len(records)
    if call is None:
        if calls > 1:
            raise LayerError(
                f"layer {name!r} is called {calls} times; say which call: call=0 to {calls - 1}, or -1 for the last"
            )
        return records[0]
    if not -calls <= call < calls:
        raise LayerError(f"there is no call {call} of layer {name!r}, which is called {calls} times")
    return records[call]


def _gradients(values: Tensor, activations: dict[str, Tensor]) -> dict[str, Tensor]:
    hint = "does the model detach it, or switch gradients off (torch.no_grad) in between?"
    if not values.requires_grad:
        raise LayerError(f"the scores do not depend on {', '.join(map(repr, activations))}; {hint}")
    needed = {name: tensor for name, tensor in activations.items() if tensor.requires_grad}
    with torch.autocast(values.device.type, enabled=False):
        found = torch.autograd.grad(values.sum(), list(needed.values()), allow_unused=True)
    gradients = {name: grad for name, grad in zip(needed, found, strict=True) if grad is not None}
    for name in activations:
        if name not in gradients:
            raise LayerError(f"the scores do not depend on {name!r}; {hint}")
    return gradients


def _shaped(tensor: Tensor, reshape: Reshape | None, name: str, count: int) -> Tensor:
    """The tensor as (N, K, …), in float32 at least."""
    found = tensor if reshape is None else reshape(tensor)
    if found.ndim < 3 or found.shape[0] != count:
        after = "" if reshape is None else f", reshaped to {tuple(found.shape)}"
        raise LayerError(
            f"layer {name!r} gives {tuple(tensor.shape)}{after}; expected (N, K, …) with N = {count} samples, K channels and "
            "at least one dimension of space; choose another layer, or say how with reshape, such as tokens(14, 14)"
        )
    return found.float() if found.dtype in (torch.float16, torch.bfloat16) else found
