"""``hookbus plugins``: what is installed and would be loaded, from metadata alone unless ``--hooks`` asks for more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hookbus.bus import discovery
from hookbus.bus.config import read_selection
from hookbus.bus.loading import PluginStatus
from hookbus.bus.plan import plan
from hookbus.cli import output
from hookbus.cli.parser import UsageError, listing_parser, plugin_words
from hookbus.cli.session import loaded_bus, see_current_directory

_DESCRIPTION = """\
List the plugins that are installed or asked for, and say which a run would load.

  hookbus plugins              read metadata only: no plugin is imported
  hookbus plugins --hooks      import each one, to see its role and its hooks
  hookbus plugins info NAME    everything about one plugin"""


@dataclass
class Row:
    """One plugin of the listing.

    Attributes:
        plugin: what became, or would become, of it.
        roles: of its objects; empty unless it was loaded.
        hooks: that it implements; None unless it was loaded.
    """

    plugin: PluginStatus
    roles: tuple[str, ...] = ()
    hooks: tuple[str, ...] | None = None


def plugins(arguments: Sequence[str], early: Sequence[str]) -> int:
    """Carry out the command."""
    parser = listing_parser("plugins", _DESCRIPTION)
    parser.add_argument("action", nargs="?", choices=["list", "info"], default="list", help="list is the default")
    parser.add_argument("name", nargs="?", help="the plugin to inform about")
    parser.add_argument("--hooks", action="store_true", help="import each plugin and add its role and its hooks")
    parser.add_argument("--strict", action="store_true", help="import each plugin; exit with 1 if one is broken")
    options = parser.parse_args(arguments)
    if (options.action == "info") != (options.name is not None):
        parser.error("info takes the name of one plugin" if options.name is None else "list takes no name")
    words = plugin_words(early, options)
    rows, notices = _loaded(words) if options.hooks or options.strict else _from_metadata(words)
    if options.action == "info":
        _print_info(_called(options.name, rows), options.json)
    else:
        _print_list(rows, options)
    for notice in notices:
        output.complain(f"note: {notice}")
    return int(options.strict and any(row.plugin.status == "broken" for row in rows))


def _from_metadata(words: Sequence[str]) -> tuple[list[Row], list[str]]:
    see_current_directory()
    notices = list(discovery.notices())
    entries = plan(read_selection(arguments=words), discovery.find(), notices=notices)
    return [Row(PluginStatus.of(entry)) for entry in entries], notices


def _loaded(words: Sequence[str]) -> tuple[list[Row], list[str]]:
    bus, report = loaded_bus(words)
    rows = []
    for plugin in report:
        row = Row(plugin)
        if plugin.status == "active":
            roles = [bus.registration(name).role for name in plugin.registered]
            hooks = [made.hook for name in plugin.registered for made in bus.implementations(name)]
            row.roles, row.hooks = tuple(dict.fromkeys(roles)), tuple(dict.fromkeys(hooks))
        rows.append(row)
    return rows, report.notices


def _called(name: str, rows: Sequence[Row]) -> Row:
    """The one row that ``name`` stands for."""
    candidates = [row.plugin.planned.candidate for row in rows if row.plugin.planned and row.plugin.planned.candidate]
    names = [candidate.plugin for candidate in discovery.matching(name, candidates)]
    found = [row for row in rows if row.plugin.name == name or row.plugin.name in names]
    if not found:
        paths = [row.plugin.name for row in rows if not row.plugin.distribution]
        raise discovery.UnknownPluginError(discovery.unknown(name, candidates, paths))
    if len(found) > 1:
        several = ", ".join(row.plugin.name for row in found)
        raise UsageError(f"{name!r} stands for several plugins: {several}; name one")
    return found[0]


def _print_list(rows: Sequence[Row], options: object) -> None:
    if getattr(options, "json", False):
        output.say_json([_as_json(row) for row in rows])
        return
    if not rows:
        output.say("no plugins are installed")
        return
    details = any(row.hooks is not None or row.plugin.status == "broken" for row in rows)
    cells = []
    for row in rows:
        plugin = row.plugin
        line = [plugin.name, plugin.distribution or "-", plugin.version or "-", plugin.status, plugin.source]
        if details:
            roles = [role for role in row.roles if role != "unspecified"]
            line += [", ".join(roles) or "-", _last_column(row)]
        cells.append(line)
    output.table(cells, ["NAME", "DIST", "VERSION", "STATUS", "FROM", *(["ROLE", "HOOKS"] if details else [])])


def _last_column(row: Row) -> str:
    if row.plugin.status == "broken":
        return row.plugin.reason.splitlines()[0]
    return ", ".join(row.hooks or ()) or "-"


def _print_info(row: Row, as_json: bool) -> None:
    if as_json:
        output.say_json(_as_json(row, everything=True))
        return
    plugin = row.plugin
    facts = {key: value for key, value in _as_json(row, everything=True).items() if key not in ("source", "reason")}
    facts["status"] = f"{plugin.status} ({plugin.reason or plugin.source})"
    if plugin.status == "blocked":
        facts["switch on"] = f"-p {plugin.name}, or take back what blocks it ({plugin.source})"
    else:
        facts["switch off"] = (
            f"-p no:{plugin.name}, HOOKBUS_PLUGINS=no:{plugin.name}, "
            f'or plugins = ["no:{plugin.name}"] under [tool.hookbus] in pyproject.toml'
        )
    for key, value in facts.items():
        text = ", ".join(value) if isinstance(value, list) else value
        if text:
            output.say(f"{key}: {text}")


def _as_json(row: Row, *, everything: bool = False) -> dict[str, object]:
    plugin = row.plugin
    facts: dict[str, object] = {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "status": plugin.status,
        "source": plugin.source,
        "reason": plugin.reason,
    }
    candidate = plugin.planned.candidate if plugin.planned else None
    if candidate is not None:
        facts |= {"group": candidate.group, "value": candidate.value}
        if everything:
            facts |= {"summary": candidate.summary, "homepage": candidate.homepage, "license": candidate.license}
    elif plugin.planned is not None:
        facts["value"] = plugin.planned.path
    if row.hooks is not None:
        facts |= {"registered": list(plugin.registered), "roles": list(row.roles), "hooks": list(row.hooks)}
    return facts
