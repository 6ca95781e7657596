"""All hooks on a network: ours and everybody else's, to look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from hookbus.taps.select import places
from hookbus.taps.trampoline import Inert, Trampoline

_ON_MODULES = {
    "forward_pre": "_forward_pre_hooks",
    "forward": "_forward_hooks",
    "backward_pre": "_backward_pre_hooks",
    "backward": "_backward_hooks",
    "state_dict_pre": "_state_dict_pre_hooks",
    "state_dict": "_state_dict_hooks",
    "load_state_dict_pre": "_load_state_dict_pre_hooks",
    "load_state_dict_post": "_load_state_dict_post_hooks",
}
_ON_PARAMETERS = {"gradient": "_backward_hooks", "accumulated_gradient": "_post_accumulate_grad_hooks"}


@dataclass(frozen=True)
class InstalledHook:
    """One hook on a module or parameter.

    Attributes:
        name: dotted name of the module or parameter.
        kind: what it is called for.
        hook: what is called.
        taps: whether it is one of hookbus.
    """

    name: str
    kind: str
    hook: Any
    taps: bool


def installed_hooks(model: nn.Module) -> list[InstalledHook]:
    """The hooks on all modules and parameters of a network, in order; nothing is changed."""
    return list(_found(model))


def _found(model: nn.Module) -> Iterator[InstalledHook]:
    for place in places(model):
        yield from _of(place.name, place.module, _ON_MODULES)
        for name, parameter in place.module._parameters.items():
            if parameter is not None:
                yield from _of(f"{place.name}.{name}".lstrip("."), parameter, _ON_PARAMETERS)


def _of(name: str, owner: Any, kinds: dict[str, str]) -> Iterator[InstalledHook]:
    for kind, attribute in kinds.items():
        for hook in (getattr(owner, attribute, None) or {}).values():
            yield InstalledHook(name, kind, hook, isinstance(getattr(hook, "__self__", None), (Trampoline, Inert)))
