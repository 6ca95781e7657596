"""The file system that a path means, as Lightning's clients ask for it."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any


def get_filesystem(path: str | os.PathLike[str], **kwargs: Any) -> Any:
    """The fsspec file system of a path or URL; that of this machine for a plain path.

    Args:
        path: such as ``out/run`` or ``s3://bucket/run``.
        **kwargs: for the file system.

    Raises:
        ImportError: fsspec, or the package of that protocol, is not installed.
    """
    return import_module("fsspec.core").url_to_fs(os.fspath(path), **kwargs)[0]
