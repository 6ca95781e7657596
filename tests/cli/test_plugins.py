from __future__ import annotations

import json
import sys

import pytest


def rows(out):
    """The cells of a table whose columns stand at least two spaces apart, by the plugin's name."""
    lines = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in out.splitlines()]
    return lines[0], {line[0]: line for line in lines[1:]}


def test_the_list_shows_what_is_installed_and_imports_nothing(call, plugins):
    status, out, err = call("plugins")
    header, found = rows(out)
    assert header == ["NAME", "DIST", "VERSION", "STATUS", "FROM"]
    assert found["ema"] == ["ema", "hookbus-ema", "1.2.0", "active", "entry point"]
    assert found["nan"] == ["nan", "hookbus-nan", "0.3", "active", "entry point"]
    assert (status, err) == (0, "")
    assert not {"emapkg", "nanpkg", "wandbpkg"} & set(sys.modules)
    assert out.isascii()


@pytest.mark.parametrize("arguments", [["-p", "no:hookbus-ema", "plugins"], ["plugins", "-p", "no:hookbus-ema"]])
def test_what_is_blocked_stays_listed_with_who_blocked_it(call, plugins, tmp_path, arguments):
    (tmp_path / "cwd" / "pyproject.toml").write_text('[tool.hookbus]\nplugins = ["no:wandb"]\n')
    _, found = rows(call(*arguments)[1])
    assert found["ema"] == ["ema", "hookbus-ema", "1.2.0", "blocked", "-p"]
    assert found["wandb"] == ["wandb", "hookbus-wandb", "2.0", "blocked", "pyproject.toml"]


def test_with_autoload_off_that_is_where_it_says_why(call, plugins, monkeypatch):
    monkeypatch.setenv("HOOKBUS_DISABLE_PLUGIN_AUTOLOAD", "1")
    _, found = rows(call("plugins", "-p", "ema")[1])
    assert found["ema"][-2:] == ["active", "-p"]
    assert found["wandb"][-2:] == ["blocked", "HOOKBUS_DISABLE_PLUGIN_AUTOLOAD"]


def test_with_hooks_plugins_are_imported_one_by_one_and_a_broken_one_does_not_matter(call, plugins):
    status, out, err = call("plugins", "--hooks", "-p", "no:wandb")
    header, found = rows(out)
    assert header[-2:] == ["ROLE", "HOOKS"]
    assert found["ema"][-3:] == ["entry point", "mutator", "on_train_start"]
    assert found["nan"][3:6] == ["broken", "entry point", "-"]
    assert found["nan"][-1] == "ModuleNotFoundError: No module named 'no_such_module_at_all'"
    assert found["wandb"][3] == "blocked"
    assert status == 0
    assert "plugin 'nan' (hookbus-nan 0.3) is broken: ModuleNotFoundError" in err
    assert "ema says hello" in err
    assert "wandbpkg" not in sys.modules


def test_strict_makes_a_broken_plugin_the_exit_status(call, plugins):
    assert call("plugins", "--strict")[0] == 1
    assert call("plugins", "--strict", "-p", "no:nan")[0] == 0


def test_strict_settings_do_not_keep_a_listing_from_listing(call, plugins, monkeypatch):
    monkeypatch.setenv("HOOKBUS_STRICT", "1")
    status, out, _ = call("plugins", "--hooks")
    assert status == 0
    assert rows(out)[1]["nan"][3] == "broken"


def test_json_has_the_same_facts(call, plugins):
    status, out, _ = call("plugins", "--json", "-p", "no:wandb")
    found = {plugin["name"]: plugin for plugin in json.loads(out)}
    assert found["wandb"] == {
        "name": "wandb",
        "distribution": "hookbus-wandb",
        "version": "2.0",
        "status": "blocked",
        "source": "-p",
        "reason": "blocked by -p",
        "group": "hookbus",
        "value": "wandbpkg",
    }
    assert found["ema"]["status"] == "active"
    assert status == 0


def test_json_with_hooks_is_not_spoilt_by_what_plugins_print(call, plugins):
    found = {plugin["name"]: plugin for plugin in json.loads(call("plugins", "--hooks", "--json")[1])}
    assert found["wandb"]["hooks"] == ["on_train_end", "on_train_start"]
    assert found["ema"]["roles"] == ["mutator"]
    assert "hooks" not in found["nan"]
    assert found["nan"]["reason"].startswith("ModuleNotFoundError")


def test_one_that_is_asked_for_by_import_path_is_listed(call, tmp_path):
    (tmp_path / "cwd" / "local_plugin.py").write_text("raise AssertionError('imported')")
    _, found = rows(call("plugins", "-p", "local_plugin")[1])
    assert found["local_plugin"] == ["local_plugin", "-", "-", "active", "-p"]


def test_clashing_names_are_shown_apart_and_noted(call, make_distribution):
    make_distribution("one", entry_points={"hookbus": {"ema": "m1"}})
    make_distribution("two", entry_points={"hookbus": {"ema": "m2"}})
    _, out, err = call("plugins")
    assert {"ema@one", "ema@two"} <= set(rows(out)[1])
    assert "note: 2 distributions offer 'ema'" in err


def test_info_tells_everything_and_how_to_switch_it_off(call, plugins):
    status, out, _ = call("plugins", "info", "hookbus_ema")
    facts = dict(line.split(": ", 1) for line in out.splitlines())
    assert status == 0
    assert facts["name"] == "ema"
    assert facts["version"] == "1.2.0"
    assert facts["summary"] == "Averages weights"
    assert facts["homepage"] == "https://ema.example"
    assert facts["license"] == "MIT"
    assert (facts["group"], facts["value"]) == ("hookbus", "emapkg:Ema")
    assert facts["status"] == "active (entry point)"
    assert "-p no:ema" in facts["switch off"]
    assert "emapkg" not in sys.modules


def test_info_of_a_blocked_plugin_says_who_blocked_it(call, plugins):
    _, out, _ = call("plugins", "info", "ema", "-p", "no:ema")
    assert "status: blocked (blocked by -p)" in out
    assert "switch on: -p ema" in out


def test_info_with_hooks_and_as_json(call, plugins):
    assert "hooks: on_train_start" in call("plugins", "info", "ema", "--hooks")[1]
    found = json.loads(call("plugins", "info", "ema", "--json")[1])
    assert (found["name"], found["license"]) == ("ema", "MIT")


def test_info_of_an_unknown_or_ambiguous_name_is_an_error(call, plugins, make_distribution):
    status, _, err = call("plugins", "info", "emma")
    assert status == 2
    assert "no plugin is named 'emma'; did you mean 'ema'?" in err
    make_distribution("pair", entry_points={"hookbus": {"left": "m1", "right": "m2"}})
    status, _, err = call("plugins", "info", "pair")
    assert status == 2
    assert "stands for several plugins: left, right" in err


def test_an_unknown_name_after_p_is_an_error(call, plugins):
    assert call("plugins", "-p", "no:wanbd") == (
        2,
        "",
        "hookbus: error: -p: no plugin is named 'wanbd'; did you mean 'wandb'?\n",
    )


def test_where_nothing_is_installed_that_is_said(call, monkeypatch):
    monkeypatch.setattr("hookbus.cli.plugins.discovery.find", lambda: ())
    assert call("plugins")[:2] == (0, "no plugins are installed\n")
