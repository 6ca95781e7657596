"""Entering and leaving wrappers, one step at a time."""

import pytest

from hookbus.bus.wrappers import enter, leave


def entered(*functions):
    found = []
    for function in functions:
        enter(found, function())
    return found


def passes():
    return (yield)


def test_results_go_from_the_innermost_out():
    def marks(name):
        def wrapper():
            return [*(yield), name]

        return wrapper

    assert leave(entered(marks("outer"), marks("inner")), [1], None) == [1, "inner", "outer"]


def test_a_wrapper_that_returns_nothing_replaces_the_result_by_none():
    def forgets():
        yield

    assert leave(entered(forgets), [1], None) is None


def test_an_exception_is_raised_at_each_yield_until_one_handles_it():
    seen = []

    def looks():
        try:
            return (yield)
        except ValueError as error:
            seen.append(str(error))
            raise

    def handles():
        try:
            return (yield)
        except ValueError:
            return "handled"

    assert leave(entered(passes, handles, looks), [], ValueError("bad")) == "handled"
    assert seen == ["bad"]


def test_stop_iteration_is_what_it_was_after_wrappers_that_let_it_through():
    failure = StopIteration(7)
    with pytest.raises(StopIteration) as caught:
        leave(entered(passes, passes), [], failure)
    assert caught.value is failure


def test_stop_iteration_of_the_wrapper_itself_becomes_pythons_runtime_error():
    def stops():
        yield
        raise StopIteration

    with pytest.raises(RuntimeError, match="generator raised StopIteration"):
        leave(entered(stops), [], None)


def test_keyboard_interrupt_goes_through():
    with pytest.raises(KeyboardInterrupt):
        leave(entered(passes), [], KeyboardInterrupt())


def test_no_yield_is_an_error_that_names_the_wrapper():
    def broken():
        if False:
            yield

    with pytest.raises(RuntimeError, match=r"'broken' .*test_wrappers.py:\d+ did not yield"):
        entered(broken)


def test_a_second_yield_is_an_error_and_closes_the_wrapper():
    closed = []

    def twice():
        try:
            yield
            yield
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match=r"'twice' .* has second yield"):
        leave(entered(twice), [], None)
    assert closed == [True]


def test_what_a_wrapper_raises_while_it_is_closed_leaves():
    def stubborn():
        yield
        try:
            yield
        finally:
            raise OSError("while closing")

    with pytest.raises(OSError, match="while closing"):
        leave(entered(stubborn), [], None)
