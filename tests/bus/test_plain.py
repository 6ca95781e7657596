"""pluggy's plain way, taught folds and collected errors; and our implementations in pluggy's terms."""

import pytest

from hookbus.bus.dispatch import Shape
from hookbus.bus.plain import hookimpl_of, implementation_of, plain_implementation, run_special
from hookbus.dialects import Implementation
from hookbus.markers import hookimpl


def impl(function, args=("value",), **more):
    return hookimpl_of("plugin", "name", Implementation("x", function, args, **more))


def test_an_implementation_keeps_its_arguments_and_options():
    @hookimpl(tryfirst=True, every=3)
    def x(first, second):
        return first, second

    made = hookimpl_of("plugin", "name", Implementation("x", x, ("a", "b"), ("c",), x.hookbus_impl))
    assert (made.plugin, made.plugin_name, made.argnames, made.kwargnames) == ("plugin", "name", ("a", "b"), ("c",))
    assert made.tryfirst
    assert not made.trylast
    assert made.opts["every"] == 3
    assert made.function(1, 2) == (1, 2)


def test_a_silent_implementation_answers_nothing():
    assert impl(lambda value: value, silent=True).function(1) is None


def test_what_pluggy_made_itself_can_be_read():
    made = implementation_of(impl(lambda value: value))
    assert made.args == ("value",)
    assert plain_implementation(lambda: 7).function() == 7


def backwards(*impls):
    return list(reversed(impls))


def test_a_fold_the_plain_way():
    impls = backwards(impl(lambda value: value + 1), impl(lambda value: None), impl(lambda value: value * 10))
    assert run_special(Shape("x", ("value",), fold="value"), impls, {"value": 1}) == 20
    assert run_special(Shape("x", ("value",), fold="value"), [], {"value": 1}) == 1


def test_collected_errors_the_plain_way():
    def fails(value):
        raise ValueError(value)

    impls = backwards(impl(fails), impl(lambda value: value))
    with pytest.raises(ValueError, match="1"):
        run_special(Shape("x", ("value",), collect_errors=True), impls, {"value": 1})
    assert run_special(Shape("x", ("value",), collect_errors=True), impls[:1], {"value": 1}) == [1]
    first = Shape("x", ("value",), collect_errors=True, firstresult=True)
    assert run_special(first, impls[:1], {"value": 1}) == 1
    assert run_special(first, [], {"value": 1}) is None


def test_optional_parameters_get_what_the_call_has():
    def x(value, other="own"):
        return (value, other)

    impls = [impl(x, optional=("other",))]
    shape = Shape("x", ("value",), collect_errors=True)
    assert run_special(shape, impls, {"value": 1}) == [(1, "own")]
    assert run_special(shape, impls, {"value": 1, "other": 2}) == [(1, 2)]
