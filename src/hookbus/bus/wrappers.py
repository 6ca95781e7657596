"""Entering and leaving hook wrappers, with the outcome that pluggy defines for every way in which they can end."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias

Wrapper: TypeAlias = Generator[None, Any, Any]


def enter(entered: list[Wrapper], wrapper: Wrapper) -> None:
    """Run ``wrapper`` up to its ``yield`` and note it among those ``entered``.

    Raises:
        RuntimeError: if it ends without a ``yield``.
    """
    try:
        next(wrapper)
    except StopIteration:
        raise _misbehaved(wrapper, "did not yield") from None
    entered.append(wrapper)


def leave(entered: list[Wrapper], result: Any, failure: BaseException | None) -> Any:
    """Run the rest of each entered wrapper, innermost first, and return or raise what is left at the end.

    Each gets the result of what it wraps, or has the exception raised at its ``yield``; what it returns or raises is
    what the next one out gets.
    """
    for wrapper in reversed(entered):
        try:
            if failure is None:
                wrapper.send(result)
            elif _passes(wrapper, failure):
                continue
        except StopIteration as stop:
            result, failure = stop.value, None
            continue
        except BaseException as error:  # noqa: BLE001 - kept, and raised below unless an outer wrapper handles it
            failure = error
            continue
        try:
            wrapper.close()
        except BaseException as error:  # noqa: BLE001 - as above
            failure = error
        else:
            failure = _misbehaved(wrapper, "has second yield")
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None  # else the frame and the exception keep each other, and all their tensors, alive
    return result


def _passes(wrapper: Wrapper, failure: BaseException) -> bool:
    """Raise ``failure`` at the wrapper's ``yield``; True if it is a StopIteration that the wrapper lets through.

    Python turns a StopIteration that leaves a generator into a RuntimeError (PEP 479); to the caller of a hook it must
    stay what it was.
    """
    try:
        wrapper.throw(failure)
    except RuntimeError as error:
        if isinstance(failure, StopIteration) and error.__cause__ is failure:
            return True
        raise
    finally:
        del failure  # as in leave()
    return False


def _misbehaved(wrapper: Wrapper, what: str) -> RuntimeError:
    code = wrapper.gi_code  # type: ignore[attr-defined]
    return RuntimeError(f"wrap_controller at {code.co_name!r} {code.co_filename}:{code.co_firstlineno} {what}")
