"""What is wrong with a plugin is said with plugin, hook, place and a way out."""

import pytest

from hookbus.bus import Bus, RegistrationError
from hookbus.bus.validate import state_key, suggestion, unknown_hook
from hookbus.callback import Callback
from hookbus.markers import hookimpl, hookspec


class Specs:
    @hookspec
    def on_start(self, trainer, stage):
        pass

    @hookspec(historic=True)
    def remembered(self, what):
        pass

    @hookspec(
        warn_on_impl=DeprecationWarning("on_old is going"), warn_on_impl_args={"old": UserWarning("old is going")}
    )
    def on_old(self, old, new):
        pass

    @hookspec
    def nothing(self):
        pass


def register(function, name="plugin", hook=None, closed=True, **options):
    if hook is not None:
        options["specname"] = hook
    bus = Bus(list_order=True, closed=closed)
    bus.add_hookspecs(Specs)
    bus.register(type("P", (), {function.__name__: hookimpl(**options)(function)})(), name)
    return bus


def complaint(function, **options):
    with pytest.raises(RegistrationError) as caught:
        register(function, **options)
    assert f"{__file__}:{function.__code__.co_firstlineno}" in str(caught.value)
    return str(caught.value)


def test_an_unknown_argument():
    def on_start(self, stagee):
        pass

    text = complaint(on_start)
    assert "plugin 'plugin', hook 'on_start'" in text
    assert "'stagee'; did you mean 'stage'? (the hook has: trainer, stage)" in text

    def nothing(self, anything):
        pass

    assert "(the hook has: no arguments)" in complaint(nothing)


def test_an_unknown_hook():
    def on_sart(self):
        pass

    text = complaint(on_sart)
    assert "unknown hook 'on_sart' in plugin 'plugin'" in text
    assert "did you mean 'on_start'?; mark it optionalhook=True if another version of the host has it" in text
    register(on_sart, optionalhook=True)
    register(on_sart, closed=False)


def test_a_wrapper_that_does_not_yield():
    def on_start(self):
        return 1

    assert "needs one `yield`" in complaint(on_start, wrapper=True)
    assert "needs one `yield`" in complaint(on_start, hookwrapper=True)


def test_a_wrapper_of_a_historic_hook():
    def remembered(self):
        yield

    assert "a historic hook is incompatible with wrapper/hookwrapper" in complaint(remembered, wrapper=True)


def test_keyword_only_arguments_must_have_a_default():
    def on_start(self, *, stage):
        pass

    assert "keyword-only argument(s) stage would get no value; drop the '*'" in complaint(on_start)

    def on_start_too(self, *, level=1):
        return level

    assert register(on_start_too, hook="on_start").fire.on_start(1, 2) == [1]


def test_a_predicate_with_an_unknown_argument():
    def on_start(self):
        pass

    def late(stag):
        return stag

    text = complaint(on_start, when=late)
    assert "the predicate of when=late asks for 'stag'; did you mean 'stage'? (the hook has: trainer, stage)" in text
    register(on_start, when=lambda trainer, stage: True)


def test_specifications_can_warn_of_their_implementations_at_their_place():
    def on_old(self, new):
        pass

    with pytest.warns(DeprecationWarning, match="on_old is going") as caught:
        register(on_old)
    assert (caught[0].filename, caught[0].lineno) == (__file__, on_old.__code__.co_firstlineno)

    def takes_old(self, old):
        pass

    with pytest.warns() as caught:
        register(takes_old, hook="on_old")
    assert [str(warning.message) for warning in caught] == ["on_old is going", "old is going"]


def test_configure_sharded_model_is_deprecated_by_the_catalogue():
    class Old:
        @hookimpl
        def configure_sharded_model(self):
            pass

    with pytest.warns(match="configure_model"):
        Bus.load(autoload=False).register(Old())


def test_messages():
    assert suggestion("on_strat", ["on_start"]) == "; did you mean 'on_start'?"
    assert suggestion("xyz", ["on_start"]) == ""
    assert unknown_hook("a", "p", "f.py:1", []).startswith("unknown hook 'a' in plugin 'p' (f.py:1); mark it")


class WithState(Callback):
    def state_dict(self):
        return {}


class WithLoad(Callback):
    def load_state_dict(self, state_dict):
        pass


class OddKey(WithState):
    state_key = 7


@pytest.mark.parametrize(
    ("plugin", "key"),
    [
        (Callback(), None),
        (WithState(), "WithState"),
        (WithLoad(), "WithLoad"),
        (OddKey(), "7"),
        (WithState, None),
        (7, None),
    ],
)
def test_state_keys(plugin, key):
    assert state_key(plugin) == key
