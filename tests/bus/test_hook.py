"""The two ways to call a hook, and what a specification may ask for."""

import inspect

import pytest

from hookbus.bus import Bus, UnknownHookError
from hookbus.callback import Callback
from hookbus.markers import hookimpl, hookspec


def bus_for(function, **options):
    bus = Bus(list_order=True)
    bus.add_hookspecs(type("Specs", (), {function.__name__: hookspec(**options)(function)}))
    return bus


def x(a, b, c=3):
    """The hook of most tests here."""


class Takes:
    @hookimpl
    def x(self, c, a):
        return (a, c)


def test_both_paths_pass_what_an_implementation_names_in_its_own_order():
    bus = bus_for(x)
    bus.register(Takes())
    assert bus.hook.x(a=1, b=2) == bus.fire.x(1, 2) == [(1, 3)]
    assert bus.hook.x(a=1, b=2, c=9) == bus.fire.x(1, 2, 9) == bus.fire.x(1, b=2, c=9) == [(1, 9)]


def test_fire_has_the_signature_of_the_specification():
    assert str(inspect.signature(bus_for(x).fire.x)) == "(a, b, c=3)"


@pytest.mark.parametrize("registered", [True, False])
def test_a_missing_argument_is_an_error_on_both_paths(registered):
    bus = bus_for(x)
    if registered:
        bus.register(Takes())
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        bus.hook.x(a=1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        bus.fire.x(1)
    with pytest.raises(TypeError, match=r"hook 'x' is called without its argument\(s\) b"):
        bus.hook.x(a=1, other=2)


def test_an_argument_that_the_hook_lacks_reaches_implementations_with_a_default_as_in_pluggy():
    class Optional:
        @hookimpl
        def x(self, a, other="own"):
            return other

    bus = bus_for(x)
    bus.register(Optional())
    assert bus.hook.x(a=1, b=2) == ["own"]
    assert bus.hook.x(a=1, b=2, other="given") == ["given"]
    with pytest.raises(TypeError):
        bus.fire.x(1, 2, other="given")


def test_a_parameter_with_a_default_gets_the_hooks_argument():
    class Defaults:
        @hookimpl
        def x(self, b="own b", c="own c"):
            return (b, c)

    bus = bus_for(x)
    bus.register(Defaults())
    assert bus.fire.x(1, 2) == bus.hook.x(a=1, b=2) == [(2, 3)]


def test_fire_of_an_unknown_hook_suggests_the_nearest():
    with pytest.raises(
        UnknownHookError, match="no hook 'on_fit_strat' is specified on this bus; did you mean 'on_fit_start'"
    ):
        Bus.load(autoload=False).fire.on_fit_strat(None, None)
    with pytest.raises(UnknownHookError, match=r"no hook 'zzz' is specified on this bus$"):
        Bus.load(autoload=False).fire.zzz()


def test_a_fold_over_no_argument_is_refused_and_leaves_the_hook_open():
    bus = Bus()
    with pytest.raises(ValueError, match=r"hook 'x': fold='batch' names none of its arguments"):
        bus.add_hookspecs(type("Specs", (), {"x": hookspec(fold="batch")(x)}))
    bus.add_hookspecs(type("Specs", (), {"x": hookspec(fold="a")(x)}))
    assert bus.fire.x(1, 2) == 1


def test_argument_names_that_the_compiled_code_uses_are_refused():
    with pytest.raises(ValueError, match="hook 'y': argument names must not begin with '_', got _results"):
        bus_for(lambda_named("y", "_results"))


def lambda_named(name, argument):
    namespace = {}
    exec(f"def {name}({argument}): pass", namespace)
    return namespace[name]


def test_arguments_may_have_the_names_of_what_the_compiled_code_calls():
    def y(enter, leave, raise_first, plugin, name, hook, value):
        pass

    class Impl:
        @hookimpl
        def y(self, enter, leave, raise_first, value):
            return (enter, leave, raise_first, value)

        @hookimpl(wrapper=True, specname="y")
        def around(self, enter):
            return [enter, *(yield)]

    bus = bus_for(y)
    bus.register(Impl())
    assert bus.fire.y(1, 2, 3, 4, 5, 6, 7) == [1, (1, 2, 3, 7)]


def test_a_specification_that_comes_late_applies_to_those_who_are_there():
    bus = Bus(list_order=True)
    bus.register(Takes())
    assert bus.hook.x(a=1, c=2) == [(1, 2)]
    bus.add_hookspecs(type("Specs", (), {"x": hookspec(x)}))
    assert bus.hook.x(a=1, b=2) == bus.fire.x(1, 2) == [(1, 3)]


def test_an_old_style_wrapper_works_on_both_paths():
    class Old:
        @hookimpl(hookwrapper=True)
        def x(self, a):
            outcome = yield
            outcome.force_result([*outcome.get_result(), "old"])

    bus = bus_for(x)
    bus.register(Takes())
    bus.register(Old())
    assert bus.hook.x(a=1, b=2) == bus.fire.x(1, 2) == [(1, 3), "old"]


def test_a_callback_that_overrides_an_old_style_wrapper_still_wraps():
    class Old(Callback):
        @hookimpl(hookwrapper=True)
        def on_fit_start(self):
            yield

    class Mine(Old):
        def on_fit_start(self, trainer, pl_module):
            outcome = yield
            outcome.force_result("mine")

    bus = Bus.load(autoload=False)
    bus.register(Mine())
    assert bus.fire.on_fit_start(None, None) == "mine"


def test_call_extra_and_subset_take_folds_too():
    bus = bus_for(x, fold="a")

    class Adds:
        @hookimpl
        def x(self, a):
            return a + 1

    adds = Adds()
    bus.register(adds)
    assert bus.hook.x.call_extra([lambda a: a * 10], {"a": 1, "b": 2}) == 11
    assert bus.subset_hook_caller("x", [adds])(a=1, b=2) == 1


def test_shape_and_options_are_those_of_the_specification():
    hook = bus_for(x, firstresult=True).hook.x
    assert hook.shape.firstresult
    assert hook.shape.parameters == ("a", "b", "c")
    assert hook.spec_options["owners"][0] == "callback"


def test_a_wrong_name_among_the_right_number_of_arguments_is_an_error():
    def y(a, b):
        pass

    bus = bus_for(y)
    assert bus.hook.y(a=1, b=2) == []
    with pytest.raises(TypeError, match="argument"):
        bus.hook.y(a=1, c=2)
