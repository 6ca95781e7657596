"""Compares two recordings of one scenario, word for word, then the state at the end."""

from __future__ import annotations

from typing import Any

from tests.trainer.order.recorder import unfold

#: Weights and metrics are stored rounded, and float32 sums may be ordered differently by another version of torch.
TOLERANCE = 2e-6


def differences(wanted: dict[str, Any], got: dict[str, Any]) -> list[str]:
    """The first word that differs and each entry of the final state that does, as sentences; none if all is equal."""
    found = []
    word = first_difference(unfold(wanted["order"]), unfold(got["order"]))
    if word is not None:
        found.append(word)
    for key in wanted["final"].keys() | got["final"].keys():
        a, b = wanted["final"].get(key), got["final"].get(key)
        if not alike(a, b):
            found.append(f"at the end: {key} is {b}, wanted {a}")
    return found


def first_difference(wanted: list[str], got: list[str]) -> str | None:
    """The first word that differs, with those before it; None if there is none."""
    for i in range(max(len(wanted), len(got))):
        a = wanted[i] if i < len(wanted) else "the end"
        b = got[i] if i < len(got) else "the end"
        if a != b:
            return f"word {i}: {b}, wanted {a} (after {' '.join(wanted[max(0, i - 4) : i]) or 'nothing'})"
    return None


def alike(a: Any, b: Any) -> bool:
    """Whether two JSON values are equal, numbers up to the tolerance."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return abs(a - b) <= TOLERANCE * max(1.0, abs(a)) or (a != a and b != b)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(alike(a[k], b[k]) for k in a)
    return bool(a == b)
