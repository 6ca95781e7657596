"""Where in a batch the model's input and the labels are, and where in its output the class scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from torch import Tensor

from hookbus_gradcam.targets import described

INPUTS: Final = ("image", "images", "pixel_values", "input", "inputs", "x", "data")
LABELS: Final = ("label", "labels", "target", "targets", "class", "y")
SCORES: Final = ("logits", "scores", "output", "out", "predictions")


def model_input(batch: Any, where: str = "") -> Tensor:
    """The tensor that the model is called with.

    Args:
        batch: of a loader.
        where: a key or an index; empty for the usual ones: the batch itself, the first of a list, or the first of
            :data:`INPUTS` that there is.

    Raises:
        ValueError: it is not to be found.
    """
    found = _item(batch, where) if where else _usual(batch, INPUTS)
    if not isinstance(found, Tensor) or found.ndim < 3 or not found.is_floating_point():
        raise ValueError(
            f"no image is found in the batch, {described(batch)}: expected a tensor of floats of shape (N, C, …); say where "
            "it is with input, a key or an index"
        )
    return found


def label_tensor(batch: Any, count: int) -> Tensor | None:
    """The labels of a batch, integers of shape (N,), if it has any in a usual place.

    Args:
        batch: of a loader.
        count: the number of samples, N.
    """
    if isinstance(batch, Mapping):
        found = next((batch[key] for key in LABELS if key in batch), None)
    else:
        found = batch[1] if isinstance(batch, Sequence) and len(batch) > 1 and not isinstance(batch, str) else None
    if not isinstance(found, Tensor) or found.is_floating_point() or found.is_complex():
        return None
    return found if found.shape == (count,) else None


def class_scores(output: Any, where: str = "") -> Any:
    """The class scores in what a model returned; the output as it is if they are in no usual place."""
    if where:
        return _item(output, where)
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        return next((output[key] for key in SCORES if key in output), output)
    named = next((getattr(output, name) for name in SCORES if hasattr(output, name)), None)
    if isinstance(named, Tensor):
        return named
    return output[0] if isinstance(output, (list, tuple)) and output else output


def _usual(batch: Any, keys: tuple[str, ...]) -> Any:
    if isinstance(batch, Mapping):
        return next((batch[key] for key in keys if key in batch), None)
    if isinstance(batch, (list, tuple)):
        return batch[0] if batch else None
    return batch


def _item(value: Any, where: str) -> Any:
    try:
        if isinstance(value, Mapping) or not where.lstrip("-").isdecimal():
            return value[where] if isinstance(value, Mapping) else getattr(value, where)
        return value[int(where)]
    except (KeyError, IndexError, AttributeError, TypeError):
        raise ValueError(f"{described(value)} has no {where!r}") from None
