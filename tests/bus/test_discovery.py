from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hookbus.bus import discovery
from hookbus.bus.discovery import UnknownPluginError, find, notices, resolve

FACTORY = "lightning.pytorch.callbacks_factory"
LEGACY = "pytorch_lightning.callbacks_factory"


def named(*names):
    """The candidates of these entry-point names: other plugins may be installed where the tests run."""
    return [candidate for candidate in find() if candidate.name in names]


@pytest.mark.parametrize("group", ["hookbus", FACTORY, LEGACY])
def test_an_entry_point_of_each_group_is_found_without_importing_it(make_distribution, group):
    make_distribution("hookbus-ema", "1.2.0", {group: {"ema": "ema_pkg.plugin:make"}})
    (candidate,) = named("ema")
    assert (candidate.distribution, candidate.version, candidate.group) == ("hookbus-ema", "1.2.0", group)
    assert (candidate.path, candidate.module, candidate.plugin) == ("ema_pkg.plugin:make", "ema_pkg.plugin", "ema")
    assert "ema_pkg" not in sys.modules


def test_other_groups_are_left_alone(make_distribution):
    make_distribution("someone", entry_points={"console_scripts": {"ema": "a:b"}, "hookbus.else": {"ema": "a"}})
    assert named("ema") == []


def test_extras_are_no_part_of_the_import_path(make_distribution):
    make_distribution("d", entry_points={"hookbus": {"ema": "pkg.mod:attr [extra]"}})
    assert named("ema")[0].path == "pkg.mod:attr"


def test_the_same_offer_in_two_groups_counts_once(make_distribution):
    make_distribution("d", entry_points={LEGACY: {"ema": "pkg:make"}, FACTORY: {"ema": "pkg:make"}})
    (candidate,) = named("ema")
    assert candidate.group == FACTORY
    assert notices() == ()


def test_a_distribution_for_two_hosts_is_taken_at_its_native_offer_and_that_is_said(make_distribution):
    make_distribution("d", entry_points={FACTORY: {"ema": "pkg:for_lightning"}, "hookbus": {"ema": "pkg"}})
    assert [candidate.value for candidate in named("ema")] == ["pkg"]
    assert any("for_lightning" in notice and "'ema'" in notice for notice in notices())


def test_two_distributions_with_one_name_are_both_kept_and_told_apart(make_distribution):
    make_distribution("zeta", "2.0", {"hookbus": {"ema": "zeta_pkg"}})
    make_distribution("alpha", "1.0", {"hookbus": {"ema": "alpha_pkg", "other": "alpha_other"}})
    assert [candidate.plugin for candidate in named("ema", "other")] == ["ema@alpha", "ema@zeta", "other"]
    (notice,) = notices()
    assert "alpha 1.0" in notice
    assert "zeta 2.0" in notice
    assert "ema@zeta" in notice


def test_the_order_does_not_depend_on_directories(make_distribution):
    make_distribution("d2", entry_points={"hookbus": {"b": "m2", "a": "m2"}}, directory="first")
    make_distribution("d1", entry_points={"hookbus": {"c": "m1", "a": "m1"}}, directory="second")
    expected = ["a@d1", "a@d2", "b", "c"]
    assert [candidate.plugin for candidate in named("a", "b", "c")] == expected
    sys.path[:2] = sys.path[1::-1]
    assert [candidate.plugin for candidate in named("a", "b", "c")] == expected


def test_an_earlier_directory_hides_the_same_distribution_in_a_later_one(make_distribution):
    make_distribution("Hookbus.EMA", "1.0", {"hookbus": {"ema": "old"}}, directory="later")
    make_distribution("hookbus-ema", "2.0", directory="earlier")
    assert named("ema") == []


def test_of_two_versions_in_one_directory_the_higher_one_counts(make_distribution):
    make_distribution("d", "0.9", {"hookbus": {"ema": "old"}})
    make_distribution("d", "0.10", {"hookbus": {"ema": "new"}})
    assert [(candidate.version, candidate.value) for candidate in named("ema")] == [("0.10", "new")]


def test_a_distribution_that_appears_is_found(make_distribution):
    assert named("ema") == []
    make_distribution("d", entry_points={"hookbus": {"ema": "pkg"}})
    assert len(named("ema")) == 1


def test_a_scan_is_kept_until_something_changes_or_it_is_asked_for(make_distribution):
    root = make_distribution("d", entry_points={"hookbus": {"ema": "pkg"}})
    first = find()
    (root / "d-1.0.dist-info" / "entry_points.txt").write_text("[hookbus]\nsma = pkg\n")
    assert find() is first
    find(refresh=True)
    assert [candidate.name for candidate in named("ema", "sma")] == ["sma"]


def test_one_unreadable_file_does_not_hide_the_others(make_distribution):
    root = make_distribution("bad", entry_points={"hookbus": {"x": "y"}})
    make_distribution("good", entry_points={"hookbus": {"ema": "pkg"}})
    (root / "bad-1.0.dist-info" / "entry_points.txt").write_bytes(b"[hookbus]\nx = \xff\xfe\n")
    find(refresh=True)
    assert len(named("ema")) == 1
    assert any("bad" in notice and "cannot be read" in notice for notice in notices())


def test_an_egg_info_of_a_checkout_counts(make_distribution, tmp_path):
    make_distribution("any")
    info = tmp_path / "site" / "my_plugin.egg-info"
    info.mkdir()
    (info / "PKG-INFO").write_text("Name: my-plugin\nVersion: 3.1\n")
    (info / "entry_points.txt").write_text("[hookbus]\nmine = my_plugin\n")
    find(refresh=True)
    assert [(candidate.distribution, candidate.version) for candidate in named("mine")] == [("my-plugin", "3.1")]


def test_descriptions_are_read_when_asked_for(make_distribution):
    make_distribution(
        "d",
        entry_points={"hookbus": {"ema": "pkg"}},
        metadata="Summary: Averages weights\nLicense-Expression: MIT\n"
        "Project-URL: Documentation, https://docs.example\nProject-URL: Home page, https://example\n",
    )
    make_distribution("bare", entry_points={"hookbus": {"sma": "pkg"}})
    ema, sma = named("ema", "sma")
    assert (ema.summary, ema.license, ema.homepage) == ("Averages weights", "MIT", "https://example")
    assert (sma.summary, sma.license, sma.homepage) == ("", "", "")


@pytest.mark.parametrize(
    "name",
    [
        "nan_guard",
        "nan-guard",
        "hookbus-nan-guard",
        "Hookbus_NaN.Guard",
        "nan-guard-0.3.1",
        "nan_p.plugin",
        "nan_p",
    ],
)
def test_a_plugin_answers_to_every_name_that_is_printed_anywhere(make_distribution, name):
    make_distribution("hookbus-nan-guard", "0.3.1", {"hookbus": {"nan_guard": "nan_p.plugin"}})
    assert [candidate.plugin for candidate in resolve(name, find())] == ["nan_guard"]


def test_an_entry_points_own_name_comes_before_a_distributions(make_distribution):
    make_distribution("board", entry_points={"hookbus": {"writer": "m1"}})
    make_distribution("else", entry_points={"hookbus": {"board": "m2"}})
    assert [candidate.plugin for candidate in resolve("board", find())] == ["board"]
    assert [candidate.plugin for candidate in resolve("m1", find())] == ["writer"]


def test_a_shared_name_stands_for_both_and_a_full_one_for_one(make_distribution):
    make_distribution("a-dist", entry_points={"hookbus": {"ema": "m1"}})
    make_distribution("b-dist", entry_points={"hookbus": {"ema": "m2"}})
    assert len(resolve("ema", find())) == 2
    assert [candidate.distribution for candidate in resolve("ema@b-dist", find())] == ["b-dist"]


def test_an_unknown_name_is_an_error_with_a_suggestion(make_distribution):
    make_distribution("hookbus-wandb", entry_points={"hookbus": {"wandb": "m"}})
    with pytest.raises(UnknownPluginError, match="no plugin is named 'wanbd'; did you mean 'wandb'"):
        resolve("wanbd", find())
    with pytest.raises(UnknownPluginError, match="no plugins are installed"):
        resolve("wandb", ())


def test_scanning_imports_neither_plugins_nor_torch(make_distribution):
    root = make_distribution("d", entry_points={"hookbus": {"ema": "never_imported"}}, modules={"never_imported": ""})
    source = Path(discovery.__file__).parents[2]
    code = (
        "import sys; from hookbus.bus.discovery import find; assert any(c.name == 'ema' for c in find()); "
        "assert not {'torch', 'never_imported'} & set(sys.modules)"
    )
    environment = {"PYTHONPATH": f"{source}:{root}", "PATH": ""}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
