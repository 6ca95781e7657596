"""Who takes part in a bus, under which name, and what happens when that changes."""

import gc
import re
import types
import warnings
import weakref
from dataclasses import dataclass

import pluggy
import pytest

from hookbus.bus import Bus, DuplicateStateKeyError, RegistrationError, UnknownHookError
from hookbus.callback import Callback
from hookbus.errors import MisconfigurationException
from hookbus.markers import hookimpl, hookspec


class Specs:
    @hookspec
    def on_start(self, trainer, stage):
        """Plain."""

    @hookspec(firstresult=True)
    def answer(self, question):
        """First result."""

    @hookspec(historic=True)
    def on_plugin_registered(self, plugin, name):
        """Historic."""


def make_bus(**options):
    bus = Bus(**{"list_order": True, "closed": True, **options})
    bus.add_hookspecs(Specs)
    return bus


def catalogue():
    return Bus.load(autoload=False)


class Greeter:
    """A plugin whose answer says which one it is."""

    def __init__(self, word="hello"):
        self.word = word

    @hookimpl
    def on_start(self, stage):
        return f"{self.word} {stage}"


class Count(Callback):
    def __init__(self):
        self.calls = []

    def on_fit_start(self, trainer, pl_module):
        self.calls.append("fit start")


# -- names and registration ------------------------------------------------------------------------------------------


def test_names_are_readable_and_unique_in_list_order():
    bus = make_bus()
    assert [bus.register(Greeter()), bus.register(Greeter()), bus.register(Greeter())] == [
        "Greeter",
        "Greeter#2",
        "Greeter#3",
    ]
    assert bus.names() == ["Greeter", "Greeter#2", "Greeter#3"]


def test_a_freed_name_is_given_again():
    bus = make_bus()
    first, second = Greeter(), Greeter()
    bus.register(first)
    bus.register(second)
    bus.unregister(first)
    assert bus.register(Greeter()) == "Greeter"
    assert bus.get_name(second) == "Greeter#2"


def test_name_taken_names_both_sides_and_their_sources():
    bus = make_bus()
    bus.register(Greeter("old"), "greeter", source="-p")
    with pytest.raises(ValueError, match=r"'greeter' is .*Greeter.*from -p.*Greeter.*from pyproject.toml"):
        bus.register(Greeter("new"), "greeter", source="pyproject.toml")
    assert bus.fire.on_start(None, "fit") == ["old fit"]


def test_one_object_is_registered_once():
    bus, plugin = make_bus(), Greeter()
    bus.register(plugin, "one")
    with pytest.raises(ValueError, match=r"already registered under a different name.*'one'.*'two'"):
        bus.register(plugin, "two")


def test_equal_objects_are_different_plugins():
    @dataclass
    class Equal:
        number: int

        @hookimpl
        def answer(self, question):
            return self.number

    first, second = Equal(1), Equal(1)
    bus = make_bus()
    bus.register(first)
    bus.register(second)
    assert len(bus.order("answer")) == 2
    bus.unregister(first)
    assert not bus.is_registered(first)
    assert bus.is_registered(second)
    assert bus.fire.answer("?") == 1


def test_unknown_owner_is_refused():
    with pytest.raises(ValueError, match=r"callback, plugin, default, module, datamodule, got 'logger'"):
        make_bus().register(Greeter(), owner="logger")


def test_registered_is_for_the_time_of_a_block():
    bus = make_bus()
    with bus.registered(Greeter(), "guest", owner="plugin") as name:
        assert name == "guest"
        assert bus.registration("guest").owner == "plugin"
        assert bus.fire.on_start(None, "fit") == ["hello fit"]
    assert bus.fire.on_start(None, "fit") == []
    with bus.registered(plugin := Greeter()):
        bus.unregister(plugin)  # already gone at the end of the block: nothing to do


def test_lookup_of_an_absent_plugin_says_who_is_there():
    bus = make_bus()
    bus.register(Greeter(), "alpha")
    with pytest.raises(KeyError, match=r"no plugin 'beta' is registered; there are: alpha"):
        bus.registration("beta")


def test_none_is_no_plugin():
    assert make_bus().register(None) is None


# -- what is refused leaves nothing ----------------------------------------------------------------------------------


def state(bus):
    return (
        bus.names(),
        bus.list_name_plugin(),
        {name: [impl.plugin for impl in hook.get_hookimpls()] for name, hook in vars(bus.hook).items()},
    )


def test_all_problems_are_told_at_once_and_nothing_is_registered():
    class Wrong:
        @hookimpl
        def on_start(self, trainer, stagge):
            pass

        @hookimpl
        def anwser(self, question):
            pass

        @hookimpl(wrapper=True)
        def answer(self):
            return 1

        @hookimpl(specname="answer", when=lambda questoin: True)
        def filtered(self):
            pass

        @hookimpl(specname="on_start")
        def keyword(self, *, stage):
            pass

    bus = make_bus()
    before = state(bus)
    with pytest.raises(RegistrationError) as caught:
        bus.register(Wrong(), "wrong")
    assert state(bus) == before
    text = str(caught.value)
    for line in (
        r"plugin 'wrong', hook 'on_start' \(.*test_bus.py:\d+\): Argument\(s\) {'stagge'}.*did you mean 'stage'\?",
        r"unknown hook 'anwser' in plugin 'wrong' \(.*test_bus.py:\d+\); did you mean 'answer'\?",
        r"hook 'answer' \(.*test_bus.py:\d+\): Declared as wrapper=True.*not a generator function",
        r"predicate of when=<lambda> asks for 'questoin'; did you mean 'question'\?",
        r"keyword-only argument\(s\) stage would get no value",
    ):
        assert re.search(line, text), text
    assert len(text.splitlines()) == 5


def test_a_cycle_leaves_nothing():
    class First:
        @hookimpl(before="second", optionalhook=True)
        def a_hook_of_another_version(self):
            pass

        @hookimpl(before="second")
        def on_start(self):
            return "first"

    class Second:
        @hookimpl(optionalhook=True)
        def a_second_hook_of_another_version(self):
            pass

        @hookimpl(before="first")
        def on_start(self):
            return "second"

    bus = make_bus()
    bus.register(First(), "first")
    before = state(bus)
    with pytest.raises(RegistrationError, match="cycle"):
        bus.register(Second(), "second")
    assert state(bus) == before
    assert bus.fire.on_start(None, "fit") == ["first"]


def test_an_error_while_history_is_replayed_leaves_nothing():
    class Late:
        @hookimpl
        def on_start(self):
            return "late"

        @hookimpl
        def on_plugin_registered(self, name):
            raise OSError(f"heard of {name}")

    bus = make_bus()
    bus.register(Greeter())
    before = state(bus)
    with pytest.raises(OSError, match="heard of Greeter"):
        bus.register(Late())
    assert state(bus) == before


def test_a_class_instead_of_an_instance_is_an_error():
    with pytest.raises(RegistrationError, match=r"Count is a class; register an instance: Count\(…\)"):
        catalogue().register(Count)


def test_an_unmarked_method_with_a_hooks_name_is_warned_of():
    class Forgot:
        @hookimpl
        def on_fit_start(self):
            pass

        def on_train_start(self, trainer):
            pass

        def setup(self):  # a name that ordinary classes have, too
            pass

    with pytest.warns(UserWarning, match=r"plugin 'Forgot': on_train_start .* not marked") as caught:
        catalogue().register(Forgot())
    assert len(caught) == 1


def test_an_open_bus_takes_unknown_hooks_until_check_pending():
    class Loose:
        @hookimpl
        def anwser(self):
            return 1

        @hookimpl(optionalhook=True)
        def whatever(self):
            pass

    bus = make_bus(closed=False)
    bus.register(Loose(), "loose")
    assert bus.hook.anwser() == [1]
    with pytest.raises(RegistrationError, match=r"unknown hook 'anwser' in plugin 'loose'.*'answer'"):
        bus.check_pending()


# -- state keys ------------------------------------------------------------------------------------------------------


class Stateful(Callback):
    def __init__(self, key="same"):
        self.key = key

    @property
    def state_key(self):
        return self.key

    def state_dict(self):
        return {"x": 1}


def test_two_states_under_one_key_name_both_sides():
    bus = catalogue()
    bus.register(Stateful(), "mine", source="trainer.callbacks")
    before = state(bus)
    with pytest.raises(DuplicateStateKeyError) as caught:
        bus.register(Stateful(), "yours")
    assert isinstance(caught.value, RuntimeError)  # what Lightning raises
    assert re.search(r"'mine' \(Stateful, from trainer.callbacks\) and 'yours' \(Stateful\).*'same'", str(caught.value))
    assert state(bus) == before
    bus.register(Stateful("other"))
    bus.unregister(name="mine")
    bus.register(Stateful())


def test_plugins_without_state_may_share_a_key():
    bus = catalogue()
    bus.register(Count())
    bus.register(Count())
    assert len(bus.order("on_fit_start")) == 2


# -- blocking --------------------------------------------------------------------------------------------------------


def test_a_blocked_name_is_not_registered_until_it_is_unblocked():
    bus, plugin = make_bus(), Greeter()
    bus.register(plugin)
    bus.set_blocked("Greeter")
    assert bus.is_blocked("Greeter")
    assert bus.fire.on_start(None, "fit") == []
    assert bus.register(plugin) is None
    assert bus.names() == []
    assert bus.unblock("Greeter")
    assert not bus.unblock("Greeter")
    assert bus.register(plugin) == "Greeter"


def test_a_blocked_name_keeps_callbacks_of_this_class_out_of_a_synced_list():
    bus = catalogue()
    bus.set_blocked("Count")
    callbacks = [Count(), Count(), Stateful()]
    bus.sync("callback", callbacks)
    assert bus.names() == ["Stateful"]
    bus.sync("callback", callbacks)
    assert bus.names() == ["Stateful"]


# -- a list that changes ---------------------------------------------------------------------------------------------


def who(bus, hook="on_fit_start"):
    return [position.plugin for position in bus.order(hook)]


def named(name):
    return type(name, (Callback,), {"on_fit_start": lambda self, trainer, pl_module: log.append(name)})()


log = []


@pytest.fixture(autouse=True)
def _empty_log():
    log.clear()


def test_sync_follows_append_remove_reorder_and_replace():
    bus = catalogue()
    a, b, c, d = (named(x) for x in "abcd")
    callbacks = [a, b]
    bus.sync("callback", callbacks)
    assert who(bus) == ["a", "b"]
    callbacks.append(c)
    bus.sync("callback", callbacks)
    assert who(bus) == ["a", "b", "c"]
    callbacks.reverse()
    bus.sync("callback", callbacks)
    assert who(bus) == ["c", "b", "a"]
    callbacks[1] = d
    bus.sync("callback", callbacks)
    assert who(bus) == ["c", "d", "a"]
    del callbacks[:2]
    bus.sync("callback", callbacks)
    assert who(bus) == ["a"]
    bus.fire.on_fit_start(None, None)
    assert log == ["a"]


def test_sync_of_an_unchanged_list_compiles_nothing_anew():
    bus, callbacks = catalogue(), [named("a"), named("b")]
    bus.sync("callback", callbacks)
    bus.fire.on_fit_start(None, None)
    code = bus.fire.on_fit_start.__code__
    bus.sync("callback", callbacks)
    assert bus.fire.on_fit_start.__code__ is code


def test_sync_takes_a_callback_that_stands_in_the_list_twice_once_and_says_so():
    bus, callback = catalogue(), named("a")
    with pytest.warns(UserWarning, match="a stands in the list twice; it takes part once"):
        bus.sync("callback", [callback, named("b"), callback])
    assert who(bus) == ["a", "b"]


def test_sync_leaves_alone_what_was_registered_otherwise():
    bus = catalogue()
    direct, plugin, listed = named("direct"), named("plugin"), named("listed")
    bus.register(direct)
    bus.register(plugin, owner="plugin")
    bus.sync("callback", [listed, plugin])
    assert who(bus) == ["listed", "direct", "plugin"]
    bus.sync("callback", [])
    assert who(bus) == ["direct", "plugin"]


def test_sync_sees_a_method_assigned_to_the_instance():
    bus, callback = catalogue(), named("a")
    bus.sync("callback", [callback])
    bus.fire.on_fit_start(None, None)
    callback.on_fit_start = lambda trainer, pl_module: log.append("assigned")
    callback.on_fit_end = lambda trainer, pl_module: log.append("end")
    bus.sync("callback", [callback])
    bus.fire.on_fit_start(None, None)
    bus.fire.on_fit_end(None, None)
    assert log == ["a", "assigned", "end"]
    del callback.on_fit_end
    bus.sync("callback", [callback])
    bus.fire.on_fit_end(None, None)
    assert log == ["a", "assigned", "end"]


def test_sync_sees_a_method_patched_on_the_class(monkeypatch):
    bus, callback = catalogue(), named("a")
    bus.sync("callback", [callback])
    monkeypatch.setattr(type(callback), "on_fit_start", lambda self, trainer, pl_module: log.append("patched"))
    bus.sync("callback", [callback])
    bus.fire.on_fit_start(None, None)
    assert log == ["patched"]


def test_sync_refuses_what_cannot_be_called_and_keeps_the_rest():
    class Broken(Callback):
        def on_fit_start(self, trainer, pl_module, mood):
            pass

    bus = catalogue()
    with pytest.raises(RegistrationError, match=r"Broken.on_fit_start takes \(trainer, pl_module, mood\)"):
        bus.sync("callback", [named("a"), Broken()])
    assert who(bus) == ["a"]


def test_refresh_reads_a_plugin_again():
    bus, plugin = make_bus(), Greeter()
    bus.register(plugin)
    plugin.on_start = hookimpl(lambda stage: f"assigned {stage}")
    assert bus.fire.on_start(None, "fit") == ["hello fit"]
    bus.refresh(plugin)
    assert bus.fire.on_start(None, "fit") == ["assigned fit"]
    with pytest.raises(ValueError, match="is not registered"):
        bus.refresh(Greeter())


def test_refresh_keeps_the_place_and_the_counters_of_what_has_not_changed():
    class Filtered:
        @hookimpl(every=2, when=lambda stage: True)
        def on_start(self):
            return "every second"

        @hookimpl
        def answer(self, question):
            return "first"

    bus, plugin = make_bus(), Filtered()
    bus.register(plugin)
    bus.register(Greeter())
    assert bus.fire.on_start(None, "fit") == ["hello fit"]
    plugin.answer = hookimpl(lambda question: "second")
    bus.refresh(plugin)
    assert bus.fire.answer("?") == "second"
    assert bus.fire.on_start(None, "fit") == ["every second", "hello fit"]


# -- changes during a call -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["hook", "fire"])
def test_a_call_goes_through_with_those_who_were_there_when_it_began(path):
    bus = make_bus()

    class Changes:
        @hookimpl(tryfirst=True)
        def on_start(self):
            bus.unregister(last)
            bus.unregister(self)
            bus.register(Greeter("new"))
            return "changes"

    changes, middle, last = Changes(), Greeter("middle"), Greeter("last")
    for plugin in (middle, changes, last):
        bus.register(plugin)
    call = {"hook": lambda: bus.hook.on_start(trainer=1, stage="fit"), "fire": lambda: bus.fire.on_start(1, "fit")}[
        path
    ]
    assert call() == ["changes", "middle fit", "last fit"]  # nobody is skipped
    assert call() == ["middle fit", "new fit"]


def test_a_reference_to_a_fired_hook_stays_valid():
    bus = make_bus()
    fire, plugin = bus.fire.on_start, Greeter()
    assert fire(None, "fit") == []
    bus.register(plugin)
    assert fire(None, "fit") == ["hello fit"]
    bus.unregister(plugin)
    assert fire(None, "fit") == []
    assert fire is bus.fire.on_start


def test_a_recursive_call_may_change_who_is_called():
    bus = make_bus()

    class Recursive:
        @hookimpl
        def answer(self, question):
            if question == 0:
                return "bottom"
            bus.register(Greeter())
            return bus.fire.answer(question - 1)

    bus.register(Recursive())
    assert bus.fire.answer(3) == "bottom"
    assert len(bus.fire.on_start(None, "fit")) == 3


# -- historic hooks --------------------------------------------------------------------------------------------------


class Hears:
    def __init__(self):
        self.heard = []

    @hookimpl
    def on_plugin_registered(self, name):
        self.heard.append(name)


def test_late_plugins_hear_of_the_earlier_ones_and_of_themselves():
    bus, late = make_bus(), Hears()
    bus.register(Greeter(), "early")
    bus.register(late, "late")
    bus.register(Greeter(), "later")
    assert late.heard == ["early", "late", "later"]


def test_late_plugins_do_not_hear_of_those_that_are_gone():
    bus, late = make_bus(), Hears()
    with bus.registered(Greeter(), "guest"):
        pass
    bus.register(late, "late")
    assert late.heard == ["late"]


@pytest.mark.parametrize("path", ["hook", "fire"])
def test_historic_hooks_are_remembered_on_both_paths(path):
    bus, early, late = make_bus(), Hears(), Hears()
    bus.register(early, "early")
    if path == "hook":
        bus.hook.on_plugin_registered.call_historic(kwargs={"plugin": None, "name": "by hand"})
    else:
        assert bus.fire.on_plugin_registered(None, "by hand") is None
    bus.register(late, "late")
    assert early.heard == ["early", "by hand", "late"]
    assert late.heard == ["early", "by hand", "late"]


def test_calling_a_historic_hook_directly_is_refused_as_in_pluggy():
    with pytest.raises(AssertionError, match="call_historic"):
        make_bus().hook.on_plugin_registered(plugin=None, name="")


# -- monitors --------------------------------------------------------------------------------------------------------


class Fails:
    role = "monitor"

    def __init__(self):
        self.calls = 0

    @hookimpl
    def on_train_batch_end(self, batch):
        self.calls += 1
        raise ZeroDivisionError(f"call {self.calls}")


def three_batches(bus, batches=(1, 2, 3)):
    return [bus.fire.on_train_batch_end(None, None, None, batch, 0) for batch in batches]


class Alarm:
    def __init__(self):
        self.heard = []

    @hookimpl
    def on_plugin_error(self, name, hook, exception):
        self.heard.append((name, hook, type(exception).__name__, str(exception)))


def test_a_failing_monitor_is_named_once_and_reported_each_time():
    bus, early = catalogue(), Alarm()
    bus.register(Fails(), "probe")
    bus.register(early)
    with pytest.warns(RuntimeWarning) as caught:
        assert three_batches(bus) == [[], [], []]
    assert "'probe' failed in on_train_batch_end: ZeroDivisionError: call 1" in str(caught[0].message)
    assert len(caught) == 1
    assert early.heard == [("probe", "on_train_batch_end", "ZeroDivisionError", f"call {n}") for n in (1, 2, 3)]


def test_late_plugins_hear_of_a_monitors_first_failure():
    bus, late = catalogue(), Alarm()
    bus.register(Fails(), "probe")
    with pytest.warns(RuntimeWarning):
        three_batches(bus)
    bus.register(late)
    assert late.heard == [("probe", "on_train_batch_end", "EarlierError", "ZeroDivisionError: call 1")]


def test_failures_of_monitors_keep_no_batch_alive():
    class Batch:
        pass

    bus = catalogue()
    bus.register(Fails())
    batches = [Batch(), Batch(), Batch()]
    refs = [weakref.ref(batch) for batch in batches]
    with pytest.warns(RuntimeWarning):
        three_batches(bus, batches)
    batches.clear()
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3


def test_a_monitor_that_wraps_is_refused_by_name():
    class Wraps:
        role = "monitor"

        @hookimpl(wrapper=True)
        def backward(self):
            return (yield)

    bus = catalogue()
    with pytest.raises(
        RegistrationError, match=r"plugin 'Wraps': a monitor cannot wrap 'backward' \(.*role = 'mutator'"
    ):
        bus.register(Wraps())
    assert bus.names() == []


def test_an_unknown_role_is_an_error_for_a_plugin_and_a_warning_for_a_callback():
    class Observer:
        role = "observer"

        @hookimpl
        def on_fit_start(self):
            pass

    bus = catalogue()
    with pytest.raises(RegistrationError, match="role must be 'monitor' or 'mutator', got 'observer'"):
        bus.register(Observer())
    teacher = Count()
    teacher.role = "teacher"
    with pytest.warns(UserWarning, match="'teacher'; it counts as unspecified"):
        bus.register(teacher)
    assert bus.registration("Count").role == "unspecified"
    other_host = make_bus(closed=False)
    other_host.register(type("Plugin", (), {"role": "observer"})(), "plugin")
    assert other_host.registration("plugin").role == "unspecified"


def test_the_role_of_what_trains_is_not_asked():
    class Trains:
        role = "monitor"

        @hookimpl
        def training_step(self):
            return "loss"

    bus = catalogue()
    bus.register(Trains(), owner="module")
    assert bus.fire.training_step(None, None, None, 0) == "loss"


# -- hookcall monitoring and clocks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["hook", "fire"])
def test_hookcall_monitoring_sees_both_paths_and_stops_when_undone(path):
    bus, seen = make_bus(), []
    bus.register(Greeter())
    call = {"hook": lambda: bus.hook.on_start(trainer=1, stage="fit"), "fire": lambda: bus.fire.on_start(1, "fit")}[
        path
    ]
    call()
    undo = bus.add_hookcall_monitoring(
        lambda name, impls, kwargs: seen.append(("before", name, kwargs["stage"])),
        lambda outcome, name, impls, kwargs: seen.append(("after", name, outcome.get_result())),
    )
    assert call() == ["hello fit"]
    assert seen == [("before", "on_start", "fit"), ("after", "on_start", ["hello fit"])]
    undo()
    call()
    assert len(seen) == 2


def test_undoing_one_monitor_twice_leaves_the_other_on():
    bus, seen = make_bus(), []
    bus.add_hookcall_monitoring(lambda *_: seen.append("first"), lambda *_: None)
    undo = bus.add_hookcall_monitoring(lambda *_: seen.append("second"), lambda *_: None)
    undo()
    undo()
    bus.fire.on_start(None, "fit")
    assert seen == ["first"]


def test_tracing_writes_calls_of_both_paths():
    bus, lines = make_bus(), []
    bus.register(Greeter())
    bus.trace.root.setwriter(lines.append)
    undo = bus.enable_tracing()
    bus.fire.on_start(None, "fit")
    bus.hook.on_start(trainer=None, stage="fit")
    undo()
    assert sum("finish on_start --> ['hello fit']" in line for line in lines) == 2


def test_timed_measures_each_implementation_only_while_it_is_on():
    bus = make_bus()
    bus.register(Greeter(), "greeter")
    bus.fire.on_start(None, "fit")
    with bus.timed() as timing:
        bus.fire.on_start(None, "fit")
        bus.hook.on_start(trainer=None, stage="fit")
    bus.fire.on_start(None, "fit")
    assert timing.spent["on_start", "greeter"].calls == 2
    assert bus.timing is None


# -- looking into it -------------------------------------------------------------------------------------------------


def test_order_tells_place_flags_arguments_and_location():
    class Late:
        @hookimpl(trylast=True, every=3, rank_zero=True)
        def on_start(self, stage, trainer):
            pass

    bus = make_bus()
    bus.register(Late(), "late")
    bus.register(Greeter(), "greeter")
    first, second = bus.order("on_start")
    assert (first.index, first.plugin, first.flags, first.args) == (1, "greeter", (), ("stage",))
    assert (second.index, second.plugin, second.flags) == (2, "late", ("trylast", "rank_zero", "every=3"))
    assert second.args == ("stage", "trainer")
    assert re.fullmatch(r".*test_bus\.py:\d+", second.location)


def test_order_of_an_unknown_hook_suggests_the_nearest():
    with pytest.raises(UnknownHookError, match="no hook is named 'on_strat'; did you mean 'on_start'"):
        make_bus().order("on_strat")


def test_implementations_are_those_of_one_plugin():
    bus = make_bus()
    bus.register(Greeter(), "greeter")
    assert [made.hook for made in bus.implementations("greeter")] == ["on_start"]
    assert bus.implemented("on_start")
    assert not bus.implemented("answer")
    assert not bus.implemented("nonsense")


# -- memory ----------------------------------------------------------------------------------------------------------


def test_an_unregistered_plugin_is_freed():
    bus, plugin = catalogue(), Count()
    bus.register(plugin)
    bus.fire.on_fit_start(None, None)
    bus.unregister(plugin)
    ref = weakref.ref(plugin)
    del plugin
    gc.collect()
    assert ref() is None


def test_a_bus_that_was_used_is_freed_with_all_its_plugins():
    bus, plugin = catalogue(), Count()
    plugin.bus = bus  # as a callback that keeps its trainer
    bus.register(plugin)
    bus.fire.on_fit_start(None, None)
    refs = [weakref.ref(bus), weakref.ref(plugin)]
    del bus, plugin
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_a_thousand_plugins_that_came_and_went_leave_no_trace():
    import linecache

    bus = catalogue()

    def cycle():
        with bus.registered(Count()):
            bus.fire.on_fit_start(None, None)
        bus.fire.on_fit_start(None, None)

    cycle()
    lines, names = len(linecache.cache), len(bus.fire.on_fit_start.__globals__)
    histories = {name: len(hook._call_history or ()) for name, hook in vars(bus.hook).items()}
    for _ in range(1000):
        cycle()
    assert len(linecache.cache) == lines
    assert len(bus.fire.on_fit_start.__globals__) == names
    assert {name: len(hook._call_history or ()) for name, hook in vars(bus.hook).items()} == histories
    assert not bus._entries


# -- instead of pluggy.PluginManager ---------------------------------------------------------------------------------


def test_a_bus_with_another_name_stands_in_for_pluggys_manager():
    spec, impl = pluggy.HookspecMarker("other"), pluggy.HookimplMarker("other")

    class OtherSpecs:
        @spec
        def collect(self, arg, extra=1):
            pass

    module = types.ModuleType("plugin_module")
    module.collect = impl(lambda arg: ("module", arg))

    class Instance:
        @impl
        def collect(self, arg, extra):
            return ("instance", arg, extra)

    bus = Bus("other")
    assert isinstance(bus, pluggy.PluginManager)
    bus.add_hookspecs(OtherSpecs)
    assert bus.register(module) == "plugin_module"
    bus.register(Instance(), "instance")
    assert bus.hook.collect(arg=7) == [("instance", 7, 1), ("module", 7)]  # last registered first
    assert bus.fire.collect(7, 2) == [("instance", 7, 2), ("module", 7)]
    assert bus.hook.collect.call_extra([lambda arg: "extra"], {"arg": 1})[0] == "extra"
    assert bus.subset_hook_caller("collect", [module])(arg=1) == [("instance", 1, 1)]
    assert bus.get_plugins() == {module, bus.get_plugin("instance")}
    assert [hook.name for hook in bus.get_hookcallers(module)] == ["collect"]
    assert bus.unregister(name="instance") is not None
    assert bus.has_plugin("plugin_module")


def test_warnings_are_not_raised_by_an_ordinary_plugin():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bus = catalogue()
        bus.register(Count())
        bus.register(types.ModuleType("empty"))


@pytest.mark.parametrize("junk", [5, {}, object(), Callback], ids=["number", "dict", "object", "class"])
def test_an_object_that_implements_nothing_is_no_plugin(junk):
    with pytest.raises(MisconfigurationException, match=r"plugins=\[…\] has .*, which implements no hook; expected"):
        Bus.load([junk])


def test_with_a_single_loader_its_index_goes_to_callbacks_that_demand_it():
    class Defaulted(Callback):
        def on_test_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=None):
            seen.append(("defaulted", dataloader_idx))

    class Demanding(Callback):
        def on_test_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx):
            seen.append(("demanding", dataloader_idx))

    seen = []
    bus = Bus.load(autoload=False)
    for callback in (Defaulted(), Demanding()):
        bus.register(callback)
    for several in (False, True):
        bus.expect_loaders(several=several)
        bus.fire.on_test_batch_start(None, None, "batch", 0, 1)
    assert seen == [("defaulted", None), ("demanding", 1), ("defaulted", 1), ("demanding", 1)]
