"""Hyper-parameters: remembering what a module or data module was made with."""

from __future__ import annotations

import copy
import inspect
import types
import warnings
from argparse import Namespace
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from hookbus.errors import MisconfigurationException


class AttributeDict(dict[str, Any]):
    """A dictionary whose keys are attributes as well: ``hparams.lr`` is ``hparams["lr"]``."""

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(
                f"there is no hyper-parameter {key!r}; there are: {', '.join(map(str, self)) or 'none'}"
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
        ordered = sorted(self.items(), key=lambda item: str(item[0]))
        return "\n".join(f'"{key}":{" " * (width - len(str(key)) + 1)}{value}' for key, value in ordered)


class HyperparametersMixin:
    """``save_hyperparameters`` and ``hparams``, for modules and data modules."""

    # On the class, not in ``__init__``: ``save_hyperparameters`` may come before ``super().__init__()``.
    _hparams_initial: AttributeDict = AttributeDict()
    _hparams_name: str | None = None
    _log_hyperparams = False

    def save_hyperparameters(
        self,
        *args: Any,
        ignore: Collection[str] | str | None = None,
        frame: types.FrameType | None = None,
        logger: bool = True,
    ) -> None:
        """Remember the arguments of ``__init__``; they go into checkpoints and, unless ``logger=False``, to the loggers.

        The values are those that the arguments have when this is called. Arguments of subclasses whose ``__init__`` is
        running count as well; where two have an argument of the same name, that of the outermost is taken, because
        that is what :meth:`load_from_checkpoint` will be given. Further calls add to what was remembered.

        Args:
            *args: names of arguments to remember, and mappings or namespaces whose entries to remember. Nothing: all
                arguments of ``__init__``.
            ignore: names to leave out, also of what an earlier call remembered.
            frame: the frame from which ``__init__`` was called or is running; by default that of the caller.
            logger: whether loggers are told.

        Raises:
            MisconfigurationException: a name is no argument of ``__init__``.
            ValueError: something that is neither a name nor a collection of hyper-parameters.
        """
        if frame is None:
            current = inspect.currentframe()
            frame = current.f_back if current is not None else None
        given = _init_arguments(self, frame)
        ignored = {ignore} if isinstance(ignore, str) else set(ignore or ())
        chosen, name = _chosen(type(self).__name__, args, given, ignored) if args else (given, "kwargs")
        self.remove_ignored_hparams(list(ignored))
        fresh = {key: value for key, value in chosen.items() if key not in ignored}
        _warn_of_modules(fresh)
        self.hparams.update(fresh)
        initial = {**self._hparams_initial, **{key: _copied(key, value) for key, value in fresh.items()}}
        object.__setattr__(self, "_hparams_initial", AttributeDict(initial))
        object.__setattr__(self, "_hparams_name", name)
        object.__setattr__(self, "_log_hyperparams", logger)

    def remove_ignored_hparams(self, ignore_list: list[str]) -> None:
        """Forget hyper-parameters by name; those that are not there are passed over."""
        for name in ignore_list:
            self.hparams.pop(name, None)
        kept = {key: value for key, value in self._hparams_initial.items() if key not in ignore_list}
        object.__setattr__(self, "_hparams_initial", AttributeDict(kept))

    @property
    def hparams(self) -> AttributeDict:
        """The hyper-parameters that were remembered; may be changed, and checkpoints hold them as they are then."""
        if "_hparams" not in self.__dict__:
            object.__setattr__(self, "_hparams", AttributeDict())
        own: AttributeDict = self.__dict__["_hparams"]
        return own

    @property
    def hparams_initial(self) -> AttributeDict:
        """A copy of the hyper-parameters as they were when they were remembered."""
        return AttributeDict({key: _copied(key, value) for key, value in self._hparams_initial.items()})


def _chosen(
    owner: str, args: tuple[Any, ...], given: Mapping[str, Any], ignored: set[str]
) -> tuple[dict[str, Any], str | None]:
    """What ``args`` ask for, and the name of the argument that holds it all, ``kwargs`` for arguments one by one."""
    chosen: dict[str, Any] = {}
    name: str | None = "kwargs"
    for arg in args:
        if isinstance(arg, str):
            if arg in given:
                chosen[arg] = given[arg]
            elif arg not in ignored:
                raise MisconfigurationException(
                    f"save_hyperparameters: {arg!r} is no argument of {owner}.__init__; there are: {', '.join(given) or 'none'}"
                )
        elif isinstance(arg, (Mapping, Namespace)):
            chosen.update(vars(arg) if isinstance(arg, Namespace) else arg)
            if len(args) == 1:
                name = next((key for key, value in given.items() if value is arg), None)
        else:
            raise ValueError(
                "save_hyperparameters takes names of arguments, mappings and Namespaces; got "
                f"{type(arg).__name__}: {arg!r}. To remember the value of an argument, pass its name"
            )
    return chosen, name


def _copied(name: str, value: Any) -> Any:
    """A deep copy; of modules only the reference, for they are large and in the checkpoint anyway."""
    if isinstance(value, torch.nn.Module):
        return value
    try:
        return copy.deepcopy(value)
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise TypeError(
            f"the hyper-parameter {name!r} cannot be copied ({error}), so it cannot be stored either; leave it out: "
            f"save_hyperparameters(ignore=[{name!r}])"
        ) from error


def _warn_of_modules(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, torch.nn.Module):
            warnings.warn(
                f"the hyper-parameter {name!r} is an nn.Module, whose weights are in every checkpoint already; leave it out: "
                f"save_hyperparameters(ignore=[{name!r}])",
                stacklevel=3,
            )


def _init_arguments(obj: object, frame: types.FrameType | None) -> dict[str, Any]:
    """The arguments of all ``__init__`` methods of ``obj`` that are running; the outermost ones win."""
    found: dict[str, Any] = {}
    while frame is not None:
        if frame.f_code.co_name == "__init__" and _first_argument(frame) is obj:
            found.update(_arguments(obj, frame))
        frame = frame.f_back
    return found


def _first_argument(frame: types.FrameType) -> Any:
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _arguments(obj: object, frame: types.FrameType) -> dict[str, Any]:
    """The arguments with which one ``__init__`` was called, those in ``**kwargs`` one by one; not ``*args``."""
    code, values = frame.f_code, frame.f_locals
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    found = {name: values[name] for name in names if name in values}
    if is_dataclass(obj) and code.co_filename == "<string>":
        # Generated code: defaults that a factory makes are in the fields, not in the arguments.
        made = {field.name for field in fields(obj) if hasattr(obj, field.name)}
        found = {name: getattr(obj, name) if name in made else value for name, value in found.items()}
    if code.co_flags & inspect.CO_VARKEYWORDS:
        keywords = code.co_varnames[len(names) + 1 + bool(code.co_flags & inspect.CO_VARARGS)]
        found.update(values.get(keywords, {}))
    return found


class HyperparametersClashError(MisconfigurationException, RuntimeError):
    """Module and data module have a hyper-parameter of the same name, with different values."""


def merged(*owned: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters of module and data module as one, for loggers, who know no owners.

    Raises:
        HyperparametersClashError: one has different values; Lightning raises a RuntimeError.
    """
    together: dict[str, Any] = {}
    for values in owned:
        clashing = [
            key
            for key, value in values.items()
            if key in together and key != "_class_path" and not _same(together[key], value)
        ]
        if clashing:
            raise HyperparametersClashError(
                f"the hyper-parameter(s) {', '.join(map(repr, clashing))} of module and data module have the same name and "
                f"different values ({', '.join(f'{together[key]!r} and {values[key]!r}' for key in clashing)}), so loggers "
                "cannot tell which is meant: rename one, or let one of them call save_hyperparameters(logger=False)"
            )
        together.update(values)
    together.pop("_class_path", None)  # the command line's own
    return together


def _same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    equal = a == b
    return bool(equal.all()) if hasattr(equal, "all") else bool(equal)
