from __future__ import annotations

import sys
import warnings

import pytest

from hookbus.bus import Bus
from hookbus.bus.config import Choice, PluginSelection, read_selection
from hookbus.bus.discovery import UnknownPluginError
from hookbus.bus.loading import LoadReport, PluginLoadError, PluginStatus, PluginWarning, load_plugins
from hookbus.hookspecs import SPEC_MODULES
from hookbus.markers import hookimpl

FACTORY = "lightning.pytorch.callbacks_factory"

PLUGIN = """
from hookbus.markers import hookimpl

class Ema:
    @hookimpl
    def on_fit_start(self, trainer): ...

class Sma:
    @hookimpl
    def on_fit_end(self): ...
"""


@pytest.fixture
def bus():
    bus = Bus(list_order=True, closed=True)
    for specs in SPEC_MODULES:
        bus.add_hookspecs(specs)
    return bus


@pytest.fixture
def install(make_distribution):
    """Install one distribution with one entry point ``ema`` in a module of the given source."""

    def install(source, value="emapkg:offer", group=FACTORY, name="hookbus-ema", version="1.2.0"):
        module = value.partition(":")[0]
        return make_distribution(name, version, {group: {"ema": value}}, {module: source})

    return install


def load(bus, *words, **options):
    return load_plugins(bus, read_selection(arguments=words, **options))


def status_of(report, name="ema"):
    (status,) = [plugin for plugin in report if plugin.name == name]
    return status


OFFERS = {
    "a function returning one": ("def offer(): return Ema()", ("ema",)),
    "a list": ("def offer(): return [Ema(), Sma()]", ("ema:Ema", "ema:Sma")),
    "a list of one": ("def offer(): return [Ema()]", ("ema",)),
    "a tuple": ("def offer(): return Ema(), Sma()", ("ema:Ema", "ema:Sma")),
    "a generator": ("def offer():\n    yield Ema()\n    yield Sma()", ("ema:Ema", "ema:Sma")),
    "two of a class": ("def offer(): return [Ema(), Ema(), Sma()]", ("ema:Ema", "ema:Ema#2", "ema:Sma")),
    "classes": ("def offer(): return [Ema, Sma]", ("ema:Ema", "ema:Sma")),
    "None": ("def offer(): return None", ()),
    "an empty list": ("def offer(): return []", ()),
    "a class": ("offer = Ema", ("ema",)),
    "an instance": ("offer = Ema()", ("ema",)),
    "a callable instance": ("class Called(Ema):\n    def __call__(self): 1/0\noffer = Called()", ("ema",)),
    "a factory object": (
        "class Factory:\n    def __call__(self): return Ema()\noffer = Factory()",
        ("ema",),
    ),
}


@pytest.mark.parametrize("group", ["hookbus", FACTORY])
@pytest.mark.parametrize("form", OFFERS)
def test_every_form_of_an_offer_is_registered(install, bus, form, group):
    source, expected = OFFERS[form]
    install(PLUGIN + source, group=group)
    status = status_of(load(bus))
    assert (status.status, status.registered, status.reason) == ("active", expected, "")
    assert [name for name in bus.names() if name.startswith("ema")] == list(expected)


@pytest.mark.parametrize("group", ["hookbus", FACTORY])
def test_a_module_is_a_plugin(install, bus, group):
    install("from hookbus.markers import hookimpl\n@hookimpl\ndef on_fit_start(): ...", "emapkg", group)
    assert status_of(load(bus)).registered == ("ema",)
    assert [position.plugin for position in bus.order("on_fit_start")] == ["ema"]


def test_a_callback_class_is_called_and_a_callback_without_hooks_is_one(install, bus):
    install("from hookbus.callback import Callback\nclass offer(Callback): ...")
    assert status_of(load(bus)).registered == ("ema",)


def test_pluggys_own_marker_counts(install, bus):
    install('import pluggy\n@pluggy.HookimplMarker("hookbus")\ndef on_fit_start(): ...', "emapkg")
    assert status_of(load(bus)).registered == ("ema",)


def test_factories_are_called_anew_for_each_bus_and_modules_imported_once(install, bus):
    install(PLUGIN + "import builtins\ndef offer(): return Ema()")
    load(bus)
    module = sys.modules["emapkg"]
    other = Bus(list_order=True)
    load(other)
    assert sys.modules["emapkg"] is module
    assert bus.get_plugin("ema") is not other.get_plugin("ema")


BROKEN = {
    "import": ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
    "attribute": ("x = 1", "AttributeError: module 'emapkg' has no attribute 'offer'"),
    "exit": ("raise SystemExit(3)", "SystemExit: 3"),
    "factory": ("def offer(): raise RuntimeError('no GPU here')", "RuntimeError: no GPU here"),
    "generator": ("def offer():\n    yield from ()\n    1/0", "ZeroDivisionError: division by zero"),
    "parameters": ("def offer(trainer): ...", "TypeError: offer() missing 1 required positional argument: 'trainer'"),
    "number": ("def offer(): return 3", "returned 3 (int); expected a Callback"),
    "string": ("def offer(): return 'ab'", "returned 'ab' (str); expected a Callback"),
    "mapping": ("def offer(): return {}", "returned an instance of dict; expected a Callback"),
    "list": ("def offer(): return [Ema(), 3]", "returned 3 (int) at position 1; expected a Callback"),
    "none in a list": ("def offer(): return [None]", "returned None at position 0; expected a Callback"),
    "no hooks": ("class Other: ...\ndef offer(): return Other()", "returned an instance of Other; expected a Callback"),
    "a class without hooks": ("class offer: ...", "makes an instance of offer; expected a Callback"),
    "not callable": ("offer = 3", "is 3 (int); expected a Callback, or a module or object with @hookimpl functions"),
    "one function": ("@hookimpl\ndef offer(): ...", "is a single @hookimpl function"),
    "unmarked": (
        "class Forgot:\n    def on_fit_start(self): ...\ndef offer(): return Forgot()",
        "mark on_fit_start with @hookbus.hookimpl",
    ),
    "unknown hook": ("class offer:\n    @hookimpl\n    def on_fit_stat(self): ...", "did you mean 'on_fit_start'"),
    "unknown argument": ("class offer:\n    @hookimpl\n    def on_fit_start(self, trainr): ...", "'trainr'"),
}


@pytest.mark.parametrize("form", BROKEN)
def test_a_broken_plugin_is_named_with_version_and_reason_and_the_others_go_on(install, make_distribution, bus, form):
    source, reason = BROKEN[form]
    install(PLUGIN + source)
    make_distribution("other", "1", {"hookbus": {"sma": "smapkg:Sma"}}, {"smapkg": PLUGIN})
    with pytest.warns(PluginWarning, match=r"'ema' \(hookbus-ema 1.2.0\) is left out") as caught:
        report = load(bus)
    status = status_of(report)
    assert status.status == "broken"
    assert reason in status.reason
    assert reason in str(caught[0].message)
    assert status.registered == ()
    assert [name for name in bus.names() if name.startswith(("ema", "sma"))] == ["sma"]


@pytest.mark.parametrize("form", BROKEN)
def test_a_broken_plugin_is_an_error_if_strict(install, bus, form):
    source, reason = BROKEN[form]
    install(PLUGIN + source)
    with pytest.raises(PluginLoadError, match=r"plugin 'ema' \(hookbus-ema 1.2.0\), emapkg:offer: ") as caught:
        load(bus, strict=True)
    assert reason in str(caught.value)
    assert caught.value.__cause__ is not None


def test_of_several_objects_all_are_registered_or_none(install, bus):
    install(PLUGIN + "class Bad:\n    @hookimpl\n    def on_fit_strt(self): ...\ndef offer(): return Ema(), Bad()")
    with pytest.warns(PluginWarning):
        status = status_of(load(bus))
    assert (status.status, status.registered) == ("broken", ())
    assert not bus.implemented("on_fit_start")


def test_an_interrupt_is_no_broken_plugin(install, bus):
    install("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load(bus)


def test_others_are_told_of_a_broken_plugin(install, make_distribution, bus):
    heard = []

    class Listener:
        @hookimpl
        def on_plugin_error(self, plugin, name, hook, exception):
            heard.append((plugin, name, hook, type(exception)))

    bus.register(Listener())
    install("1/0")
    with pytest.warns(PluginWarning):
        load(bus)
    assert heard == [(None, "ema", None, ZeroDivisionError)]


@pytest.mark.parametrize("name", ["ema", "hookbus-ema", "HOOKBUS_EMA", "ema-1.2.0", "emapkg", "emapkg:offer"])
def test_what_is_blocked_is_not_imported(install, bus, name):
    install("raise AssertionError('imported')")
    status = status_of(load(bus, f"no:{name}"))
    assert (status.status, status.source, status.reason) == ("blocked", "-p", "blocked by -p")
    assert (status.distribution, status.version) == ("hookbus-ema", "1.2.0")
    assert "emapkg" not in sys.modules
    assert bus.is_blocked("ema")


def test_a_name_that_was_blocked_on_the_bus_stays_out(install, bus):
    install("raise AssertionError('imported')")
    bus.set_blocked("ema")
    assert status_of(load(bus)).status == "blocked"


def test_an_unknown_name_is_an_error_with_a_suggestion(install, bus):
    install(PLUGIN)
    with pytest.raises(UnknownPluginError, match="-p: no plugin is named 'emma'; did you mean 'ema'"):
        load(bus, "no:emma")


def test_a_fleet_wide_block_of_what_is_not_installed_here_is_only_said(install, bus, monkeypatch):
    install(PLUGIN + "offer = Ema")
    monkeypatch.setenv("HOOKBUS_PLUGINS", "no:emma")
    report = load(bus)
    assert status_of(report).status == "active"
    assert any("HOOKBUS_PLUGINS: no plugin is named 'emma'; did you mean 'ema'" in notice for notice in report.notices)


def test_without_autoload_only_what_is_asked_for_is_loaded(install, make_distribution, bus, monkeypatch):
    install(PLUGIN + "offer = Ema")
    make_distribution("other", "1", {"hookbus": {"sma": "smapkg:Sma"}}, {"smapkg": PLUGIN})
    monkeypatch.setenv("HOOKBUS_DISABLE_PLUGIN_AUTOLOAD", "1")
    report = load(bus, "sma")
    assert [plugin.name for plugin in report.having("active")] == ["sma"]
    assert "emapkg" not in sys.modules
    assert report.header().startswith("plugins: other-1 (autoload off: ")


def test_an_import_path_is_loaded(make_distribution, bus):
    make_distribution("any", modules={"mine.plugin": PLUGIN + "offer = [Ema(), Sma()]\ndef make(): return offer"})
    status = status_of(load(bus, "mine.plugin:Ema"), "mine.plugin:Ema")
    assert (status.status, status.source, status.distribution) == ("active", "-p", "")
    assert status.registered == ("mine.plugin:Ema",)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("mine.plugn", "no module 'mine.plugn'"),
        ("mine.plugin:Emma", "mine.plugin has no 'Emma'; did you mean 'Ema'"),
        ("mnie.plugin", "no plugin is named 'mnie.plugin'"),
    ],
)
def test_an_import_path_that_leads_nowhere_is_an_unknown_name(make_distribution, bus, path, message):
    make_distribution("any", modules={"mine.plugin": PLUGIN})
    with pytest.raises(UnknownPluginError, match=message):
        load(bus, path)


def test_an_import_path_whose_own_imports_fail_is_broken(make_distribution, bus):
    make_distribution("any", modules={"mine.plugin": "import no_such_module_at_all"})
    with pytest.warns(PluginWarning, match="'mine.plugin' is left out"):
        assert status_of(load(bus, "mine.plugin"), "mine.plugin").status == "broken"


def test_one_of_several_objects_may_be_blocked_by_the_name_that_is_printed(install, bus):
    install(PLUGIN + "def offer(): return Ema(), Sma(), Sma()")
    report = load(bus, "no:ema:Sma#2")
    assert status_of(report).registered == ("ema:Ema", "ema:Sma")
    assert any("ema:Sma#2" in notice for notice in report.notices)
    with pytest.raises(UnknownPluginError, match="plugin 'ema' brings no 'Smaa'; did you mean 'Sma'"):
        load(Bus(), "no:ema:Smaa")


def test_an_object_that_is_offered_twice_takes_part_once_and_that_is_said(install, make_distribution, bus):
    install(PLUGIN + "one = Ema()\ndef offer(): return [one, one]")
    make_distribution("twin", "1", {"hookbus": {"twin": "emapkg:one"}})
    report = load(bus)
    assert status_of(report).registered == ("ema",)
    assert status_of(report, "twin").registered == ()
    assert any("'ema'" in notice and "twice" in notice for notice in report.notices)
    assert any("'twin'" in notice and "registered as 'ema' already" in notice for notice in report.notices)


def test_plugins_of_one_name_are_both_loaded_under_longer_names(make_distribution, bus):
    for name in ("first", "second"):
        make_distribution(name, "1", {"hookbus": {"ema": f"{name}_mod:Ema"}}, {f"{name}_mod": PLUGIN})
    report = load(bus)
    assert [p.registered for p in report if p.planned.candidate.name == "ema"] == [("ema@first",), ("ema@second",)]
    assert any("2 distributions offer 'ema'" in notice for notice in report.notices)
    assert [p.plugin for p in bus.order("on_fit_start")] == ["ema@first", "ema@second"]


def test_plugins_take_part_in_the_order_of_their_names(make_distribution, bus):
    points = {"hookbus": {"b": "m_b:Ema", "a": "m_a:Ema"}}
    make_distribution("d", "1", points, {"m_a": PLUGIN, "m_b": PLUGIN})
    load(bus)
    assert [p.plugin for p in bus.order("on_fit_start") if p.plugin in "ab"] == ["a", "b"]


def test_a_name_that_somebody_else_has_is_reported(install, bus):
    install(PLUGIN + "offer = Ema")
    bus.register(object(), "ema")
    with pytest.warns(PluginWarning, match="already registered"):
        assert status_of(load(bus)).status == "broken"


def statuses(*rows):
    return LoadReport([PluginStatus(*row) for row in rows])


def test_the_header_line():
    report = statuses(
        ("tb", "hookbus-tensorboard", "0.3.1", "entry point", "active", "", ("tb",)),
        ("cam", "lightning-gradcam", "0.1.0", "entry point", "active", "", ("cam",)),
        ("cam2", "lightning-gradcam", "0.1.0", "entry point", "active", "", ("cam2",)),
        ("nothing", "hookbus-nothing", "1", "entry point", "active", "", ()),
        ("mine.mod", "", "", "-p", "active", "", ("mine.mod",)),
        ("wandb", "hookbus-wandb", "2", "pyproject.toml", "blocked", "blocked by pyproject.toml"),
        ("profiler", "hookbus-profiler", "2", "entry point", "broken", "ImportError: x"),
    )
    assert report.header() == (
        "plugins: tensorboard-0.3.1, gradcam-0.1.0, mine.mod (1 blocked: wandb; 1 broken: profiler)"
    )
    assert LoadReport().header() == "plugins: none"


def test_the_digest_tells_sets_versions_and_orders_apart():
    a = ("a", "da", "1", "entry point", "active", "", ("a",))
    b = ("b", "db", "1", "entry point", "active", "", ("b",))
    newer = ("b", "db", "2", "entry point", "active", "", ("b",))
    blocked = ("b", "db", "1", "-p", "blocked")
    digests = [statuses(*rows).digest for rows in ((a, b), (b, a), (a, newer), (a,))]
    assert len(set(digests)) == 4
    assert statuses(a, b).digest == digests[0]
    assert statuses(a, blocked).digest == statuses(a).digest
    assert len(digests[0]) == 8
    assert int(digests[0], 16) >= 0


def test_nothing_is_said_where_all_is_well(install, bus):
    install(PLUGIN + "def offer(): return []")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = load_plugins(bus, PluginSelection((Choice("ema", "-p"),)))
    assert status_of(report).source == "-p"
    assert report.notices == []
