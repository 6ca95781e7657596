"""The optimisers in what ``configure_optimizers`` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def optimizers_in(answer: Any) -> Iterator[Any]:
    """The optimisers in any of the accepted forms, in order.

    Example:
        >>> import torch
        >>> sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        >>> list(optimizers_in(([sgd], []))) == list(optimizers_in({"optimizer": sgd})) == [sgd]
        True
    """
    if hasattr(answer, "param_groups"):
        yield answer
    elif isinstance(answer, Mapping):
        yield from optimizers_in(answer.get("optimizer"))
    elif isinstance(answer, (list, tuple)):
        for part in answer:
            yield from optimizers_in(part)
