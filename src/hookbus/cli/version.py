"""``hookbus --version``: the versions that belong in a bug report, from metadata; nothing is imported for them."""

from __future__ import annotations

import platform

import importlib_metadata


def print_versions() -> int:
    """Print one line per part."""
    for name in ("hookbus", "pluggy", "torch"):
        print(name, _version(name))
    print("python", platform.python_version())
    return 0


def _version(name: str) -> str:
    try:
        return importlib_metadata.version(name)
    except importlib_metadata.PackageNotFoundError:
        return "(not installed)"
