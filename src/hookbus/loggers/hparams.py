"""``hparams.yaml``: hyperparameters as YAML that any YAML reader understands, written without a YAML package.

Mappings become blocks, everything below them JSON, which is YAML, too. What is neither a plain value nor a collection
of such (a class, a function, a tensor) is written as the text of its ``repr``.
"""

from __future__ import annotations

import enum
import json
import math
import os
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_NOT_TEXT = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def to_yaml(params: Mapping[Any, Any], indent: str = "") -> str:
    """The text of a mapping, one line per entry, ending with a newline."""
    if not params:
        return f"{indent}{{}}\n"
    lines = []
    for key, value in params.items():
        if isinstance(value, Mapping) and value:
            lines.append(f"{indent}{_key(key)}:\n{to_yaml(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{_key(key)}: {_value(value)}\n")
    return "".join(lines)


def write_hparams(directory: Path, params: Mapping[str, Any], own: Path | None = None) -> Path:
    """Write ``hparams.yaml``; a file of an earlier run with other content stays, and ours gets a number.

    Args:
        directory: where.
        params: what.
        own: the file that this run has written before, which may be replaced.

    Returns:
        The file written.
    """
    text = to_yaml(params)
    path = own or directory / "hparams.yaml"
    number = 0
    while path != own and path.exists() and path.read_text(encoding="utf-8") != text:
        number += 1
        path = directory / f"hparams_{number}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def _key(key: Any) -> str:
    text = str(key)
    return text if _PLAIN_KEY.fullmatch(text) and text.lower() not in _NOT_TEXT else _quoted(text)


def _quoted(text: str) -> str:
    return '"' + "".join(map(_character, text)) + '"'


def _character(character: str) -> str:
    if character.isprintable() and character not in '"\\':
        return character
    # Not JSON's form beyond 16 bits: YAML would read its two halves as two characters.
    return json.dumps(character)[1:-1] if ord(character) < 0x10000 else f"\\U{ord(character):08x}"


def _value(value: Any) -> str:
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, str):
        return _quoted(value)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _float(float(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_quoted(str(key))}: {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Set):
        value = sorted(value, key=repr)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return _quoted(str(os.fspath(value)) if isinstance(value, os.PathLike) else repr(value))


def _float(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    # YAML 1.1 readers take 1e-05 for text: a float needs a point there.
    return text if "." in text or "e" not in text else text.replace("e", ".0e")
