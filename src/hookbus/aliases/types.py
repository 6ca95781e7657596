"""The aliases of types that modules and callbacks written for Lightning annotate with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

# Old-style unions: packages take these apart with typing.get_args, or subscript them, on Python 3.10 too.
STEP_OUTPUT = Union[Tensor, Mapping[str, Any], None]  # noqa: UP007
TRAIN_DATALOADERS = Any
EVAL_DATALOADERS = Any
LRSchedulerPLType = Union[LRScheduler, ReduceLROnPlateau]  # noqa: UP007
LRSchedulerTypeUnion = LRSchedulerPLType
OptimizerLRScheduler = Union[  # noqa: UP007
    Optimizer,
    Sequence[Optimizer],
    tuple[Sequence[Optimizer], Sequence[Any]],
    Mapping[str, Any],
    Sequence[Mapping[str, Any]],
    None,
]
_EVALUATE_OUTPUT = list[Mapping[str, float]]
_PREDICT_OUTPUT = Union[list[Any], list[list[Any]]]  # noqa: UP007

_PATH = Union[str, Path]  # noqa: UP007
_DEVICE = Union[torch.device, str, int]  # noqa: UP007
_MAP_LOCATION_TYPE = Union[_DEVICE, Callable[[Any, str], Any], dict[Any, Any], None]  # noqa: UP007
_PARAMETERS = Iterator[torch.nn.Parameter]
