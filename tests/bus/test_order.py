"""Who is called before whom."""

from itertools import pairwise

import pytest

from hookbus.bus import Bus, OrderCycleError
from hookbus.bus.order import flags
from hookbus.callback import Callback
from hookbus.dialects import Implementation
from hookbus.markers import OWNERS, hookimpl, hookspec


def make_bus(owners=OWNERS, **options):
    class Specs:
        @hookspec(owners=owners)
        def x(self):
            pass

    bus = Bus(**{"list_order": True, **options})
    bus.add_hookspecs(Specs)
    return bus


def plugin(name, **options):
    def plain():
        return name

    def wrapper():
        return [name, *(yield)]

    namespace = {"x": hookimpl(**options)(wrapper if options.get("wrapper") else plain)}
    return type("P", (), {"x": staticmethod(namespace["x"])})()


def order(bus, *plugins):
    """The call order of plugins given as (name, options), which both paths must follow."""
    for name, options in plugins:
        owner = options.pop("owner", "callback")
        bus.register(plugin(name, **options), name, owner=owner)
    called = bus.fire.x()
    assert bus.hook.x() == called
    assert [position.plugin for position in bus.order("x")] == called
    assert [position.index for position in bus.order("x")] == list(range(1, len(called) + 1))
    return "".join(called)


def test_list_order_is_the_order_of_registration():
    assert order(make_bus(), ("a", {}), ("b", {}), ("c", {})) == "abc"


def test_otherwise_the_last_registered_is_called_first_as_in_pluggy():
    assert order(make_bus(list_order=False), ("a", {}), ("b", {}), ("c", {"trylast": True}), ("d", {})) == "dbac"


def test_groups():
    plugins = [
        ("l", {"trylast": True}),
        ("a", {}),
        ("w", {"wrapper": True}),
        ("f", {"tryfirst": True}),
        ("u", {"wrapper": True, "trylast": True}),
        ("b", {}),
        ("v", {"wrapper": True, "tryfirst": True}),
        ("g", {"tryfirst": True}),
        ("m", {"trylast": True}),
    ]
    assert order(make_bus(), *plugins) == "vwufgablm"


def by_owner():
    return [(owner[:2], {"owner": owner}) for owner in reversed(OWNERS)]


def test_kinds_of_owners():
    assert order(make_bus(), *by_owner()) == "caplde" + "moda"


def test_a_hook_may_have_an_order_of_owners_of_its_own():
    owners = ("module", "datamodule", "callback", "plugin", "default")
    assert order(make_bus(owners), *by_owner()) == "modacaplde"


def test_the_catalogue_lets_the_module_read_a_checkpoint_first_and_write_it_last():
    class Mine(Callback):
        def on_save_checkpoint(self, trainer, pl_module, checkpoint):
            pass

        def on_load_checkpoint(self, trainer, pl_module, checkpoint):
            pass

    bus = Bus.load(autoload=False)
    bus.register(Mine(), "module", owner="module")
    bus.register(Mine(), "callback")
    assert [p.plugin for p in bus.order("on_save_checkpoint")] == ["callback", "module"]
    assert [p.plugin for p in bus.order("on_load_checkpoint")] == ["module", "callback"]


def test_trylast_of_a_callback_comes_after_the_module():
    assert order(make_bus(), ("s", {"trylast": True}), ("m", {"owner": "module"}), ("c", {})) == "cms"


def test_an_overriding_method_keeps_the_mark_of_the_one_it_overrides():
    class Stopper(Callback):
        @hookimpl(trylast=True)
        def on_train_epoch_end(self, trainer):
            pass

    class MyStopper(Stopper):
        def on_train_epoch_end(self, trainer, pl_module):
            pass

    class Other(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            pass

    bus = Bus.load(autoload=False)
    bus.register(MyStopper())
    bus.register(Other())
    assert [(p.plugin, p.flags) for p in bus.order("on_train_epoch_end")] == [
        ("Other", ()),
        ("MyStopper", ("trylast",)),
    ]


# -- before and after ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [
        ([("a", {"after": "c"}), ("b", {}), ("c", {}), ("d", {})], "bcad"),
        ([("a", {}), ("b", {}), ("c", {"before": "a"}), ("d", {})], "cabd"),
        ([("a", {}), ("b", {"before": "d"}), ("c", {}), ("d", {})], "abcd"),  # already so: nobody moves
        ([("a", {"after": ["b", "d"]}), ("b", {}), ("c", {}), ("d", {})], "bcda"),
        ([("a", {}), ("b", {}), ("c", {"before": ["b", "a"]})], "cab"),
        ([("a", {"after": "absent"}), ("b", {"before": "absent"})], "ab"),
        ([("a", {}), ("m", {"owner": "module"}), ("l", {"trylast": True, "before": "a"})], "lam"),
        ([("f", {"tryfirst": True, "after": "m"}), ("m", {"owner": "module"}), ("l", {"trylast": True})], "mfl"),
        ([("a", {"after": "c"}), ("b", {"after": "a"}), ("c", {})], "cab"),
        ([("a", {}), ("b", {"before": "a"}), ("c", {"before": "b"})], "cba"),
        ([("a", {"after": "x"}), ("b", {}), ("x", {}), ("c", {"before": "a"})], "bxca"),
    ],
)
def test_whoever_asks_moves_only_as_far_as_it_must(plugins, expected):
    assert order(make_bus(), *[(name, dict(options)) for name, options in plugins]) == expected


def test_before_and_after_hold_when_the_other_comes_later_and_again_when_it_leaves():
    bus = make_bus()
    assert order(bus, ("a", {"after": "z"}), ("b", {})) == "ab"
    assert order(bus, ("z", {})) == "bza"
    bus.unregister(name="z")
    assert order(bus, ("c", {})) == "abc"


def test_before_and_after_work_without_list_order():
    assert order(make_bus(list_order=False), ("a", {"before": "c"}), ("b", {}), ("c", {})) == "acb"


def test_wrappers_are_ordered_among_each_other():
    assert order(make_bus(), ("w", {"wrapper": True, "after": "v"}), ("a", {}), ("v", {"wrapper": True})) == "vwa"


def test_the_names_are_those_of_plugins_of_every_owner():
    assert order(make_bus(), ("c", {"after": "m"}), ("m", {"owner": "module"})) == "mc"


def test_a_cycle_is_printed():
    bus = make_bus()
    bus.register(plugin("a", before="b"), "a")
    bus.register(plugin("b", before="c"), "b")
    with pytest.raises(OrderCycleError) as caught:
        bus.register(plugin("c", before="a"), "c")
    text = str(caught.value)
    assert "hook 'x': before/after form a cycle: " in text
    circle = text.partition("cycle: ")[2].partition(" (each before the next)")[0].split(" -> ")
    assert circle[0] == circle[-1]
    assert {tuple(pair) for pair in pairwise(circle)} == {("a", "b"), ("b", "c"), ("c", "a")}
    assert text.count("test_order.py:") == 3


def test_a_plugin_cannot_come_before_itself():
    with pytest.raises(OrderCycleError, match="cycle: a -> a"):
        make_bus().register(plugin("a", before="a"), "a")


def test_flags_are_spelled_as_in_the_mark():
    def function():
        pass

    hookimpl(tryfirst=True, before=["a", "b"], after="c", every=5, at=[3, 1], once=True, when=print, rank_zero=True)(
        function
    )
    made = Implementation("x", function, (), options=function.hookbus_impl)
    assert flags(made) == (
        *("tryfirst", "once", "rank_zero", "before=a", "before=b", "after=c"),
        *("every=5", "at=1,3", "when=print"),
    )
