"""Which plugins are switched on or off, and who said so.

What is said later wins over what was said earlier about the same plugin: ``[tool.hookbus]`` in the nearest
pyproject.toml, the environment, the command line's ``-p``, ``Trainer(plugins=[…])``. Each takes the same words:
``no:NAME`` leaves a plugin out, ``NAME`` or ``pkg.mod`` or ``pkg.mod:attribute`` takes one in. Imports no plugin.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

#: Plugins to take in or leave out, separated by commas.
PLUGINS_VARIABLE: Final = "HOOKBUS_PLUGINS"
#: Leaves out what is only installed.
AUTOLOAD_VARIABLE: Final = "HOOKBUS_DISABLE_PLUGIN_AUTOLOAD"
#: Makes a broken plugin an error.
STRICT_VARIABLE: Final = "HOOKBUS_STRICT"
#: The ``-p`` arguments of ``hookbus run``, handed on to this process and to those that it starts.
COMMAND_LINE_VARIABLE: Final = "HOOKBUS_COMMAND_LINE_PLUGINS"

_FILE: Final = "pyproject.toml"
#: Places that many machines share: a block there may name what only some of them have installed.
FLEET_SOURCES: Final = (PLUGINS_VARIABLE, _FILE)
_KEYS: Final[Mapping[str, tuple[type, str]]] = {
    "plugins": (list, 'a list of strings such as ["no:wandb", "mypackage.plugin"]'),
    "autoload": (bool, "true or false"),
    "strict": (bool, "true or false"),
}
_YES: Final = ("1", "true", "yes", "on")
_NO: Final = ("0", "false", "no", "off")


class ConfigError(ValueError):
    """A setting that cannot be understood: where it stands, what was expected, what stands there."""


@dataclass(frozen=True)
class Choice:
    """One plugin that somebody wants, or does not want.

    Attributes:
        name: the plugin's name, its distribution's or module's, or an import path.
        source: who said so: ``"-p"``, ``"HOOKBUS_PLUGINS"``, ``"pyproject.toml"``, ``"Trainer(plugins=...)"``.
        blocked: it is not wanted.
    """

    name: str
    source: str
    blocked: bool = False

    def __str__(self) -> str:
        return f"no:{self.name}" if self.blocked else self.name


@dataclass(frozen=True)
class PluginSelection:
    """Everything that was said about plugins.

    Attributes:
        choices: each word with its source, the later ones winning over the earlier.
        autoload: whether installed plugins are loaded without being asked for.
        strict: whether a broken plugin is an error.
        autoload_source: who switched the loading of installed plugins on or off.
    """

    choices: tuple[Choice, ...] = ()
    autoload: bool = True
    strict: bool = False
    autoload_source: str = "default"

    @property
    def blocked(self) -> tuple[Choice, ...]:
        """The plugins that are not wanted, by the last word about each name."""
        return tuple(choice for choice in self._last_words() if choice.blocked)

    @property
    def requested(self) -> tuple[Choice, ...]:
        """The plugins that are asked for, by the last word about each name."""
        return tuple(choice for choice in self._last_words() if not choice.blocked)

    def _last_words(self) -> Iterable[Choice]:
        return {choice.name: choice for choice in self.choices}.values()


def read_selection(
    *,
    arguments: Sequence[str] = (),
    trainer: Sequence[str] = (),
    strict: bool | None = None,
    autoload: bool | None = None,
    directory: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> PluginSelection:
    """Collect what all sources say.

    Args:
        arguments: the words after ``-p``, those of ``hookbus run`` excepted (see :func:`set_command_line`).
        trainer: the strings of ``Trainer(plugins=[…])``.
        strict: wins over what is configured, unless None.
        autoload: wins over what is configured, unless None.
        directory: where the search for pyproject.toml begins, upwards; the current directory by default.
        environ: the environment; ``os.environ`` by default.

    Raises:
        ConfigError: for a setting that cannot be understood, with its place and what was expected.
    """
    environ = os.environ if environ is None else environ
    path, table = _read_pyproject(Path.cwd() if directory is None else Path(directory).absolute())
    sources = [
        (_FILE, table.get("plugins", ()), f"{path}: [tool.hookbus] plugins"),
        (PLUGINS_VARIABLE, environ.get(PLUGINS_VARIABLE, "").split(","), PLUGINS_VARIABLE),
        ("-p", environ.get(COMMAND_LINE_VARIABLE, "").split(","), COMMAND_LINE_VARIABLE),
        ("-p", arguments, "-p"),
        ("Trainer(plugins=...)", trainer, "Trainer(plugins=...)"),
    ]
    choices = [choice for source, words, place in sources for choice in _choices(words, source, place)]

    chosen_autoload, autoload_source = True, "default"
    if "autoload" in table:
        chosen_autoload, autoload_source = table["autoload"], _FILE
    disabled = _flag(environ, AUTOLOAD_VARIABLE)
    if disabled is not None:
        chosen_autoload, autoload_source = not disabled, AUTOLOAD_VARIABLE
    if autoload is not None:
        chosen_autoload, autoload_source = autoload, f"autoload={autoload}"

    chosen_strict = table.get("strict", False)
    configured = _flag(environ, STRICT_VARIABLE)
    if configured is not None:
        chosen_strict = configured
    if strict is not None:
        chosen_strict = strict
    return PluginSelection(tuple(choices), chosen_autoload, chosen_strict, autoload_source)


def set_command_line(arguments: Sequence[str]) -> None:
    """Let the words after ``-p`` hold for every Trainer of this process and of the processes that it starts.

    Raises:
        ConfigError: for a word that cannot be understood.
    """
    words = [str(choice) for choice in _choices(arguments, "-p", "-p")]
    if words:
        os.environ[COMMAND_LINE_VARIABLE] = ",".join(words)
    else:
        os.environ.pop(COMMAND_LINE_VARIABLE, None)


def _choices(words: Iterable[object], source: str, place: str) -> Iterable[Choice]:
    for word in words:
        if not isinstance(word, str):
            raise ConfigError(f"{place}: expected a string such as 'no:wandb', got {word!r} ({type(word).__name__})")
        for part in word.split(","):
            name = part.strip()
            blocked = name.startswith("no:")
            name = name.removeprefix("no:").strip()
            if name:
                yield Choice(name, source, blocked)
            elif blocked:
                raise ConfigError(f"{place}: expected a name after 'no:', got {word!r}")


def _flag(environ: Mapping[str, str], name: str) -> bool | None:
    """A yes or no from the environment; None if it says neither."""
    value = environ.get(name, "").strip().lower()
    if not value:
        return None
    if value in _YES:
        return True
    if value in _NO:
        return False
    raise ConfigError(f"{name}: expected one of {', '.join(_YES + _NO)}, got {environ[name]!r}")


def _read_pyproject(directory: Path) -> tuple[Path | None, Mapping[str, Any]]:
    """The nearest pyproject.toml from ``directory`` upwards, and its table ``[tool.hookbus]``."""
    path = next((folder / _FILE for folder in (directory, *directory.parents) if (folder / _FILE).is_file()), None)
    if path is None:
        return None, {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not _may_configure(text):
        return path, {}
    return path, _checked(path, _parsed(path, text).get("tool", {}).get("hookbus", {}))


def _may_configure(text: str) -> bool:
    """Whether a table ``tool.hookbus`` can stand in ``text``, in any of TOML's spellings: saves parsing most files."""
    bare = text.translate(str.maketrans("", "", " \t\"'"))
    return "tool.hookbus" in bare or ("[tool]" in bare and "hookbus" in bare)


def _parsed(path: Path, text: str) -> dict[str, Any]:
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        found: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: expected TOML: {error}") from error
    return found


def _checked(path: Path, table: object) -> Mapping[str, Any]:
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: tool.hookbus: expected a table, got {table!r} ({type(table).__name__})")
    for key, value in table.items():
        if key not in _KEYS:
            raise ConfigError(f"{path}: [tool.hookbus] has no key {key!r}; expected one of {', '.join(_KEYS)}")
        kind, expected = _KEYS[key]
        if not isinstance(value, kind):
            raise ConfigError(
                f"{path}: [tool.hookbus] {key}: expected {expected}, got {value!r} ({type(value).__name__})"
            )
    return table
