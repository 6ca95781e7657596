"""What many tests need: distributions made up on the spot, and an environment without plugins of its own."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import importlib_metadata
import pytest


class MakeDistribution(Protocol):
    """Writes a distribution into a directory on ``sys.path``, as pip would; see :func:`make_distribution`."""

    def __call__(
        self,
        name: str,
        version: str = "1.0",
        entry_points: Mapping[str, Mapping[str, str]] | None = None,
        modules: Mapping[str, str] | None = None,
        *,
        directory: str = "site",
        metadata: str = "",
    ) -> Path: ...


@pytest.fixture(autouse=True)
def _no_plugin_settings() -> Iterator[None]:
    """A developer's own settings must not reach the tests, nor those of one test the next."""
    own = _settings()
    yield
    _settings()
    os.environ.update(own)


def _settings() -> dict[str, str]:
    """The variables that hookbus reads, taken out of the environment."""
    return {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("HOOKBUS_")}


@pytest.fixture(autouse=True)
def _no_installed_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor must the plugins that are installed beside hookbus, such as those in ``plugins/``."""
    site = tuple({os.path.join(sysconfig.get_path(name), "") for name in ("purelib", "platlib")})
    everything = importlib_metadata.distributions

    def distributions(**kwargs: object) -> Iterator[importlib_metadata.Distribution]:
        found = everything(**kwargs)
        return (one for one in found if not str(getattr(one, "_path", "")).startswith(site))

    monkeypatch.setattr(importlib_metadata, "distributions", distributions)


@pytest.fixture
def make_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeDistribution]:
    """Write a dist-info folder and modules, and put their directory on ``sys.path``.

    Args of the function that it gives:
        name, version: the distribution's.
        entry_points: ``{group: {name: value}}``.
        modules: ``{"pkg.mod": source}``.
        directory: a folder below ``tmp_path``; give a second one to have two on ``sys.path``.
        metadata: further lines of METADATA.

    Returns the directory that was written to. Modules imported from it are forgotten after the test.
    """
    written: set[str] = set()
    before = set(sys.modules)

    def make(
        name: str,
        version: str = "1.0",
        entry_points: Mapping[str, Mapping[str, str]] | None = None,
        modules: Mapping[str, str] | None = None,
        *,
        directory: str = "site",
        metadata: str = "",
    ) -> Path:
        root = tmp_path / directory
        info = root / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}")
        if entry_points is not None:
            lines = []
            for group, points in entry_points.items():
                lines += [f"[{group}]", *(f"{key} = {value}" for key, value in points.items()), ""]
            (info / "entry_points.txt").write_text("\n".join(lines))
        for module, source in (modules or {}).items():
            *packages, last = module.split(".")
            folder = root
            for package in packages:
                folder /= package
                folder.mkdir(exist_ok=True)
                (folder / "__init__.py").touch()
            (folder / f"{last}.py").write_text(source)
            written.add(module.partition(".")[0])
        if str(root) not in sys.path:
            monkeypatch.syspath_prepend(str(root))
        importlib.invalidate_caches()
        return root

    yield make
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in written:
            del sys.modules[name]
