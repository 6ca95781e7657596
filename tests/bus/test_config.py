from __future__ import annotations

import sys

import pytest

from hookbus.bus.config import Choice, ConfigError, PluginSelection, read_selection, set_command_line


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Write pyproject.toml and stand in a folder below it."""
    below = tmp_path / "scripts" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)

    def write(text):
        (tmp_path / "pyproject.toml").write_text(text)
        return tmp_path / "pyproject.toml"

    return write


def test_nothing_said_means_everything_installed(project):
    assert read_selection() == PluginSelection()
    assert read_selection().autoload


def test_each_source_is_remembered(project, monkeypatch):
    project('[tool.hookbus]\nplugins = ["no:wandb", "pkg.mod"]\n')
    monkeypatch.setenv("HOOKBUS_PLUGINS", "no:a, b ,,")
    set_command_line(["c"])
    selection = read_selection(arguments=["no:d"], trainer=["e", "no:f"])
    assert selection.choices == (
        Choice("wandb", "pyproject.toml", blocked=True),
        Choice("pkg.mod", "pyproject.toml"),
        Choice("a", "HOOKBUS_PLUGINS", blocked=True),
        Choice("b", "HOOKBUS_PLUGINS"),
        Choice("c", "-p"),
        Choice("d", "-p", blocked=True),
        Choice("e", "Trainer(plugins=...)"),
        Choice("f", "Trainer(plugins=...)", blocked=True),
    )


def test_the_last_word_about_a_name_counts(project, monkeypatch):
    project('[tool.hookbus]\nplugins = ["no:a", "b"]\n')
    monkeypatch.setenv("HOOKBUS_PLUGINS", "a")
    selection = read_selection(arguments=["no:b"])
    assert selection.blocked == (Choice("b", "-p", blocked=True),)
    assert selection.requested == (Choice("a", "HOOKBUS_PLUGINS"),)


def test_only_the_nearest_pyproject_is_read(project, tmp_path):
    project("[tool.hookbus]\nstrict = true\n")
    (tmp_path / "scripts" / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert not read_selection().strict
    assert read_selection(directory=tmp_path).strict


@pytest.mark.parametrize(
    "text",
    [
        "[tool.hookbus]\nautoload = false",
        "[ tool . 'hookbus' ]\nautoload = false",
        "[tool]\nhookbus = { autoload = false }",
        "[tool]\nhookbus.autoload = false",
        "tool.hookbus.autoload = false",
    ],
)
def test_every_spelling_of_the_table_is_understood(project, text):
    project(text)
    selection = read_selection()
    assert (selection.autoload, selection.autoload_source) == (False, "pyproject.toml")


def test_no_toml_parser_is_needed_where_nothing_is_configured(project, monkeypatch):
    project('[project]\ndependencies = ["hookbus"]\n[broken')
    monkeypatch.setitem(sys.modules, "tomllib", None)
    monkeypatch.setitem(sys.modules, "tomli", None)
    assert read_selection() == PluginSelection()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.hookbus]\nplugin = ['a']", r"has no key 'plugin'; expected one of plugins, autoload, strict"),
        ("[tool.hookbus]\nplugins = 'a'", r"plugins: expected a list of strings .* got 'a' \(str\)"),
        ("[tool.hookbus]\nplugins = ['a', 3]", r"plugins: expected a string such as 'no:wandb', got 3 \(int\)"),
        ("[tool.hookbus]\nautoload = 1", r"autoload: expected true or false, got 1 \(int\)"),
        ("[tool.hookbus]\nstrict = 'yes'", r"strict: expected true or false, got 'yes' \(str\)"),
        ("[tool]\nhookbus = 3", r"expected a table, got 3 \(int\)"),
        ("[tool.hookbus]\nplugins = [", r"expected TOML"),
        ("[tool.hookbus]\nplugins = ['no:']", r"expected a name after 'no:', got 'no:'"),
    ],
)
def test_a_setting_that_cannot_be_understood_names_file_key_and_what_was_expected(project, text, message):
    path = project(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_selection()
    assert str(path) in str(caught.value)


def test_switches_of_the_environment_win_over_the_file_and_arguments_over_both(project, monkeypatch):
    project("[tool.hookbus]\nautoload = false\nstrict = true\n")
    monkeypatch.setenv("HOOKBUS_DISABLE_PLUGIN_AUTOLOAD", "0")
    monkeypatch.setenv("HOOKBUS_STRICT", "0")
    selection = read_selection()
    assert (selection.autoload, selection.strict) == (True, False)
    selection = read_selection(autoload=False, strict=True)
    assert (selection.autoload, selection.strict) == (False, True)


@pytest.mark.parametrize("value", ["1", "true", "YES"])
def test_autoload_is_switched_off_by_the_environment(project, monkeypatch, value):
    monkeypatch.setenv("HOOKBUS_DISABLE_PLUGIN_AUTOLOAD", value)
    selection = read_selection()
    assert (selection.autoload, selection.autoload_source) == (False, "HOOKBUS_DISABLE_PLUGIN_AUTOLOAD")


def test_a_switch_that_is_neither_yes_nor_no_is_an_error(project, monkeypatch):
    monkeypatch.setenv("HOOKBUS_STRICT", "maybe")
    with pytest.raises(ConfigError, match=r"HOOKBUS_STRICT: expected one of 1, true, .* got 'maybe'"):
        read_selection()


def test_the_command_line_reaches_child_processes_and_can_be_taken_back(project, monkeypatch):
    monkeypatch.setenv("HOOKBUS_COMMAND_LINE_PLUGINS", "before")
    set_command_line(["no:a", "b"])
    import os

    assert read_selection(environ=dict(os.environ)).choices == (Choice("a", "-p", blocked=True), Choice("b", "-p"))
    set_command_line([])
    assert read_selection().choices == ()


def test_something_other_than_a_string_is_an_error():
    with pytest.raises(ConfigError, match=r"Trainer\(plugins=...\): expected a string .* got 3 \(int\)"):
        read_selection(trainer=[3])
