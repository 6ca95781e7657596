from __future__ import annotations

import sys

import pytest

from hookbus.bus.config import Choice, PluginSelection
from hookbus.bus.discovery import UnknownPluginError, find
from hookbus.bus.plan import plan


def planned(*words, autoload=True, others=()):
    """What is done with the made-up plugins ``a``, ``b`` and those asked for by import path."""
    choices = [Choice(word.removeprefix("no:"), "-p", word.startswith("no:")) for word in words]
    selection = PluginSelection(tuple(choices), autoload, autoload_source="HOOKBUS_DISABLE_PLUGIN_AUTOLOAD")
    found = [candidate for candidate in find() if candidate.distribution.startswith("dist-")]
    return {entry.name: entry for entry in plan(selection, found, others=others)}


@pytest.fixture(autouse=True)
def _installed(make_distribution):
    make_distribution(
        "dist-a", "1.0", {"hookbus": {"a": "pkg_a.plugin"}}, {"pkg_a.plugin": "", "pkg_a.local": "", "local_mod": ""}
    )
    make_distribution("dist-b", "2.0", {"hookbus": {"b": "pkg_b.plugin"}})


def test_installed_plugins_are_loaded_unless_autoload_is_off():
    assert [(entry.name, entry.load, entry.source) for entry in planned().values()] == [
        ("a", True, "entry point"),
        ("b", True, "entry point"),
    ]
    off = planned("b", autoload=False)
    assert (off["a"].load, off["b"].load) == (False, True)
    assert "HOOKBUS_DISABLE_PLUGIN_AUTOLOAD" in off["a"].reason
    assert off["b"].source == "-p"


@pytest.mark.parametrize("name", ["a", "dist-a", "Dist_A", "pkg_a.plugin", "pkg_a"])
def test_a_plugin_is_blocked_by_any_of_its_names(name):
    entry = planned(f"no:{name}")["a"]
    assert (entry.load, entry.source, entry.reason) == (False, "-p", "blocked by -p")


def test_the_last_word_counts_under_whatever_names():
    assert planned("no:a", "dist-a")["a"].load
    assert not planned("a", "no:pkg_a")["a"].load


def test_an_import_path_is_loaded_after_the_installed_ones_and_found_without_import():
    assert list(planned("local_mod", "pkg_a.local:attribute")) == ["a", "b", "local_mod", "pkg_a.local:attribute"]
    assert not {"local_mod", "pkg_a"} & set(sys.modules)


def test_a_package_is_asked_for_itself_not_all_that_lies_in_it():
    off = planned("pkg_a", autoload=False)
    assert not off["a"].load
    assert off["pkg_a"].load


def test_an_import_path_that_is_asked_for_may_be_blocked():
    assert not planned("local_mod", "no:local_mod")["local_mod"].load
    assert planned("no:local_mod", "local_mod")["local_mod"].load


@pytest.mark.parametrize("word", ["no:aa_", "no:dist-x", "no_such_module", "no:local_mod", "not a name", "x-y.z"])
def test_an_unknown_name_is_an_error_that_says_who_used_it(word):
    with pytest.raises(UnknownPluginError, match="-p: no plugin is named"):
        planned(word)


def test_names_of_defaults_may_be_blocked():
    assert list(planned("no:progress", others=("progress",))) == ["a", "b"]
    with pytest.raises(UnknownPluginError, match="did you mean 'progress'"):
        planned("no:progres", others=("progress",))


def test_one_object_of_several_may_be_left_out():
    entry = planned("no:a:Ema#2")["a"]
    assert entry.load
    assert entry.parts["Ema#2"].blocked
    assert not planned("no:a:Ema", "a:Ema")["a"].parts["Ema"].blocked
    assert planned("no:a", "a:Ema")["a"].load
