"""The catalogue is read once; buses that take it from there are like those that read it themselves."""

import pytest

from hookbus import hookimpl
from hookbus.bus import Bus
from hookbus.bus.specification import of_catalogue
from hookbus.hookspecs import SPEC_MODULES, fit
from hookbus.markers import PROJECT


class Reads(Bus):
    """Has a way of its own to find specifications, which finds the same."""

    def parse_hookspec_opts(self, module_or_class, name):
        return super().parse_hookspec_opts(module_or_class, name)


def with_catalogue(kind):
    bus = kind(PROJECT, list_order=True, closed=True)
    for module in SPEC_MODULES:
        bus.add_hookspecs(module)
    return bus


def described(bus):
    return [
        (name, hook.shape, hook.spec.opts, hook.spec.argnames, hook.is_historic(), hook.is_tap)
        for name, hook in vars(bus.hook).items()
    ]


def test_hooks_are_as_if_read_by_the_bus_itself():
    taken, read = with_catalogue(Bus), with_catalogue(Reads)
    assert described(taken) == described(read)
    assert taken.arguments == read.arguments
    assert vars(taken.fire).keys() == vars(read.fire).keys()


def test_buses_share_no_implementations():
    first, second = with_catalogue(Bus), with_catalogue(Bus)

    class Answers:
        @hookimpl
        def train_dataloader(self):
            return [1]

    first.register(Answers())
    assert first.fire.train_dataloader(None) == [1]
    assert second.fire.train_dataloader(None) is None
    first.hook.on_plugin_registered.call_historic(kwargs={"plugin": None, "name": "x"})
    assert second.hook.on_plugin_registered._call_history == []


def test_a_second_time_is_refused_as_by_pluggy():
    bus = with_catalogue(Bus)
    with pytest.raises(ValueError, match="is already registered within namespace"):
        bus.add_hookspecs(fit)


def test_implementations_that_came_before_their_specification_are_kept():
    class Early:
        @hookimpl
        def on_fit_start(self, trainer):
            return trainer

    bus = Bus(PROJECT, list_order=True)
    bus.register(Early())
    bus.add_hookspecs(fit)
    assert bus.fire.on_fit_start("t", None) == ["t"]


def test_other_namespaces_are_read_by_each_bus():
    assert of_catalogue(Reads) is None
    assert Bus("other").arguments == {}
    with pytest.raises(ValueError, match="did not find any 'other' hooks"):
        Bus("other").add_hookspecs(fit)
