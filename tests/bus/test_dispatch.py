"""What the compiled calls do, where they differ from pluggy's kinds of hook, and what they leave behind."""

import gc
import linecache
import traceback
import weakref

import pytest

from hookbus.bus import Bus, blame
from hookbus.bus.dispatch import running_call
from hookbus.markers import hookimpl, hookspec

PATHS = ["hook", "fire", "monitored"]


def make_bus(plugins, **options):
    class Specs:
        @hookspec(**options)
        def x(self, value, log):
            """The hook of all tests here."""

    bus = Bus(list_order=True)
    bus.add_hookspecs(Specs)
    for name, plugin in plugins.items():
        bus.register(plugin, name)
    return bus


def call(path, bus, value=0, log=None):
    if path == "monitored":
        bus.add_hookcall_monitoring(lambda *_: None, lambda *_: None)
    log = [] if log is None else log
    return bus.hook.x(value=value, log=log) if path == "hook" else bus.fire.x(value, log)


def plugin(function, **options):
    return type("Plugin", (), {"x": hookimpl(**options)(function)})()


def returns(answer):
    return plugin(lambda self, log: log.append(answer) or answer)


def raises(error):
    def x(self, log):
        log.append(error)
        raise error

    return plugin(x)


@pytest.mark.parametrize("path", PATHS)
class TestAnswers:
    def test_all_answers_but_none(self, path):
        assert call(path, make_bus({"a": returns(1), "b": returns(None), "c": returns(0)})) == [1, 0]

    def test_nobody_answers(self, path):
        assert call(path, make_bus({})) == []
        assert call(path, make_bus({}, firstresult=True)) is None
        assert call(path, make_bus({}, fold="value"), 5) == 5
        assert call(path, make_bus({}, collect_errors=True)) == []

    def test_firstresult_ends_the_call(self, path):
        log = []
        bus = make_bus({"a": returns(None), "b": returns(0), "c": returns(1)}, firstresult=True)
        assert call(path, bus, log=log) == 0
        assert log == [None, 0]

    def test_fold_hands_on_what_the_one_before_returned(self, path):
        bus = make_bus(
            {
                "a": plugin(lambda self, value: value + 1),
                "b": plugin(lambda self: None),
                "c": plugin(lambda self, value: value * 10),
            },
            fold="value",
        )
        assert call(path, bus, 1) == 20

    def test_wrappers_of_a_fold_see_what_came_and_what_leaves(self, path):
        def around(self, value):
            return ("came", value, "leaves", (yield))

        bus = make_bus({"a": plugin(lambda self, value: value + 1), "w": plugin(around, wrapper=True)}, fold="value")
        assert call(path, bus, 1) == ("came", 1, "leaves", 2)

    def test_a_fold_that_raises_leaves_at_once(self, path):
        log = []
        bus = make_bus({"a": raises(OSError("full")), "b": returns(1)}, fold="value")
        with pytest.raises(OSError, match="full"):
            call(path, bus, log=log)
        assert len(log) == 1

    def test_collected_errors_first_leaves_the_others_are_its_notes_and_all_run(self, path):
        first, second, third = ValueError("one"), KeyboardInterrupt(), OSError("three")
        log = []
        bus = make_bus(
            {"a": returns(1), "b": raises(first), "c": raises(second), "d": raises(third)}, collect_errors=True
        )
        with pytest.raises(ValueError) as caught:
            call(path, bus, log=log)
        assert caught.value is first
        assert log == [1, first, second, third]
        assert [note.rpartition("handled: ")[2] for note in first.__notes__] == [
            "KeyboardInterrupt: ",
            "OSError: three",
        ]

    def test_a_collected_keyboard_interrupt_leaves_too(self, path):
        log = []
        bus = make_bus({"a": raises(KeyboardInterrupt()), "b": returns(1)}, collect_errors=True)
        with pytest.raises(KeyboardInterrupt):
            call(path, bus, log=log)
        assert log[1:] == [1]

    def test_one_exception_raised_twice_is_no_note_of_itself(self, path):
        error = ValueError("same")
        with pytest.raises(ValueError) as caught:
            call(path, make_bus({"a": raises(error), "b": raises(error)}, collect_errors=True))
        assert not hasattr(caught.value, "__notes__")

    def test_collected_answers(self, path):
        assert call(path, make_bus({"a": returns(1), "b": returns(None), "c": returns(2)}, collect_errors=True)) == [
            1,
            2,
        ]

    def test_wrappers_get_the_first_collected_error(self, path):
        def around(self, log):
            try:
                return (yield)
            except ValueError as error:
                return f"handled {error}, {len(error.__notes__)} note"

        bus = make_bus(
            {"w": plugin(around, wrapper=True), "a": raises(ValueError("one")), "b": raises(OSError())},
            collect_errors=True,
        )
        assert call(path, bus) == "handled one, 1 note"


@pytest.mark.parametrize("kind", [{}, {"firstresult": True}, {"collect_errors": True}, {"fold": "value"}])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("path", ["hook", "fire"])
def test_an_exception_keeps_nothing_alive_once_it_is_handled(kind, wrapped, path):
    class Tensor:
        pass

    def around(self):
        return (yield)

    def failing(self, value):
        raise ValueError("with a traceback")

    bus = make_bus({"a": plugin(failing)}, **kind)
    if wrapped:
        bus.register(plugin(around, wrapper=True), "w1")
        bus.register(plugin(around, wrapper=True), "w2")
    tensor = Tensor()
    ref = weakref.ref(tensor)
    gc.collect()
    gc.disable()
    try:
        try:
            bus.hook.x(value=tensor, log=None) if path == "hook" else bus.fire.x(tensor, None)
        except ValueError:
            pass
        del tensor
        assert ref() is None  # at once, without the garbage collector
    finally:
        gc.enable()


def test_a_swallowed_exception_keeps_nothing_alive_either():
    class Tensor:
        pass

    def around(self):
        try:
            return (yield)
        except ValueError:
            return None

    def failing(self, value):
        raise ValueError

    bus = make_bus({"a": plugin(failing), "w": plugin(around, wrapper=True)})
    tensor = Tensor()
    ref = weakref.ref(tensor)
    gc.disable()
    try:
        bus.fire.x(tensor, None)
        del tensor
        assert ref() is None
    finally:
        gc.enable()


# -- tracebacks ------------------------------------------------------------------------------------------------------


def failing_call(bus):
    with pytest.raises(ValueError) as caught:
        bus.fire.x(1, [])
    return caught.value


def test_a_traceback_shows_the_plugin_beside_the_call():
    error = failing_call(make_bus({"ema": raises(ValueError("bad"))}))
    text = "".join(traceback.format_exception(error))
    assert "# ema  " in text
    assert "test_dispatch.py" in text


def test_blame_names_hook_and_plugin_even_after_the_hook_has_changed():
    bus = make_bus({"fine": returns(1), "ema": raises(ValueError("bad"))})
    error = failing_call(bus)
    bus.unregister(name="ema")
    bus.fire.x(1, [])
    assert blame(error) == ("x", "ema")


def test_blame_of_nested_calls_is_the_innermost():
    inner = make_bus({"inner": raises(ValueError("bad"))})
    outer = make_bus({"outer": plugin(lambda self: inner.fire.x(1, []))})
    assert blame(failing_call(outer)) == ("x", "inner")


def before_yield(self):
    raise ValueError("before")
    yield


def after_yield(self):
    yield
    raise ValueError("after")


def passes(self):
    return (yield)


@pytest.mark.parametrize("broken", [before_yield, after_yield])
def test_blame_names_a_wrapper(broken):
    bus = make_bus({"outer": plugin(passes, wrapper=True), "broken": plugin(broken, wrapper=True), "impl": returns(1)})
    assert blame(failing_call(bus)) == ("x", "broken")


def test_blame_passes_wrappers_that_let_the_error_through():
    bus = make_bus({"outer": plugin(passes, wrapper=True), "impl": raises(ValueError("bad"))})
    assert blame(failing_call(bus)) == ("x", "impl")


def test_blame_of_an_error_from_elsewhere_is_none():
    with pytest.raises(ZeroDivisionError) as caught:
        1 / 0
    assert blame(caught.value) is None
    assert blame(ValueError()) is None


def test_a_plugin_name_cannot_become_code():
    bus = make_bus({"x\n    raise SystemExit  # ": returns(1), "'\"\\\0": returns(2)})
    assert bus.fire.x(1, []) == [1, 2]


# -- what is left behind ---------------------------------------------------------------------------------------------


def test_source_text_goes_with_the_code():
    bus = make_bus({"a": returns(1)})
    before = len(linecache.cache)
    bus.fire.x(1, [])
    assert len(linecache.cache) == before + 1
    bus.unregister(name="a")
    assert len(linecache.cache) == before


def test_an_implementation_is_released_with_the_last_call_that_uses_it():
    alive = []

    class Leaves:
        @hookimpl
        def x(self):
            bus.unregister(self)
            alive.append("during the call")

    bus = make_bus({"after": returns(1)})
    leaves = Leaves()
    bus.register(leaves, "leaves")
    ref = weakref.ref(leaves)
    del leaves
    assert bus.fire.x(0, []) == [1]
    gc.collect()
    assert ref() is None
    assert alive == ["during the call"]


def test_wrappers_that_never_yield_are_named_with_their_place():
    def no_yield(self):
        return
        yield

    bus = make_bus({"w": plugin(no_yield, wrapper=True)})
    with pytest.raises(RuntimeError, match=r"wrap_controller at 'no_yield' .*test_dispatch.py:\d+ did not yield"):
        bus.fire.x(1, [])


def test_a_part_of_a_hook_calls_the_named_plugins_in_their_order():
    class P:
        @hookimpl
        def x(self, value, log):
            log.append((self, value))

    plugins = {name: P() for name in ("a", "b", "c")}
    bus, log = make_bus(plugins), []
    bus.part("x", ["c", "a", "gone"])("value", log)
    assert log == [(plugins["a"], "value"), (plugins["c"], "value")]


def test_who_is_running_and_with_what():
    class Looks:
        @hookimpl
        def x(self, log):
            log.append(running_call())

    bus, log = make_bus({"looks": Looks()}), []
    assert running_call() is None
    bus.fire.x("value", log)
    (running,) = log
    assert (running.hook, running.plugin) == ("x", "looks")
    assert running.arguments == {"value": "value", "log": log}
