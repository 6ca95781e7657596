"""The methods of ``torch.nn.utils.prune`` by their names, with the arguments that each needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torch import nn
from torch.nn.utils import prune

from hookbus.errors import MisconfigurationException

#: For each name the function that prunes one parameter, and the class that compares several.
_METHODS: Final[dict[str, tuple[Callable[..., Any], type[prune.BasePruningMethod]]]] = {
    "ln_structured": (prune.ln_structured, prune.LnStructured),
    "l1_unstructured": (prune.l1_unstructured, prune.L1Unstructured),
    "random_structured": (prune.random_structured, prune.RandomStructured),
    "random_unstructured": (prune.random_unstructured, prune.RandomUnstructured),
}


@dataclass(frozen=True)
class Method:
    """How to prune.

    Attributes:
        name: in words.
        function: prunes one parameter; None if parameters are compared with each other.
        kind: the class of torch that compares them.
        options: further arguments.
    """

    name: str
    function: Callable[..., Any] | None
    kind: type[prune.BasePruningMethod]
    options: dict[str, Any] = field(default_factory=dict)

    def apply(self, parameters: Sequence[tuple[nn.Module, str]], amount: int | float) -> None:
        """Prune parameters, given as pairs of owner and name."""
        if self.function is not None:
            for module, name in parameters:
                self.function(module, name=name, amount=amount, **self.options)
            return
        options = {"amount": amount} if "amount" in inspect.signature(self.kind).parameters else {}
        prune.global_unstructured(parameters, pruning_method=self.kind, **options)


def choose_method(pruning_fn: Any, everywhere: bool, dim: int | None, norm: int | None) -> Method:
    """The method that the arguments of ``ModelPruning`` mean.

    Args:
        pruning_fn: a name, or a class derived from ``BasePruningMethod``.
        everywhere: whether parameters are compared with each other.
        dim: for structured methods.
        norm: for ``ln_structured``.

    Raises:
        MisconfigurationException: there is no such method, it lacks an argument, or it cannot be used so.
    """
    if isinstance(pruning_fn, str):
        name = pruning_fn.lower()
        if name not in _METHODS:
            raise MisconfigurationException(f"pruning_fn must be one of {', '.join(_METHODS)}, got {pruning_fn!r}")
        function, kind = _METHODS[name]
        options: dict[str, Any] = {}
        if name.endswith("_structured"):
            if dim is None:
                raise MisconfigurationException(f"{name} prunes along a dimension: give pruning_dim")
            options["dim"] = dim
        if name == "ln_structured":
            if norm is None:
                raise MisconfigurationException(f"{name} compares by a norm: give pruning_norm")
            options["n"] = norm
        method = Method(name, None if everywhere else function, kind, options)
    elif isinstance(pruning_fn, type) and issubclass(pruning_fn, prune.BasePruningMethod):
        if not everywhere:
            raise MisconfigurationException(
                f"{pruning_fn.__name__} can be used with use_global_unstructured=True only, as torch offers no function for it"
            )
        method = Method(pruning_fn.__name__, None, pruning_fn)
    else:
        raise MisconfigurationException(
            f"pruning_fn must be one of {', '.join(_METHODS)}, or a class derived from "
            f"torch.nn.utils.prune.BasePruningMethod (the class, not an instance); got {pruning_fn!r}"
        )
    if everywhere and getattr(method.kind, "PRUNING_TYPE", None) != "unstructured":
        raise MisconfigurationException(
            f"{method.name} prunes whole rows or channels, which cannot be compared across parameters: use "
            "use_global_unstructured=False, or an unstructured method"
        )
    return method
