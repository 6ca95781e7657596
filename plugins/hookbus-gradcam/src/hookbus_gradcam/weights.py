"""Loading a file of weights into a model for ``hookbus gradcam``, and saying shortly why it cannot be done."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from hookbus.cli.parser import UsageError

if TYPE_CHECKING:
    from torch import nn

#: So many names are said of each kind.
_MOST_NAMES: Final = 3


def load_weights(model: nn.Module, path: str) -> None:
    """Load a state dict, or the one of a checkpoint that holds it as ``state_dict``.

    Raises:
        UsageError: there is no such file, it holds something else, or the weights are those of another model.
    """
    import torch

    if not os.path.isfile(path):
        raise UsageError(f"--weights: there is no file {path!r}")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch's own text is long, and advises to load what cannot be trusted.
        raise UsageError(
            f"--weights: {path} cannot be read ({type(error).__name__}): expected tensors and plain data, saved by torch.save; "
            "it holds something else, or is damaged"
        ) from error
    state = found.get("state_dict", found) if isinstance(found, Mapping) else found
    if not isinstance(state, Mapping) or not any(isinstance(value, torch.Tensor) for value in state.values()):
        raise UsageError(
            f"--weights: {path} holds {_held(state)}; expected tensors by name, as model.state_dict() gives them, or a "
            "checkpoint with such as 'state_dict'"
        )
    try:
        model.load_state_dict(state)
    except Exception as error:
        raise UsageError(f"--weights: {path} does not fit the model: {_difference(model, state, error)}") from error


def in_a_line(error: BaseException) -> str:
    """An error's type, the first line of what it says, and where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({os.path.basename(frame.filename)}:{frame.lineno})" for frame in place)
    first = next((line for line in map(str.strip, str(error).splitlines()) if line), "no message")
    return f"{type(error).__name__}: {first}{where}"


def _held(state: object) -> str:
    if isinstance(state, Mapping):
        return f"a dictionary with {_some([str(key) for key in state])}" if state else "an empty dictionary"
    return f"a {type(state).__name__}"


def _difference(model: nn.Module, state: Mapping[str, Any], error: Exception) -> str:
    """What is missing, too much, or of another shape."""
    own = {name: getattr(value, "shape", None) for name, value in model.state_dict().items()}
    given = {str(name): getattr(value, "shape", None) for name, value in state.items()}
    missing = [name for name in own if name not in given]
    unknown = [name for name in given if name not in own]
    shapes = [
        f"{name} of shape {_spelled(given[name])} instead of {_spelled(own[name])}"
        for name in own
        if name in given and own[name] != given[name]
    ]
    kinds = {"it lacks": missing, "the model has no": unknown, "it has": shapes}
    said = "; ".join(f"{word} {_some(names)}" for word, names in kinds.items() if names)
    if not said:
        return in_a_line(error)
    prefix = _prefix(own, given)
    if prefix:
        return (
            f"{said}. They fit without {prefix!r} before the names: name the model that has this part, or save it alone"
        )
    return f"{said}. Is it of another model, or of one that was made with other arguments?"


def _spelled(shape: Sequence[int] | None) -> str:
    return "none" if shape is None else str(tuple(shape))


def _prefix(own: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """What stands before the model's names in the file: ``module.`` of a wrapper, ``net.`` of a larger module."""
    for name in given:
        first = next(iter(own), "")
        if first and name.endswith(f".{first}"):
            prefix = name[: -len(first)]
            inside = {key[len(prefix) :]: shape for key, shape in given.items() if key.startswith(prefix)}
            return prefix if inside == own else ""
    return ""


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"
