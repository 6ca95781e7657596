"""Marked functions of modules, classes and instances."""

import types
import warnings

import pluggy
import pytest

from hookbus.dialects import native
from hookbus.markers import hookimpl

parse = pluggy.PluginManager("hookbus").parse_hookimpl_opts


def read(plugin):
    return {made.hook: made for made in native.implementations(plugin, parse)}


class Plugin:
    @hookimpl(every=3)
    def on_fit_start(self, pl_module, trainer, extra=1):
        return "fit start"

    @hookimpl(specname="on_fit_end")
    def finish(self):
        return "finish"

    @staticmethod
    @hookimpl
    def on_train_start(trainer):
        return "static"

    @classmethod
    @hookimpl
    def on_train_end(cls, trainer):
        return "class"

    @property
    def on_exception(self):
        raise AssertionError("properties are not looked at")

    def on_train_epoch_end(self):
        """Not marked."""


def test_an_instance():
    found = read(Plugin())
    assert set(found) == {"on_fit_start", "on_fit_end", "on_train_start", "on_train_end"}
    assert found["on_fit_start"].args == ("pl_module", "trainer")
    assert found["on_fit_start"].optional == ("extra",)
    assert found["on_fit_start"].options["every"] == 3
    assert found["on_fit_end"].function() == "finish"
    assert found["on_train_start"].args == found["on_train_end"].args == ("trainer",)
    assert found["on_train_start"].function(1) == "static"
    assert found["on_train_end"].function(1) == "class"


def test_a_module():
    module = types.ModuleType("plugin")
    module.on_fit_start = hookimpl(lambda trainer: "module")
    module.helper = lambda: None
    assert [(name, made.args) for name, made in read(module).items()] == [("on_fit_start", ("trainer",))]


def test_a_function_marked_by_pluggys_own_marker():
    class Other:
        @pluggy.HookimplMarker("hookbus")(tryfirst=True)
        def on_fit_start(self):
            pass

    assert read(Other())["on_fit_start"].options["tryfirst"]


def test_a_marked_function_assigned_to_the_instance():
    plugin = Plugin()
    plugin.on_test_start = hookimpl(lambda trainer: "assigned")
    assert read(plugin)["on_test_start"].function(1) == "assigned"


def test_answers_count():
    assert not read(Plugin())["on_fit_start"].silent


def test_unmarked_hooks_are_warned_of():
    with pytest.warns(native.UnmarkedHookWarning, match="plugin 'p': on_train_epoch_end has the name of a hook"):
        native.warn_of_unmarked(Plugin(), "p", ["on_fit_start", "on_train_epoch_end", "finish"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        native.warn_of_unmarked(Plugin(), "p", ["on_fit_start", "finish", "on_test_end"])


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda: 0, ((), ())),
        (lambda a, b=1: 0, (("a",), ("b",))),
        (lambda a, *args, b, **kwargs: 0, (("a",), ())),
        (Plugin().finish, ((), ())),
        (Plugin, ((), ())),
    ],
)
def test_argument_names(function, names):
    assert native.argument_names(function) == names
