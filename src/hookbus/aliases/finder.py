"""The finder that makes ``import lightning`` give hookbus: in front of ``sys.meta_path`` while it is installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from hookbus.aliases.names import REASONS, ROOTS, served

#: The version of Lightning whose names and behaviour are served; packages parse it.
LIGHTNING_VERSION = "2.6.6"


class AliasModule(ModuleType):
    """A module whose names live elsewhere in hookbus and are fetched at their first use."""

    def __getattr__(self, name: str) -> Any:
        table = served()
        homes = table[self.__name__]
        if name in homes:
            home, ours = homes[name]
            value = getattr(import_module(home), ours)
            setattr(self, name, value)
            return value
        if f"{self.__name__}.{name}" in table:
            return import_module(f"{self.__name__}.{name}")
        raise AttributeError(absence(self.__name__, name), name=name, obj=self)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *served()[self.__name__], *submodules(self.__name__)})


class AliasFinder(MetaPathFinder, Loader):
    """Finds, and makes, the modules in the table; everything below one of its roots is its own."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module of Lightning's.

        Raises:
            ModuleNotFoundError: hookbus serves no such module; the message says which ones and why. It is raised, not
                left to the import system, because nobody else may answer for these names.
        """
        root = fullname.partition(".")[0]
        if root not in ROOTS:
            return None
        if fullname not in served():
            parent, _, name = fullname.rpartition(".")
            # Not the name of the module itself: `from parent import name` would put its own message in place of this.
            raise ModuleNotFoundError(absence(parent, name), name=parent)
        return ModuleSpec(fullname, self, origin="hookbus", is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty module; its names come when they are asked for."""
        return AliasModule(spec.name, f"{spec.name}, served by hookbus")

    def exec_module(self, module: ModuleType) -> None:
        """Give it what is known beforehand."""
        module.__dict__["__all__"] = [name for name in served()[module.__name__] if not name.startswith("_")]
        if module.__name__ in ROOTS or module.__name__ in ("lightning.pytorch", "lightning.fabric"):
            module.__dict__["__version__"] = LIGHTNING_VERSION


_FINDER = AliasFinder()


def install_aliases() -> None:
    """Serve ``lightning``, ``lightning.pytorch``, ``pytorch_lightning`` and ``lightning_fabric`` from hookbus.

    From here on in this process ``import lightning.pytorch as pl`` gives hookbus's Trainer, LightningModule, callbacks
    and loggers, and both spellings give the same classes. Names that hookbus does not have are absent: importing one is
    an ImportError that says what there is. A second call does nothing.

    Raises:
        RuntimeError: the real Lightning was imported already, so that two sets of classes would mix.
    """
    real = [name for name in ROOTS if name in sys.modules and not isinstance(sys.modules[name], AliasModule)]
    if real:
        places = ", ".join(f"{name} ({getattr(sys.modules[name], '__file__', 'no file')})" for name in real)
        raise RuntimeError(
            f"install_aliases() came too late: the real {places} is imported already, and its classes would mix with "
            "hookbus's. Call it before the first import of Lightning, or run the script with hookbus run --as-lightning"
        )
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def uninstall_aliases() -> None:
    """Serve Lightning's names no longer; modules that were imported under them are forgotten, classes in use stay."""
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    for name in [name for name, module in sys.modules.items() if isinstance(module, AliasModule)]:
        del sys.modules[name]


def submodules(name: str) -> list[str]:
    """The modules that are served right below ``name``."""
    prefix = f"{name}."
    return sorted(
        full[len(prefix) :] for full in served() if full.startswith(prefix) and "." not in full[len(prefix) :]
    )


def absence(parent: str, name: str) -> str:
    """Why ``parent.name`` is not there, and what is."""
    there = [*served().get(parent, ()), *submodules(parent)]
    reason = REASONS.get(name)
    return (
        f"hookbus serves {parent!r}, but no {name!r} in it"
        + (f": {reason}" if reason else "")
        + f". It offers: {', '.join(sorted(there)) or 'nothing'}"
    )
