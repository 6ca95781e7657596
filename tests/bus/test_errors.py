"""Several errors brought home in one, and errors kept without their frames."""

import gc
import weakref

import pluggy
import pytest

from hookbus.bus.errors import (
    DuplicateStateKeyError,
    EarlierError,
    OrderCycleError,
    RegistrationError,
    add_note,
    raise_first,
)


def test_no_error_no_exception():
    assert raise_first([]) is None


def test_the_first_leaves_with_the_others_as_notes_and_the_list_is_emptied():
    first = ValueError("one")
    errors = [first, OSError("two"), first]
    with pytest.raises(ValueError) as caught:
        raise_first(errors)
    assert caught.value is first
    assert first.__notes__ == ["then, while that was handled: OSError: two"]
    assert errors == []


def test_notes_add_up():
    error = ValueError()
    add_note(error, "a")
    add_note(error, "b")
    assert error.__notes__ == ["a", "b"]


def test_an_earlier_error_keeps_text_and_traceback_but_no_frame():
    class Tensor:
        pass

    def fails(tensor):
        raise ValueError("bad tensor")

    tensor = Tensor()
    ref = weakref.ref(tensor)
    try:
        fails(tensor)
    except ValueError as error:
        kept = EarlierError(error)
    del tensor
    gc.collect()
    assert str(kept) == "ValueError: bad tensor"
    assert "in fails" in kept.traceback
    assert ref() is None


def test_registration_errors_are_pluggys_and_value_errors():
    error = OrderCycleError("plugin", "text")
    assert isinstance(error, RegistrationError)
    assert isinstance(error, pluggy.PluginValidationError)
    assert isinstance(error, ValueError)
    assert error.plugin == "plugin"
    assert issubclass(DuplicateStateKeyError, RuntimeError)
