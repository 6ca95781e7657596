"""Compares two recordings of one scenario, word for word, then the state at the end; and stores small differences."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Any

from tests.trainer.order.recorder import fold, unfold

#: Weights and metrics are stored rounded, and float32 sums may be ordered differently by another version of torch.
TOLERANCE = 2e-6


def differences(wanted: dict[str, Any], got: dict[str, Any]) -> list[str]:
    """The first word that differs and each entry of the final state that does, as sentences; none if all is equal."""
    found = []
    word = first_difference(unfold(wanted["order"]), unfold(got["order"]))
    if word is not None:
        found.append(word)
    for key in sorted(wanted["final"].keys() | got["final"].keys()):
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


def edits(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What turns one recording into another.

    Returns:
        ``words``: the position of the first word, the words there, and those in their place, for each difference;
        ``final``: the entries that are other or new; ``gone``: those that are no more.
    """
    a, b = unfold(before["order"]), unfold(after["order"])
    changes = [
        {"at": i, "instead_of": fold(a[i:j]), "comes": fold(b[k:m])}
        for kind, i, j, k, m in SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
        if kind != "equal"
    ]
    final = {k: v for k, v in after["final"].items() if not alike(v, before["final"].get(k))}
    return {"words": changes, "final": final, "gone": sorted(before["final"].keys() - after["final"].keys())}


def edited(before: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``before``, with the changes that :func:`edits` found."""
    words = unfold(before["order"])
    for change in reversed(changes["words"]):
        old = unfold(change["instead_of"])
        at = change["at"]
        assert words[at : at + len(old)] == old, f"the recording has other words at {at} than {old}"
        words[at : at + len(old)] = unfold(change["comes"])
    final = {k: v for k, v in before["final"].items() if k not in changes["gone"]}
    return {"order": fold(words), "final": {**final, **changes["final"]}}
