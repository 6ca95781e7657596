"""Which plugins are installed, read from metadata alone: nothing that a plugin brings is imported here.

:func:`find` lists the entry points of hookbus's groups; :func:`resolve` turns a name that a person typed into those
that it stands for. Two distributions may offer the same name: both are kept, as ``name@distribution``, and
:func:`notices` says so.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import importlib_metadata

#: The entry-point groups, preferred ones first: of a distribution that offers one name in several, the first counts.
NATIVE_GROUP: Final = "hookbus"
GROUPS: Final = (NATIVE_GROUP, "lightning.pytorch.callbacks_factory", "pytorch_lightning.callbacks_factory")

_HEADERS: Final = tuple(f"[{group}]" for group in GROUPS)
_PREFIXES: Final = ("hookbus-", "lightning-")


class UnknownPluginError(LookupError):
    """No plugin has this name; the message suggests the nearest one."""


@dataclass(frozen=True)
class Candidate:
    """One entry point that offers plugins.

    Attributes:
        name: the entry point's name.
        group: the group it stands in, one of :data:`GROUPS`.
        value: where it points: ``"pkg.mod"`` or ``"pkg.mod:attribute"``.
        distribution: the normalised name of the distribution that brings it, ``"hookbus-ema"``.
        version: that distribution's version.
        plugin: its name as a plugin, unlike that of any other: ``name``, or ``name@distribution`` where two
            distributions offer the same name.
    """

    name: str
    group: str
    value: str
    distribution: str
    version: str
    plugin: str
    _metadata: Any = field(repr=False, compare=False)

    @property
    def path(self) -> str:
        """The import path without extras: ``"pkg.mod:attribute"``."""
        return "".join(self.value.partition("[")[0].split())

    @property
    def module(self) -> str:
        """The module that loading it imports."""
        return self.path.partition(":")[0]

    @property
    def short(self) -> str:
        """The distribution's name without ``hookbus-`` or ``lightning-``, as in the header line."""
        return short_name(self.distribution)

    @property
    def summary(self) -> str:
        """The distribution's one-line description, empty if it has none."""
        return self._field("Summary")

    @property
    def homepage(self) -> str:
        """The distribution's home page, or the first of its project links."""
        links = [line.partition(",") for line in self._fields("Project-URL")]
        for label, _, url in links:
            if label.strip().lower().replace("-", "").replace(" ", "") == "homepage":
                return url.strip()
        return self._field("Home-page") or next((url.strip() for _, _, url in links), "")

    @property
    def license(self) -> str:
        """The licence: its SPDX expression if the distribution states one, else the first line of its licence field."""
        stated = self._field("License-Expression") or self._field("License")
        if stated:
            return stated.splitlines()[0]
        named = [line for line in self._fields("Classifier") if line.startswith("License ::")]
        return named[0].rpartition("::")[2].strip() if named else ""

    def _field(self, key: str) -> str:
        return next(iter(self._fields(key)), "")

    def _fields(self, key: str) -> list[str]:
        try:
            found = self._metadata.metadata.get_all(key) or []
        except Exception:  # noqa: BLE001 - metadata is whatever somebody installed; without it a listing goes on
            return []
        return [str(value) for value in found if value and value != "UNKNOWN"]


@dataclass(frozen=True)
class _Scan:
    environment: object
    candidates: tuple[Candidate, ...]
    notices: tuple[str, ...]


_last: _Scan | None = None


def find(refresh: bool = False) -> tuple[Candidate, ...]:
    """The plugins that are installed, by name and then distribution, the same on every machine.

    Scanned once per process, and again when ``sys.path`` or one of its directories has changed.

    Args:
        refresh: scan again in any case.
    """
    return _scanned(refresh).candidates


def notices(refresh: bool = False) -> tuple[str, ...]:
    """What is odd about the installed plugins, in sentences: clashing names, metadata that cannot be read."""
    return _scanned(refresh).notices


def resolve(name: str, candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates that ``name`` stands for.

    In this order, whatever fits first: the plugin's name, the entry point's name, where it points, the name of the
    distribution (in any spelling, without its prefix, or with its version as the header line prints it), the module,
    and the package.

    Raises:
        UnknownPluginError: nothing fits.
    """
    known = tuple(candidates)
    found = matching(name, known)
    if not found:
        raise UnknownPluginError(unknown(name, known))
    return found


def matching(
    name: str, candidates: Sequence[Candidate], *, modules: bool = True, packages: bool = True
) -> list[Candidate]:
    """As :func:`resolve`, but empty if nothing fits.

    Args:
        name: as a person typed it.
        candidates: what there is.
        modules: whether the names of modules count.
        packages: whether the names of packages that contain the module count.
    """
    wanted = normalised(name)
    tests: list[Callable[[Candidate], bool]] = [
        lambda c: c.plugin == name,
        lambda c: c.name == name,
        lambda c: c.path == name,
        lambda c: wanted in (normalised(c.plugin), normalised(c.name)),
        lambda c: wanted in _spellings(c),
    ]
    if modules:
        tests.append(lambda c: c.module == name)
    if packages:
        tests.append(lambda c: c.module.startswith(f"{name}."))
    for test in tests:
        found = [candidate for candidate in candidates if test(candidate)]
        if found:
            return found
    return []


def unknown(name: str, candidates: Sequence[Candidate], others: Iterable[str] = ()) -> str:
    """The message for a name that fits nothing.

    Args:
        name: as it was typed.
        candidates: what there is.
        others: further names that would have been accepted.
    """
    plugins = [*(candidate.plugin for candidate in candidates), *others]
    accepted = {spelling: c.plugin for c in candidates for spelling in (c.module, c.name, c.short, c.distribution)}
    accepted.update({plugin: plugin for plugin in plugins})
    near = difflib.get_close_matches(name, accepted, n=1, cutoff=0.6)
    if near:
        hint = f"did you mean {accepted[near[0]]!r}?"
    else:
        hint = f"installed are: {', '.join(plugins)}" if plugins else "no plugins are installed"
    return f"no plugin is named {name!r}; {hint}"


def normalised(name: str) -> str:
    """The one spelling of a distribution's name, after PEP 503: lower case, single dashes."""
    return re.sub(r"[-_.]+", "-", name).lower()


def short_name(distribution: str) -> str:
    """The name without the prefix that says only for whom the distribution is."""
    for prefix in _PREFIXES:
        if distribution.startswith(prefix) and distribution != prefix:
            return distribution[len(prefix) :]
    return distribution


def _spellings(candidate: Candidate) -> tuple[str, ...]:
    names = (candidate.distribution, candidate.short)
    return (*names, *(normalised(f"{name}-{candidate.version}") for name in names))


def _scanned(refresh: bool) -> _Scan:
    global _last
    environment = _environment()
    if refresh:
        importlib_metadata.MetadataPathFinder.invalidate_caches()
    if refresh or _last is None or _last.environment != environment:
        _last = _Scan(environment, *_scan())
    return _last


def _environment() -> object:
    """What a scan depends on, cheap enough to be asked each time."""
    paths = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]
    return importlib_metadata.distributions, tuple((path, _modified(path)) for path in paths)


def _modified(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _scan() -> tuple[tuple[Candidate, ...], tuple[str, ...]]:
    found: list[Candidate] = []
    said: list[str] = []
    for name, distribution in _installed().items():
        try:
            offered = _offered(name, distribution)
        except Exception as error:  # noqa: BLE001 - one unreadable file must not hide the other plugins
            said.append(f"the entry points of {name} cannot be read: {type(error).__name__}: {error}")
            continue
        found += _one_per_name(offered, said)
    found.sort(key=lambda candidate: (candidate.name, candidate.distribution))
    return _told_apart(found, said), tuple(said)


def _installed() -> dict[str, Any]:
    """The distributions by normalised name; as for imports, what stands earlier on ``sys.path`` hides what comes later.

    Of two versions side by side in one directory (a botched upgrade) the higher one counts, whatever order the file
    system lists them in.
    """
    chosen: dict[str, tuple[Any, str, str]] = {}
    for distribution in importlib_metadata.distributions():
        path = getattr(distribution, "_path", None)
        directory, folder = os.path.split(str(path)) if path is not None else ("", "")
        name = _name(distribution, folder)
        if name is None:
            continue
        other = chosen.get(name)
        if other is None or (other[1] == directory and _natural(folder) > _natural(other[2])):
            chosen[name] = (distribution, directory, folder)
    return {name: distribution for name, (distribution, _, _) in chosen.items()}


def _name(distribution: Any, folder: str) -> str | None:
    """The normalised name, from the folder ``name-version.dist-info`` where there is one: METADATA is slow to parse."""
    stem, _, suffix = folder.rpartition(".")
    name = stem.partition("-")[0]
    if name and suffix in ("dist-info", "egg-info"):
        return normalised(name)
    try:
        return normalised(distribution.metadata["Name"])
    except Exception:  # noqa: BLE001 - nameless metadata belongs to nobody and can bring no plugin
        return None


def _version(distribution: Any) -> str:
    folder = os.path.basename(str(getattr(distribution, "_path", "")))
    version = folder.removesuffix(".dist-info").partition("-")[2] if folder.endswith(".dist-info") else ""
    if version:
        return version
    try:
        return str(distribution.version)
    except Exception:  # noqa: BLE001 - a listing shows what it can
        return "unknown"


def _natural(folder: str) -> list[tuple[bool, int, str]]:
    """A sort key that puts 0.10 after 0.9."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", folder)]


def _offered(name: str, distribution: Any) -> list[Candidate]:
    """The entry points of one distribution in our groups, the preferred group first."""
    text = _entry_points_text(distribution)
    if not text or not any(header in text for header in _HEADERS):
        return []
    version = _version(distribution)
    found = [
        Candidate(point.name, point.group, point.value, name, version, point.name, distribution)
        for point in distribution.entry_points
        if point.group in GROUPS
    ]
    return sorted(found, key=lambda candidate: GROUPS.index(candidate.group))


def _entry_points_text(distribution: Any) -> str | None:
    path = getattr(distribution, "_path", None)
    if not isinstance(path, Path):
        text: str | None = distribution.read_text("entry_points.txt")
        return text
    try:  # as read_text does, in a third of the time; most distributions have no such file
        with open(f"{path}/entry_points.txt", encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def _one_per_name(offered: Sequence[Candidate], said: list[str]) -> list[Candidate]:
    """A distribution that serves several hosts offers one name in several groups: that is one plugin."""
    chosen: dict[str, Candidate] = {}
    for candidate in offered:
        first = chosen.setdefault(candidate.name, candidate)
        if first.value != candidate.value:
            said.append(
                f"{candidate.distribution} offers {candidate.name!r} as {first.value} in {first.group} and as "
                f"{candidate.value} in {candidate.group}: the former is used"
            )
    return list(chosen.values())


def _told_apart(found: Sequence[Candidate], said: list[str]) -> tuple[Candidate, ...]:
    """Give those that share a name, and only those, a longer one."""
    by_name: dict[str, list[Candidate]] = {}
    for candidate in found:
        by_name.setdefault(candidate.name, []).append(candidate)
    for name, clashing in by_name.items():
        if len(clashing) > 1:
            distributions = ", ".join(f"{c.distribution} {c.version}" for c in clashing)
            names = ", ".join(f"{name}@{c.distribution}" for c in clashing)
            said.append(f"{len(clashing)} distributions offer {name!r} ({distributions}); the plugins are {names}")
    return tuple(replace(c, plugin=f"{c.name}@{c.distribution}") if len(by_name[c.name]) > 1 else c for c in found)
