"""Logged values across processes: the step's when it is logged, those of an epoch together when it is over.

All processes come here at the same moments and with the same names, in the order of hook and name. Nothing else in the
logging path talks to other processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from hookbus.trainer.metric_series import NumberSeries, ObjectSeries, Series

#: Reduces a tensor of one dimension across processes, element by element; the second argument is the operation:
#: "sum", "mean", "max" or "min". The tensor may lie on any device; the answer should lie there too.
Reduce = Callable[[Tensor, str], Tensor]


def reduce_step(series: NumberSeries, reduce: Reduce) -> None:
    """Replace the last value of ``series`` by its reduction."""
    with torch.inference_mode(False):
        value = series.step_value()
        assert value is not None
        series.set_step_value(reduce(value.reshape(1), series.options.reduction).reshape(()))


def settle(pending: Iterable[Series], reduce: Reduce | None) -> None:
    """Fetch the values of the epoch that are ``pending``: objects one by one, numbers in one go per operation."""
    numbers: dict[str, list[NumberSeries]] = {"sum": [], "max": [], "min": []}
    for series in sorted(pending, key=lambda item: (item.hook, item.name, item.loader or 0)):
        if isinstance(series, ObjectSeries):
            series.settle()
        elif isinstance(series, NumberSeries):
            reduction = series.options.reduction
            numbers["sum" if reduction == "mean" else reduction].append(series)
    for operation, members in numbers.items():
        if members:
            assert reduce is not None
            with torch.inference_mode(False):
                _reduce_together(operation, members, reduce)


def _reduce_together(operation: str, members: list[NumberSeries], reduce: Reduce) -> None:
    """Reduce the totals of ``members`` and their weights as one tensor: for a mean the weights are summed up, too."""
    sums = [series.sums() for series in members]
    device = next((total.device for total, _ in sums if total.device.type != "cpu"), sums[0][0].device)
    dtype = torch.float64 if any(total.dtype == torch.float64 for total, _ in sums) else torch.float32
    parts = [torch.as_tensor(number, dtype=dtype, device=device) for pair in sums for number in pair]
    reduced = reduce(torch.stack(parts), operation).reshape(-1, 2)
    for series, (own, _), (total, weight) in zip(members, sums, reduced, strict=True):
        value = total / weight if series.options.reduction == "mean" else total
        series.settle(value.to(own.dtype))
