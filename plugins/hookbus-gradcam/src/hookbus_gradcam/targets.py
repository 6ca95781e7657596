"""What is explained: one score per sample, from a model's output and what the user named as target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hookbus.engine.nested import map_leaves

#: One sample's target: a class, or a function from the sample's output to a score.
Target: TypeAlias = "int | Callable[[Any], Tensor]"
#: Those of all samples: one for all, one for each, or None for the class with the highest score.
Targets: TypeAlias = "Target | Sequence[Target] | Tensor | None"
#: Where in a model's output the class scores are: a key, attribute or index, or a function that gets them.
Where: TypeAlias = "str | int | Callable[[Any], Tensor] | None"


def scores(output: Any, targets: Targets, count: int, where: Where = None) -> tuple[Tensor, list[int | None]]:
    """One score per sample, attached to the graph.

    Args:
        output: what the model returned.
        targets: a class for all samples; a list or integer tensor with one class per sample; a function, or a list of
            one per sample, from what the model returned for the sample (tensors without their first dimension) to a
            scalar; None for each sample's highest class. For outputs with a class at each place, (N, C, …), the score
            of a class is its sum over all places.
        count: samples in the batch, N.
        where: the class scores, in an output that is no tensor.

    Returns:
        The scores, of shape (N,), and each sample's class, None where a function was given.

    Raises:
        ValueError: targets that do not fit the output: their number, the range of classes, what a function returns.
    """
    each = _one_per_sample(targets, count)
    found = _picked(output, where)
    classes = None if all(callable(target) for target in each) else _class_scores(found, count)
    values: list[Tensor] = []
    chosen: list[int | None] = []
    for index, target in enumerate(each):
        if callable(target):
            values.append(_scalar(target(_sample(found, index, count)), index))
            chosen.append(None)
            continue
        assert classes is not None
        row = classes[index]
        number = int(row.detach().argmax()) if target is None else target
        if not 0 <= number < len(row):
            raise ValueError(
                f"target {number} of sample {index} is no class: the model gives scores for 0 to {len(row) - 1}"
            )
        values.append(row[number])
        chosen.append(number)
    return torch.stack([value.float() if value.dtype in _HALF else value for value in values]), chosen


_HALF = (torch.float16, torch.bfloat16)


def _one_per_sample(targets: Targets, count: int) -> list[Target | None]:
    if isinstance(targets, Tensor):
        if targets.is_floating_point() or targets.is_complex() or targets.dtype is torch.bool or targets.ndim > 1:
            shape = tuple(targets.shape)
            raise ValueError(f"a tensor of targets holds one integer per sample, got {targets.dtype} of shape {shape}")
        targets = targets.tolist()
    if targets is None or callable(targets) or isinstance(targets, int):
        return [targets] * count
    if isinstance(targets, (str, bytes, Mapping)) or not isinstance(targets, Sequence):
        raise ValueError(
            f"targets must be a class, a function, a list or tensor of one per sample, or None; got {targets!r} "
            f"({type(targets).__name__})"
        )
    if len(targets) != count:
        raise ValueError(f"expected one target for each of {count} samples, got {len(targets)}")
    each: list[Target | None] = []
    for target in targets:
        if not callable(target):
            try:
                target = target.__index__()  # also numpy's integers
            except AttributeError:
                raise ValueError(f"a target must be a class or a function, got {target!r}") from None
        each.append(target)
    return each


def _picked(output: Any, where: Where) -> Any:
    if where is None:
        return output
    if callable(where):
        return where(output)
    if isinstance(output, Mapping) or isinstance(where, int):
        try:
            return output[where]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"the model's output has no {where!r}: it is {described(output)}") from None
    if not hasattr(output, where):
        raise ValueError(f"the model's output has no {where!r}: it is {described(output)}")
    return getattr(output, where)


def _class_scores(output: Any, count: int) -> Tensor:
    """Of shape (N, C)."""
    if not isinstance(output, Tensor):
        raise ValueError(
            f"a class as target needs class scores of shape (N, C), and the model gives {described(output)}; say where "
            "they are (output='logits'), or give a function as target (lambda out: out['logits'][3])"
        )
    if output.ndim == 1 and output.shape[0] == count:
        return output.unsqueeze(1)
    if output.ndim < 2 or output.shape[0] != count:
        raise ValueError(
            f"expected class scores of shape (N, C) for {count} samples, got {tuple(output.shape)}; give a function as target"
        )
    return output.flatten(2).sum(dim=2) if output.ndim > 2 else output


def _sample(output: Any, index: int, count: int) -> Any:
    def one(tensor: Tensor) -> Tensor:
        return tensor[index] if tensor.ndim and tensor.shape[0] == count else tensor

    return map_leaves(output, one)


def _scalar(value: object, index: int) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ValueError(
            f"a target's function must return a tensor with one number, got {described(value)} for sample {index}"
        )
    return value.reshape(())


def described(value: object) -> str:
    """A value in words, for messages."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with {', '.join(map(repr, value)) or 'nothing'}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
