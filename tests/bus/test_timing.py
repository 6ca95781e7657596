"""Timing is compiled in while somebody asks."""

import pytest

from hookbus.bus import Bus
from hookbus.bus.timing import Timing
from hookbus.markers import hookimpl, hookspec


class Specs:
    @hookspec
    def x(self, a):
        pass


class Works:
    @hookimpl
    def x(self, a):
        if a < 0:
            raise ValueError(a)
        return a

    @hookimpl(wrapper=True, specname="x")
    def around(self):
        return (yield)


def make_bus():
    bus = Bus(list_order=True)
    bus.add_hookspecs(Specs)
    bus.register(Works(), "works")
    return bus


def test_calls_and_seconds_are_counted_also_when_they_raise():
    bus = make_bus()
    with bus.timed() as timing:
        bus.fire.x(1)
        with pytest.raises(ValueError):
            bus.fire.x(-1)
    spent = timing.spent["x", "works"]
    assert spent.calls == 2
    assert spent.seconds > 0
    assert list(timing.spent) == [("x", "works")]  # the wrapper is not timed


def test_the_clock_is_gone_afterwards():
    bus = make_bus()
    bus.fire.x(1)
    plain = bus.fire.x.__code__.co_names
    with bus.timed():
        bus.fire.x(1)
        assert [f.__name__ for f in called(bus)] == ["around", "timed"]
    bus.fire.x(1)
    assert [f.__name__ for f in called(bus)] == ["around", "x"]
    assert len(bus.fire.x.__code__.co_names) == len(plain)


def called(bus):
    return [value for name, value in bus.fire.x.__globals__.items() if name[1:2].isdigit()]


def test_plugins_that_come_while_the_clock_runs_are_timed():
    bus = make_bus()
    with bus.timed() as timing:
        bus.register(Works(), "late")
        bus.fire.x(1)
    assert timing.spent["x", "late"].calls == 1


def test_a_nested_clock_has_the_calls_made_within():
    bus = make_bus()
    with bus.timed() as outer:
        bus.fire.x(1)
        with bus.timed() as inner:
            bus.fire.x(1)
            bus.fire.x(1)
        bus.fire.x(1)
    assert (outer.spent["x", "works"].calls, inner.spent["x", "works"].calls) == (2, 2)


def test_the_clock_stops_when_the_block_raises():
    bus = make_bus()
    with pytest.raises(OSError), bus.timed():
        raise OSError
    assert bus.timing is None


def test_the_report_has_the_most_expensive_first():
    timing = Timing()
    for plugin, seconds in (("cheap", 0.001), ("dear", 2.0)):
        timing.timed("on_train_start", plugin, lambda: None)()
        timing.spent["on_train_start", plugin].seconds = seconds
    timing.timed("on_train_end", "never called", lambda: None)
    lines = timing.report().splitlines()
    assert lines[0].split() == ["seconds", "calls", "us/call", "hook"]
    assert lines[1].split() == ["2.0000", "1", "2000000.00", "on_train_start", "(dear)"]
    assert lines[2].split() == ["0.0010", "1", "1000.00", "on_train_start", "(cheap)"]
    assert len(lines) == 3
