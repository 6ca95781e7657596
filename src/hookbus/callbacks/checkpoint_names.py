"""File names of checkpoints: templates such as ``{epoch}-{val_loss:.2f}``, filled with what was logged.

A field is the name of a metric, or ``epoch`` or ``step``, with an optional format behind a colon. A filled field shows
its name too (``epoch=3-val_loss=0.27``) unless that is switched off. A metric that was not logged counts as 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hookbus.errors import MisconfigurationException

_FIELD = re.compile(r"\{([^{}:]*)(?::([^{}]*))?\}")


def fill(template: str, metrics: Mapping[str, Any], *, equals: str = "=", insert_names: bool = True) -> str:
    """The template with values in place of its fields.

    Args:
        template: text with fields.
        metrics: numbers or one-element tensors by name.
        equals: what stands between the name of a field and its value.
        insert_names: put the name of a field before its value.

    Raises:
        ValueError: a value cannot be written in the format that its field asks for.
    """

    def value_of(field: re.Match[str]) -> str:
        name, form = field[1], field[2] or ""
        value = metrics.get(name, 0)
        value = value.item() if isinstance(value, Tensor) else value
        try:
            text = format(value, form)
        except ValueError as error:
            raise ValueError(
                f"the file name {template!r} asks for {name!r} in the format {form!r}, which does not suit the value "
                f"{value!r} ({error}); use a format for floats, such as {{{name}:.2f}}"
            ) from None
        return f"{name}{equals}{text}" if insert_names else text

    return _FIELD.sub(value_of, template)


def check_template(template: str) -> None:
    """See to it that a template can be filled, before a run depends on it.

    Raises:
        MisconfigurationException: it has a stray brace, a field without a name, or a format that suits no number.
    """
    rest = _FIELD.sub("", template)
    if "{" in rest or "}" in rest:
        raise MisconfigurationException(
            f"filename={template!r} has a brace that does not belong to a field; a field is {{name}} or {{name:.2f}}"
        )
    for field in _FIELD.finditer(template):
        name, form = field[1], field[2] or ""
        if not name:
            raise MisconfigurationException(
                f"filename={template!r} has a field without a name; name a metric, 'epoch' or 'step'"
            )
        if not (_formats(0, form) or _formats(0.0, form)):
            raise MisconfigurationException(
                f"filename={template!r}: {form!r} is no format for a number; use one such as {{{name}:.2f}}"
            )


def pattern(template: str, extension: str) -> re.Pattern[str]:
    """Matches the file names that :func:`fill` can make of ``template``, with and without a version ``-v1``."""
    parts, end = [], 0
    for field in _FIELD.finditer(template):
        parts += [re.escape(template[end : field.start()]), ".+"]
        end = field.end()
    parts.append(re.escape(template[end:]))
    return re.compile("".join(parts) + r"(-v\d+)?" + re.escape(extension) + r"\Z")


def _formats(value: float, form: str) -> bool:
    try:
        format(value, form)
    except ValueError:
        return False
    return True
