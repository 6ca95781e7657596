"""The markers write pluggy's attributes, keep hookbus's options, and refuse combinations without a meaning."""

import inspect

import pluggy
import pytest

from hookbus.markers import OWNERS, hookimpl, hookspec


def impl_options(**options):
    @hookimpl(**options)
    def on_fit_start():
        pass

    return on_fit_start.hookbus_impl


def spec_options(**options):
    @hookspec(**options)
    def on_fit_start(trainer):
        pass

    return on_fit_start.hookbus_spec


@pytest.mark.parametrize("marker", [hookimpl, hookspec])
def test_marked_function_is_the_same_function_with_and_without_parentheses(marker):
    def function():
        return 7

    assert marker(function) is function
    assert marker()(function) is function
    assert function() == 7


def test_unadorned_marks_change_nothing():
    bare, plain = impl_options(), hookimpl(lambda: None).hookbus_impl
    assert bare == plain
    assert not any(bare.values())
    spec = spec_options()
    assert spec.pop("owners") == OWNERS
    assert not any(spec.values())


@pytest.mark.parametrize(("ours", "pluggys"), [(hookimpl, "HookimplMarker"), (hookspec, "HookspecMarker")])
def test_every_option_of_pluggy_is_taken(ours, pluggys):
    pluggy_options = set(inspect.signature(getattr(pluggy, pluggys).__call__).parameters) - {"self", "function"}
    assert pluggy_options <= set(inspect.signature(ours).parameters)


def test_plain_pluggy_reads_both_marks():
    class Specs:
        @hookspec(firstresult=True)
        def answer(self, question):
            """Asks."""

    class Early:
        @hookimpl(tryfirst=True, every=3)
        def answer(self, question):
            return f"early {question}"

    class Late:
        @hookimpl(specname="answer")
        def reply(self):
            return "late"

    manager = pluggy.PluginManager("hookbus")
    manager.add_hookspecs(Specs)
    manager.register(Early())
    manager.register(Late())
    assert manager.hook.answer(question="?") == "early ?"


@pytest.mark.parametrize(
    ("given", "name", "kept"),
    [
        ({"before": "progress"}, "before", ("progress",)),
        ({"after": ["a", "b"]}, "after", ("a", "b")),
        ({"at": 3}, "at", frozenset({3})),
        ({"at": [1, 10, 10]}, "at", frozenset({1, 10})),
        ({"every": 50}, "every", 50),
        ({"once": True}, "once", True),
        ({"when": callable}, "when", callable),
        ({"rank_zero": True}, "rank_zero", True),
        ({"specname": "setup"}, "specname", "setup"),
        ({"wrapper": True}, "wrapper", True),
        ({"trylast": True}, "trylast", True),
        ({"optionalhook": True}, "optionalhook", True),
    ],
)
def test_implementation_option_is_kept(given, name, kept):
    options = impl_options(**given)
    assert options[name] == kept
    assert not any(value for key, value in options.items() if key != name)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"every": 0}, "every must be .* at least 1, got 0"),
        ({"every": -2}, "every must be .* at least 1, got -2"),
        ({"at": 0}, "at must name calls counted from 1, got 0"),
        ({"at": [2, 0]}, "at must name calls counted from 1"),
        ({"at": []}, "at must name calls counted from 1"),
        ({"wrapper": True, "hookwrapper": True}, "use wrapper=True alone"),
        ({"tryfirst": True, "trylast": True}, "exclude each other"),
    ],
)
def test_implementation_option_without_meaning_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        hookimpl(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"firstresult": True},
        {"historic": True},
        {"fold": "trainer"},
        {"collect_errors": True},
        {"native_only": True},
        {"warn_on_impl": DeprecationWarning("old")},
        {"warn_on_impl_args": {"trainer": DeprecationWarning("old")}},
        {"owners": ("module", "datamodule", "callback", "plugin", "default")},
    ],
)
def test_specification_option_is_kept(given):
    options = spec_options(**given)
    for name, value in given.items():
        assert options[name] == value


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"historic": True, "firstresult": True}, "no single result"),
        ({"historic": True, "fold": "batch"}, "no single result"),
        ({"fold": "batch", "firstresult": True}, "choose one"),
        ({"owners": ("callback", "module")}, "must name each of"),
        ({"owners": (*OWNERS, "guest")}, "must name each of"),
    ],
)
def test_specification_option_without_meaning_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        hookspec(**given)
