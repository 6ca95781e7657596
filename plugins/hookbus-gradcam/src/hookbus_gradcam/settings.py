"""What the plugin does when it was merely installed: settings from pyproject.toml and the environment.

::

    [tool.hookbus-gradcam]          # in the nearest pyproject.toml
    every = 5

    HOOKBUS_GRADCAM_EVERY=5         # wins over it
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from hookbus_gradcam.methods import method_called

TABLE: Final = "hookbus-gradcam"
PREFIX: Final = "HOOKBUS_GRADCAM_"


class SettingsError(ValueError):
    """A setting that cannot be understood: where it stands, what was expected, what stands there."""


@dataclass(frozen=True)
class Settings:
    """The settings, each a key of ``[tool.hookbus-gradcam]`` and, in capitals, a variable ``HOOKBUS_GRADCAM_…``.

    Attributes:
        every: draw in every N-th epoch; 0 for never.
        samples: which validation samples. ``"4"``: the first four of each loader; ``"0:7,1:3"``: sample 7 of the first
            loader and sample 3 of the second one.
        layers: the layers' names, separated by commas; empty for the last convolution.
        method: one of :data:`hookbus_gradcam.methods.METHODS`.
        target: ``predicted``, ``label``, or the number of a class.
        input: where in a batch the model's input is, a key or an index; empty for the usual places.
        output: where in the model's output the class scores are; empty for the usual places.
        directory: where pictures go; empty for ``gradcam`` in the run's log folder.
    """

    every: int = 1
    samples: str = "4"
    layers: str = ""
    method: str = "gradcam"
    target: str = "predicted"
    input: str = ""
    output: str = ""
    directory: str = ""


def read(environ: Mapping[str, str] | None = None, directory: str | os.PathLike[str] | None = None) -> Settings:
    """Collect the settings.

    Args:
        environ: the environment; ``os.environ`` by default.
        directory: where the search for pyproject.toml begins, upwards; the current directory by default.

    Raises:
        SettingsError: for a setting that there is not, or that cannot be understood.
    """
    environ = os.environ if environ is None else environ
    start = Path.cwd() if directory is None else Path(directory).absolute()
    values: dict[str, Any] = {}
    known = {field.name for field in fields(Settings)}
    for place, key, value in [*_from_pyproject(start), *_from_environment(environ)]:
        if key not in known:
            raise SettingsError(f"{place} has no {key!r}; expected one of {', '.join(sorted(known))}")
        values[key] = _understood(f"{place}: {key}", key, value)
    return Settings(**values)


def samples_called(text: str) -> int | dict[int, list[int]]:
    """Which samples a text means: the first so many of each loader, or some by loader.

    Raises:
        ValueError: it means nothing.
    """
    if text.strip().isdecimal():
        return int(text)
    chosen: dict[int, list[int]] = {}
    for part in text.split(","):
        loader, colon, sample = part.strip().partition(":")
        if not (colon and loader.isdecimal() and sample.isdecimal()):
            raise ValueError(f"expected a number, such as 4, or LOADER:SAMPLE, such as 0:7,1:3; got {text!r}")
        chosen.setdefault(int(loader), []).append(int(sample))
    return chosen


def _from_environment(environ: Mapping[str, str]) -> list[tuple[str, str, Any]]:
    names = sorted(name for name in environ if name.startswith(PREFIX) and environ[name].strip())
    return [(f"{PREFIX}*", name.removeprefix(PREFIX).lower(), environ[name].strip()) for name in names]


def _from_pyproject(start: Path) -> list[tuple[str, str, Any]]:
    path = next((p / "pyproject.toml" for p in (start, *start.parents) if (p / "pyproject.toml").is_file()), None)
    if path is None:
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read: {error}") from error
    if TABLE not in text:
        return []
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        table = tomllib.loads(text).get("tool", {}).get(TABLE, {})
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: expected TOML: {error}") from error
    place = f"{path}: [tool.{TABLE}]"
    if not isinstance(table, dict):
        raise SettingsError(f"{place}: expected a table, got {table!r}")
    return [(place, key, value) for key, value in table.items()]


def _understood(place: str, key: str, value: Any) -> Any:
    if key in ("layers", "samples") and isinstance(value, list):
        value = ",".join(map(str, value))
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise SettingsError(f"{place}: expected a string or a number, got {value!r} ({type(value).__name__})")
    text = str(value)
    try:
        if key == "every":
            if not text.isdecimal():
                raise ValueError(f"expected a number of epochs, or 0 for never; got {value!r}")
            return int(text)
        if key == "samples":
            samples_called(text)
        if key == "method":
            method_called(text)
        if key == "target" and not (text in ("predicted", "label") or text.isdecimal()):
            raise ValueError(f"expected predicted, label, or the number of a class; got {value!r}")
    except ValueError as error:
        raise SettingsError(f"{place}: {error}") from error
    return text
