"""May a plugin take part? Its name, role, state key and implementations are looked at before anything is registered.

All problems of the implementations are told at once, each with plugin, hook, place and a way out.
"""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hookbus.bus.errors import DuplicateStateKeyError, RegistrationError
from hookbus.bus.guard import refusal, role_of
from hookbus.bus.order import flag_name
from hookbus.dialects import Implementation
from hookbus.dialects.base import is_base, overridden
from hookbus.dialects.callback import is_callback
from hookbus.dialects.native import argument_names
from hookbus.dialects.signature import parameters_of
from hookbus.hookspecs import nearest

if TYPE_CHECKING:
    from hookbus.bus.bus import Bus
    from hookbus.bus.hook import Hook
    from hookbus.bus.registration import Registration


def check_names(registrations: Mapping[str, Registration], plugin: object, name: str, source: str) -> None:
    """Raise if ``name`` is taken or ``plugin`` takes part already.

    Raises:
        ValueError: with both sides and where they came from.
    """
    other = registrations.get(name)
    if other is not None:
        raise ValueError(
            f"Plugin name already registered: {name!r} is {other.plugin!r} (from {other.source}), so "
            f"{plugin!r} (from {source}) cannot have it; give one of them another name"
        )
    for other in registrations.values():
        if other.plugin is plugin:
            raise ValueError(
                f"Plugin already registered under a different name: {plugin!r} is {other.name!r} "
                f"(from {other.source}), it cannot be {name!r} as well"
            )


def role(plugin: object, name: str, owner: str, *, strict: bool) -> str:
    """The role of a plugin; what trains has none, whatever its attributes.

    Args:
        plugin: the object.
        name: its name.
        owner: its kind of owner.
        strict: whether an unknown word is an error. In a callback it is a warning: an attribute called ``role`` may be
            the author's own.

    Raises:
        RegistrationError: an unknown word, if strict.
    """
    if owner in ("module", "datamodule"):
        return "unspecified"
    try:
        return role_of(plugin)
    except ValueError as error:
        if strict and not is_callback(plugin):
            raise RegistrationError(plugin, f"plugin {name!r}: {error}") from None
        if strict:
            warnings.warn(f"plugin {name!r}: {error}; it counts as unspecified", UserWarning, stacklevel=3)
        return "unspecified"


def checked_state_key(registrations: Mapping[str, Registration], plugin: object, name: str) -> str | None:
    """The plugin's :func:`state_key`, which nobody else has.

    Raises:
        DuplicateStateKeyError: with both sides.
    """
    key = state_key(plugin)
    for other in registrations.values():
        if key is not None and other.state_key == key:
            raise DuplicateStateKeyError(
                plugin,
                f"plugins {other.name!r} ({type(other.plugin).__qualname__}, from {other.source}) and {name!r} "
                f"({type(plugin).__qualname__}) are both stateful and share the state_key {key!r}, so a checkpoint "
                "could keep only one of their states; override state_key so that it tells them apart",
            )
    return key


def check(bus: Bus, plugin: object, name: str, role: str, implementations: Sequence[Implementation]) -> None:
    """Raise if anything is wrong with the implementations of a plugin.

    Raises:
        RegistrationError: with all :func:`problems`.
    """
    found = problems(bus, name, role, implementations)
    if found:
        raise RegistrationError(plugin, "\n".join(found))


def problems(bus: Bus, name: str, role: str, implementations: Sequence[Implementation]) -> list[str]:
    """What is wrong with the implementations of a plugin, one message each; empty if all is well.

    Args:
        bus: where it is to be registered.
        name: the plugin's.
        role: the plugin's.
        implementations: what it implements.
    """
    found: list[str] = []
    for implementation in implementations:
        refused = refusal(implementation) if role == "monitor" else None
        if refused:
            found.append(f"plugin {name!r}: {refused}")
        hook: Hook | None = getattr(bus.hook, implementation.hook, None)
        if hook is not None and hook.has_spec():
            found += _against_spec(hook, name, implementation)
        elif bus.closed and not implementation.options.get("optionalhook"):
            known = [key for key, hook in vars(bus.hook).items() if hook.has_spec()]
            found.append(unknown_hook(implementation.hook, name, implementation.location, known))
    return found


def unknown_hook(hook: str, plugin: str, location: str, known: Sequence[str]) -> str:
    """The message for an implementation of a hook that does not exist."""
    return (
        f"unknown hook {hook!r} in plugin {plugin!r} ({location}){suggestion(hook, known)}; "
        "mark it optionalhook=True if another version of the host has it"
    )


def suggestion(word: str, known: Sequence[str]) -> str:
    """``; did you mean 'x'?``, or nothing if no name is near."""
    guess = nearest(word, known)
    return f"; did you mean {guess!r}?" if guess else ""


def _against_spec(hook: Hook, plugin: str, implementation: Implementation) -> list[str]:
    spec = hook.spec
    assert spec is not None
    if spec.warn_on_impl:
        _warn_at(implementation, spec.warn_on_impl)
    if spec.warn_on_impl_args:
        for name in (*implementation.args, *implementation.optional):
            if name in spec.warn_on_impl_args:
                _warn_at(implementation, spec.warn_on_impl_args[name])
    parameters = spec.argnames + spec.kwargnames
    unknown = [name for name in implementation.args if name not in parameters]
    keyword_only = _required_keyword_only(implementation)
    if not (unknown or keyword_only or implementation.options):
        return []  # as nearly all are
    where = f"plugin {plugin!r}, hook {hook.name!r} ({implementation.location})"
    found = []
    if unknown:
        hints = ", ".join(f"{name!r}{suggestion(name, parameters)}" for name in unknown)
        found.append(
            f"{where}: Argument(s) {set(unknown)} are declared in the hookimpl but can not be found in the hookspec: "
            f"{hints} (the hook has: {', '.join(parameters) or 'no arguments'})"
        )
    predicate = implementation.options.get("when")
    if predicate is not None:
        unknown = [name for name in argument_names(predicate)[0] if name not in parameters]
        if unknown:
            hints = ", ".join(f"{name!r}{suggestion(name, parameters)}" for name in unknown)
            found.append(
                f"{where}: the predicate of when={flag_name(predicate)} asks for {hints} "
                f"(the hook has: {', '.join(parameters) or 'no arguments'})"
            )
    if keyword_only:
        found.append(f"{where}: keyword-only argument(s) {keyword_only} would get no value; drop the '*' before them")
    wrapper, old = implementation.options.get("wrapper"), implementation.options.get("hookwrapper")
    if wrapper and old:
        found.append(f"{where}: The wrapper=True and hookwrapper=True options are mutually exclusive")
    elif implementation.wrapper and not inspect.isgeneratorfunction(implementation.function):
        found.append(
            f"{where}: Declared as wrapper=True or hookwrapper=True but function is not a generator function: "
            "it needs one `yield`, where the other implementations run"
        )
    found += _tap_problems(hook, where, implementation)
    if implementation.wrapper and hook.is_historic():
        found.append(f"{where}: a historic hook is incompatible with wrapper/hookwrapper: nothing waits at its calls")
    return found


def _tap_problems(hook: Hook, where: str, implementation: Implementation) -> list[str]:
    """What is wrong with the options of taps, or with an implementation of a tap."""
    options = implementation.options
    if not hook.is_tap:
        given = [f"{word}=" for word in ("modules", "types", "phases", "edits") if options.get(word)]
        return [f"{where}: {', '.join(given)} has a meaning for hooks inside the network only"] if given else []
    if implementation.wrapper:
        return [f"{where}: a hook inside the network cannot be wrapped; use edits=True to change what it is given"]
    return []


def _required_keyword_only(implementation: Implementation) -> str:
    function = getattr(implementation.function, "__func__", implementation.function)
    if type(function) is types.FunctionType and not (function.__code__.co_kwonlyargcount or function.__dict__):
        return ""
    parameters = parameters_of(implementation.function) or ()
    required = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    return ", ".join(name for name in required if name not in implementation.optional)


def _warn_at(implementation: Implementation, warning: Warning) -> None:
    """Issue ``warning`` as if the implementation's own line had."""
    path, _, line = implementation.location.rpartition(":")
    warnings.warn_explicit(warning, type(warning), filename=path or "<unknown>", lineno=int(line) if path else 1)


def state_key(plugin: object) -> str | None:
    """The key under which a plugin's state is saved; None for one without state."""
    if inspect.isclass(plugin) or not (overridden(plugin, "state_dict") or overridden(plugin, "load_state_dict")):
        return None
    key = getattr(plugin, "state_key", None)
    return None if key is None else str(key)  # a class, in callbacks of old


def reject_class(plugin: object) -> None:
    """Raise if ``plugin`` is a class of which an instance was meant.

    Raises:
        TypeError: for a subclass of Callback, LightningModule or LightningDataModule.
    """
    if inspect.isclass(plugin) and any(is_base(cls) for cls in plugin.__mro__):
        raise TypeError(f"{plugin.__name__} is a class; register an instance: {plugin.__name__}(…)")
