"""A bus can be copied and pickled if its plugins can."""

import copy
import pickle
import sys
import types

import pytest

from hookbus.bus import Bus
from hookbus.callback import Callback
from hookbus.markers import hookimpl, hookspec


class Specs:
    @hookspec
    def on_start(self, trainer, stage):
        """Plain."""

    @hookspec(historic=True)
    def on_plugin_registered(self, plugin, name):
        """Historic."""


class Hears:
    def __init__(self):
        self.heard = []

    @hookimpl
    def on_plugin_registered(self, name):
        self.heard.append(name)


class Count(Callback):
    def __init__(self):
        self.calls = []

    def on_fit_start(self, trainer, pl_module):
        self.calls.append("fit start")


def example():
    bus = Bus(list_order=True, closed=True)
    bus.add_hookspecs(Specs)
    return bus


def who(bus, hook):
    return [position.plugin for position in bus.order(hook)]


class Travels:
    def __init__(self):
        self.calls = 0

    @hookimpl(every=2)
    def on_start(self, stage):
        self.calls += 1
        return stage


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda bus: pickle.loads(pickle.dumps(bus))], ids=["deepcopy", "pickle"]
)
def test_a_copy_has_copies_of_the_plugins_in_the_same_order_and_with_the_same_counters(copied):
    bus = example()
    bus.register(Travels(), "late", owner="module", source="here")
    bus.register(Travels(), "early", owner="callback")
    bus.register(sys.modules["textwrap"], "module")
    bus.set_blocked("unwanted")
    bus.fire.on_start(None, "fit")

    other = copied(bus)
    assert other.names() == bus.names()
    assert who(other, "on_start") == ["early", "late"]
    assert other.registration("late").source == "here"
    assert other.get_plugin("module") is sys.modules["textwrap"]
    assert other.is_blocked("unwanted")
    assert other.fire.on_start(None, "test") == ["test", "test"]
    assert other.get_plugin("late").calls == 1
    assert bus.get_plugin("late").calls == 0
    late = Hears()
    other.register(late, "hears")
    assert late.heard == ["late", "early", "module", "hears"]
    bus.unregister(name="early")
    assert len(other.order("on_start")) == 2


def test_the_whole_catalogue_can_be_pickled_with_callbacks():
    bus = Bus.load(autoload=False)
    bus.sync("callback", [Count()])
    other = pickle.loads(pickle.dumps(bus))
    other.fire.on_fit_start(None, None)
    assert other.get_plugin("Count").calls == ["fit start"]


def test_a_module_that_cannot_be_imported_by_name_says_so_when_copied():
    bus = example()
    bus.register(types.ModuleType("made_up"), "made_up")
    with pytest.raises(TypeError, match=r"cannot copy a bus with <module 'made_up'>"):
        pickle.dumps(bus)
