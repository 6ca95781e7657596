"""What a network is made of: its layers with their parameters, sizes and operations, as numbers and as a table.

Sizes and operations are those of one forward pass on the module's ``example_input_array``, if it has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.utils.flop_counter import FlopCounterMode

from hookbus.engine.device import move_to

UNKNOWN = "?"
NOT_APPLICABLE = "n/a"


@dataclass
class LayerSummary:
    """One layer.

    Attributes:
        name: its name in the network.
        layer_type: its class.
        num_parameters: of it and of all that is in it.
        training: whether it is in train mode.
        in_size, out_size: shapes of input and output at its first call; ``?`` if it was not called, or they have none.
        flops: operations of all its calls.
    """

    name: str
    layer_type: str
    num_parameters: int
    training: bool
    in_size: Any = UNKNOWN
    out_size: Any = UNKNOWN
    flops: int = 0


@dataclass
class ModelSummary:
    """The layers of a network, and its totals.

    Attributes:
        layers: the layers, in order.
        total_parameters, trainable_parameters: numbers of parameters; shared ones count once.
        model_size: memory of all parameters, in MB (10^6 bytes).
        total_training_modes: numbers of modules by mode, ``train`` and ``eval``, the network itself left out.
        measured: whether there was an example input, so that sizes and operations are known.
        total_flops: floating-point operations of the forward pass.
    """

    layers: list[LayerSummary]
    total_parameters: int
    trainable_parameters: int
    model_size: float
    total_training_modes: dict[str, int]
    measured: bool = False
    total_flops: int = 0
    _other: int = field(default=0, repr=False)

    def columns(self) -> list[tuple[str, list[str]]]:
        """The table: titles and cells; the last row may be for parameters that belong to no layer."""
        layers = self.layers
        table: list[tuple[str, list[str]]] = [
            (" ", [str(i) for i in range(len(layers))]),
            ("Name", [layer.name for layer in layers]),
            ("Type", [layer.layer_type for layer in layers]),
            ("Params", [human_readable(layer.num_parameters) for layer in layers]),
            ("Mode", ["train" if layer.training else "eval" for layer in layers]),
        ]
        if self.measured:
            table += [
                ("FLOPs", [human_readable(layer.flops) for layer in layers]),
                ("In sizes", [str(layer.in_size) for layer in layers]),
                ("Out sizes", [str(layer.out_size) for layer in layers]),
            ]
        if self._other > 0:
            known = {" ": " ", "Name": "other params", "Params": human_readable(self._other)}
            for title, cells in table:
                cells.append(known.get(title, NOT_APPLICABLE))
        return table

    def __str__(self) -> str:
        totals = totals_as_text(
            self.total_parameters,
            self.trainable_parameters,
            self.model_size,
            self.total_training_modes,
            self.total_flops if self.measured else None,
        )
        return "\n".join([table_as_text(self.columns()), *totals])


def summarize(model: nn.Module, max_depth: int = 1, *, measure: bool = True) -> ModelSummary:
    """Look at a network.

    Args:
        model: the network; a forward pass is run if it has an ``example_input_array`` that is not None: a tensor, a
            tuple or list of the arguments of ``forward``, or a dictionary of them. Modes are left as they were.
        max_depth: how deep the layers listed may be nested: 1 for children only, -1 for all, 0 for none.
        measure: False leaves the forward pass out.

    Raises:
        ValueError: ``max_depth`` is no such number.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.BatchNorm1d(512))
        >>> net.example_input_array = torch.zeros(10, 256)
        >>> print(summarize(net))
           Name  Type         Params  Mode   FLOPs  In sizes   Out sizes
        ----------------------------------------------------------------
        0  0     Linear       131 K   train  2.6 M  [10, 256]  [10, 512]
        1  1     BatchNorm1d  1.0 K   train  0      [10, 512]  [10, 512]
        ----------------------------------------------------------------
        132 K parameters (0.530 MB): 132 K trainable, 0 frozen
        modules: 2 in train mode, 0 in eval mode
        2.6 M FLOPs in a forward pass on the example input
    """
    check_depth(max_depth)
    modules = dict(_listed(model, max_depth))
    layers = {
        name: LayerSummary(name, type(module).__name__, _count(module.parameters()), module.training)
        for name, module in modules.items()
    }
    parameters = [p for p in model.parameters() if not isinstance(p, UninitializedParameter)]
    total = sum(p.numel() for p in parameters)
    modes = [module.training for module in model.modules()][1:]
    summary = ModelSummary(
        list(layers.values()),
        total,
        sum(p.numel() for p in parameters if p.requires_grad),
        sum(p.numel() * p.element_size() for p in parameters) * 1e-6,
        {"train": modes.count(True), "eval": modes.count(False)},
        _other=total - sum(layer.num_parameters for layer in layers.values()),
    )
    if measure and getattr(model, "example_input_array", None) is not None:
        _measure(model, modules, layers, summary)
    return summary


def check_depth(max_depth: Any) -> None:
    """Refuse a ``max_depth`` without a meaning.

    Raises:
        ValueError: it is no whole number of -1 or more.
    """
    if not isinstance(max_depth, int) or isinstance(max_depth, bool) or max_depth < -1:
        raise ValueError(f"max_depth must be -1 for all layers, 0 for none, or a depth of 1 or more; got {max_depth!r}")


def _listed(model: nn.Module, max_depth: int) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        if module is not model and (max_depth == -1 or name.count(".") < max_depth):
            yield name, module


def _count(parameters: Iterator[nn.Parameter]) -> int:
    """Lazy parameters, whose shapes are not known yet, count as 0."""
    return sum(p.numel() for p in parameters if not isinstance(p, UninitializedParameter))


def _measure(
    model: nn.Module, modules: Mapping[str, nn.Module], layers: Mapping[str, LayerSummary], summary: ModelSummary
) -> None:
    """Run the example input through the network and note what is seen."""
    example: Any = model.example_input_array
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    example = move_to(example, device)
    trainer = getattr(model, "_trainer", None)
    counter = FlopCounterMode(display=False)
    with ExitStack() as around:
        for name, module in modules.items():
            if not isinstance(module, torch.jit.ScriptModule):
                handle = module.register_forward_hook(_note_sizes(layers[name]), with_kwargs=True)
                around.callback(handle.remove)
        around.enter_context(_in_eval_mode(model))
        around.enter_context(torch.no_grad())
        if trainer is not None:
            around.enter_context(trainer.precision_plugin.forward_context())
        around.enter_context(counter)
        if isinstance(example, Mapping):
            model(**example)
        elif isinstance(example, (list, tuple)):
            model(*example)
        else:
            model(example)
    counts = counter.get_flop_counts()
    for name, layer in layers.items():
        layer.flops = sum(counts.get(f"{type(model).__name__}.{name}", {}).values())
    summary.total_flops = int(counter.get_total_flops())
    summary.measured = True


def _note_sizes(layer: LayerSummary) -> Any:
    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if layer.out_size == UNKNOWN:
            given = (*args, *kwargs.values())
            layer.in_size = _shape(given[0] if len(given) == 1 else given)
            layer.out_size = _shape(output)

    return hook


def _shape(value: Any) -> Any:
    if hasattr(value, "shape"):
        return list(value.shape) or UNKNOWN
    if isinstance(value, (list, tuple)):
        return [_shape(item) for item in value] or UNKNOWN
    return UNKNOWN


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


# -- text ------------------------------------------------------------------------------------------------------------


def human_readable(number: int) -> str:
    """A number with K, M, B or T for thousands, millions, billions (10^9) and trillions (10^12): ``1.2 K``, ``132 K``."""
    units = ("", "K", "M", "B", "T")
    power = min((len(str(int(number))) - 1) // 3, len(units) - 1)
    value = number / 1000**power
    text = f"{int(value):,d}" if power == 0 or value >= 100 else f"{value:.1f}"
    return f"{text} {units[power]}".rstrip()


def table_as_text(columns: Sequence[tuple[str, list[str]]]) -> str:
    """The table, with lines above and below its body."""
    widths = [max(map(len, [title, *cells])) for title, cells in columns]
    rows = [[title for title, _ in columns], *zip(*(cells for _, cells in columns), strict=True)]
    texts = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    line = "-" * (sum(widths) + 2 * len(widths) - 2)
    return "\n".join([texts[0], line, *texts[1:], line])


def totals_as_text(
    total_parameters: int,
    trainable_parameters: int,
    model_size: float,
    total_training_modes: Mapping[str, int],
    total_flops: int | None,
) -> list[str]:
    """What stands below the table, in lines; without operations if they are None."""
    frozen = total_parameters - trainable_parameters
    lines = [
        f"{human_readable(total_parameters)} parameters ({model_size:,.3f} MB): "
        f"{human_readable(trainable_parameters)} trainable, {human_readable(frozen)} frozen",
        f"modules: {total_training_modes['train']} in train mode, {total_training_modes['eval']} in eval mode",
    ]
    if total_flops is not None:
        lines.append(f"{human_readable(total_flops)} FLOPs in a forward pass on the example input")
    return lines
