"""Hyper-parameters: remembering what a module or data module was made with, and making it again from a checkpoint."""

from __future__ import annotations

import copy
import inspect
import types
from argparse import Namespace
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any


class AttributeDict(dict[str, Any]):
    """A dictionary whose keys are attributes as well: ``hparams.lr`` is ``hparams["lr"]``."""

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(
                f"there is no hyper-parameter {key!r}; there are: {', '.join(map(str, self))}"
            ) from None

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value

    def __delattr__(self, key: str) -> None:
        try:
            del self[key]
        except KeyError:
            raise AttributeError(f"there is no hyper-parameter {key!r}") from None

    def __repr__(self) -> str:
        width = max((len(str(key)) for key in self), default=0)
        return "\n".join(f'"{key}":{" " * (width - len(str(key)) + 1)}{value}' for key, value in sorted(self.items()))


class HyperparametersMixin:
    """``save_hyperparameters`` and ``hparams``, for modules and data modules."""

    def save_hyperparameters(
        self,
        *args: Any,
        ignore: Collection[str] | str | None = None,
        frame: types.FrameType | None = None,
        logger: bool = True,
    ) -> None:
        """Remember the arguments of ``__init__``; they go into checkpoints and, unless ``logger=False``, to the loggers.

        Args:
            *args: names of arguments to remember; or one mapping, namespace or dataclass instance that is what to
                remember. Nothing: all arguments.
            ignore: names to leave out.
            frame: the frame of the ``__init__`` whose arguments are meant; by default that of the caller.
            logger: whether loggers are told.

        Raises:
            ValueError: a name is no argument of ``__init__``.
        """
        if frame is None:
            current = inspect.currentframe()
            frame = current.f_back if current is not None else None
        given = _init_arguments(self, frame)
        ignored = {ignore} if isinstance(ignore, str) else set(ignore or ())
        name: str | None = None
        if not args:
            chosen: Mapping[str, Any] = given
            name = "kwargs" if given else None
        elif len(args) == 1 and not isinstance(args[0], str):
            chosen = _as_mapping(args[0])
            name = next((key for key, value in given.items() if value is args[0]), "kwargs")
        else:
            unknown = [arg for arg in args if arg not in given]
            if unknown:
                raise ValueError(
                    f"save_hyperparameters: {', '.join(map(repr, unknown))} is no argument of {type(self).__name__}.__init__; "
                    f"there are: {', '.join(given) or 'none'}"
                )
            chosen, name = {arg: given[arg] for arg in args}, "kwargs"
        kept = {key: value for key, value in chosen.items() if key not in ignored}
        # An outer __init__ adds to what an inner one has remembered.
        merged = {**self.hparams, **kept}
        object.__setattr__(self, "_hparams", AttributeDict(merged))
        object.__setattr__(
            self, "_hparams_initial", copy.deepcopy(AttributeDict(merged)) if _copyable(merged) else merged
        )
        object.__setattr__(self, "_hparams_name", name)
        object.__setattr__(self, "_log_hyperparams", logger)

    @property
    def hparams(self) -> AttributeDict:
        """The hyper-parameters that were remembered; may be changed."""
        if "_hparams" not in self.__dict__:
            object.__setattr__(self, "_hparams", AttributeDict())
        own: AttributeDict = self.__dict__["_hparams"]
        return own

    @property
    def hparams_initial(self) -> AttributeDict:
        """A copy of the hyper-parameters as they were remembered."""
        return AttributeDict(copy.copy(self.__dict__.get("_hparams_initial", {})))


def _copyable(values: Mapping[str, Any]) -> bool:
    """Whether a deep copy is cheap and possible: not where a module or another large object is among the values."""
    plain = (str, int, float, bool, type(None), list, tuple, dict, set)
    return all(isinstance(value, plain) for value in values.values())


def _as_mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Namespace):
        return vars(value)
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(
        f"save_hyperparameters takes names of arguments, or one mapping, Namespace or dataclass; got {type(value).__name__}"
    )


def _init_arguments(obj: object, frame: types.FrameType | None) -> dict[str, Any]:
    """The arguments of the ``__init__`` methods of ``obj`` that are running, inner classes first.

    A dataclass has its fields for arguments (there, the frame of ``__init__`` is that of generated code).
    """
    if is_dataclass(obj):
        return {
            field.name: getattr(obj, field.name) for field in fields(obj) if field.init and hasattr(obj, field.name)
        }
    found: dict[str, Any] = {}
    while frame is not None:
        if frame.f_code.co_name == "__init__" and frame.f_locals.get(_first_name(frame)) is obj:
            found = {**_arguments(frame), **found}
        elif found:
            break
        frame = frame.f_back
    return found


def _first_name(frame: types.FrameType) -> str:
    return frame.f_code.co_varnames[0] if frame.f_code.co_argcount else ""


def _arguments(frame: types.FrameType) -> dict[str, Any]:
    info = inspect.getargvalues(frame)
    names: Iterable[str] = [*info.args[1:]]
    code = frame.f_code
    keyword_only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    found = {name: info.locals[name] for name in (*names, *keyword_only) if name in info.locals}
    if info.keywords:
        extra: MutableMapping[str, Any] = info.locals.get(info.keywords, {})
        found.update(extra)
    found.pop("__class__", None)
    return found


def arguments_for(
    cls: type, saved: Mapping[str, Any], name: str | None, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """The keyword arguments with which ``cls`` is made again from saved hyper-parameters.

    Args:
        cls: the class.
        saved: its hyper-parameters.
        name: the name under which they were saved: that of an argument which took them all as one object, or
            ``kwargs`` for each on its own.
        overrides: arguments that win over saved ones.
    """
    parameters = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    if name and name in parameters and name != "kwargs" and name not in saved:
        return {name: AttributeDict({**saved, **overrides})}
    values = {**saved, **overrides}
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return dict(values)
    return {key: value for key, value in values.items() if key in parameters}
