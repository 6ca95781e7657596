"""The bus: who takes part, under which name, in which order. A ``pluggy.PluginManager`` that people can look into."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pluggy

from hookbus.bus import plain, validate
from hookbus.bus.errors import DuplicateStateKeyError, RegistrationError, UnknownHookError
from hookbus.bus.filters import Filter, filtered
from hookbus.bus.guard import guarded, role_of
from hookbus.bus.hook import Fire, Hook
from hookbus.bus.order import Position, Ranked
from hookbus.bus.timing import Timing
from hookbus.dialects import Implementation, callback, module, native
from hookbus.hookspecs import SPEC_MODULES
from hookbus.markers import OWNERS, PROJECT

if TYPE_CHECKING:
    from hookbus.bus.loading import LoadReport


@dataclass
class Registration:
    """One plugin as the bus knows it.

    Attributes:
        plugin: the object.
        name: its name on this bus.
        owner: the kind of owner, one of :data:`hookbus.markers.OWNERS`.
        source: where it came from, in words.
        role: ``monitor``, ``mutator`` or ``unspecified``.
        position: its place among those of its owner.
        implementations: what it implements, as called.
        filters: the filters of its implementations, by hook.
    """

    plugin: object
    name: str
    owner: str
    source: str
    role: str
    position: int
    implementations: list[Implementation] = field(default_factory=list)
    filters: dict[str, Filter] = field(default_factory=dict)
    snapshot: tuple[object, ...] | None = None


class Bus(pluggy.PluginManager):
    """A plugin manager whose hooks are compiled, whose order is visible, and which names what is wrong.

    ``Bus("anything")`` stands in for ``pluggy.PluginManager("anything")``: empty, last registered is called first.
    :meth:`load` gives hookbus's own: with the catalogue of lifecycle points, called in list order, and with the
    plugins that are installed.

    Args:
        project_name: the name of the markers that count, as in pluggy.
        list_order: first registered is called first, by kind of owner; otherwise pluggy's last-registered-first.
        closed: a hook that nobody has specified is an error at registration, not only at :meth:`check_pending`.

    Attributes:
        hook: pluggy's public way to call: ``bus.hook.on_train_start(trainer=…, pl_module=…)``.
        fire: the fast way: ``bus.fire.on_train_start(trainer, pl_module)``, arguments in the spec's order.
        report: what was discovered and loaded; None unless made by :meth:`load`.
        timing: the clock of :meth:`timed`, None while it is off.
    """

    def __init__(self, project_name: str = PROJECT, *, list_order: bool = False, closed: bool = False) -> None:
        super().__init__(project_name)
        self.fire = Fire()
        self.list_order = list_order
        self.closed = closed
        self.report: LoadReport | None = None
        self.timing: Timing | None = None
        self.monitored = 0
        self._registrations: dict[str, Registration] = {}
        self._implementations: dict[int, Ranked] = {}
        self._sequence = 0
        self._rank = _rank_from_environment

    @classmethod
    def load(
        cls,
        plugins: Sequence[str | object] = (),
        *,
        arguments: Sequence[str] = (),
        strict: bool | None = None,
        autoload: bool | None = None,
    ) -> Bus:
        """hookbus's bus: the catalogue, and the plugins that are installed or asked for.

        Args:
            plugins: objects to register, and strings as ``-p`` takes them: ``"pkg.mod"``, ``"name"``, ``"no:name"``.
            arguments: such strings from a command line.
            strict: raise at a broken plugin instead of reporting it and going on; None: as configured.
            autoload: False leaves out what is only installed; None: as configured.

        Raises:
            UnknownPluginError: a name that no plugin has, with the nearest one.
            PluginLoadError: a broken plugin, if strict.
        """
        from hookbus.bus.config import read_selection
        from hookbus.bus.loading import load_plugins

        bus = cls(PROJECT, list_order=True, closed=True)
        for specs in SPEC_MODULES:
            bus.add_hookspecs(specs)
        words = [plugin for plugin in plugins if isinstance(plugin, str)]
        selection = read_selection(arguments=arguments, trainer=words, strict=strict, autoload=autoload)
        bus.report = load_plugins(bus, selection)
        for plugin in plugins:
            if not isinstance(plugin, str):
                bus.register(plugin, owner="plugin", source="plugins=[…]")
        return bus

    # -- registration ------------------------------------------------------------------------------------------------

    def register(
        self,
        plugin: object,
        name: str | None = None,
        *,
        owner: str = "callback",
        source: str = "code",
        implementations: Iterable[Implementation] | None = None,
    ) -> str | None:
        """Let ``plugin`` take part, whole or not at all.

        Args:
            plugin: a module, class or instance with ``@hookimpl`` functions, a callback, a module or data module.
            name: its name; by default made from the object (:meth:`get_canonical_name`).
            owner: its kind, which decides its place: see :data:`hookbus.markers.OWNERS`.
            source: where it came from, for listings.
            implementations: what it implements, if not to be found out by its shape.

        Returns:
            The name; None if that name is blocked (or ``plugin`` is None).

        Raises:
            RegistrationError: every problem of the plugin, each with hook, file and line; nothing is registered.
            ValueError: the name is taken, or the plugin is registered already.
        """
        if plugin is None:
            return None
        if owner not in OWNERS:
            raise ValueError(f"owner must be one of {', '.join(OWNERS)}, got {owner!r}")
        name = name or self.get_canonical_name(plugin)
        if self.is_blocked(name):
            return None
        self._check_names(plugin, name, source)
        made = list(self._read(plugin, name) if implementations is None else implementations)
        self._verify(plugin, name, made)
        self._check_state_key(plugin, name)
        unverified = [made_for for made_for in made if not self._is_specified(made_for.hook)]
        self._sequence += 1
        registration = Registration(plugin, name, owner, source, self._role(plugin, name), self._sequence)
        if callback.is_callback(plugin):
            registration.snapshot = callback.snapshot(plugin)
            if self.closed:
                callback.warn_of_misspelt(plugin, tuple(vars(self.hook)))
        self._name2plugin[name] = plugin
        self._registrations[name] = registration
        try:
            for implementation in made:
                if implementation in unverified:  # replaying a historic call may have brought its specification since
                    self._verify(plugin, name, [implementation])
                self._add(registration, implementation)
        except BaseException:
            self.unregister(plugin, name)
            raise
        announce = getattr(self.hook, "on_plugin_registered", None)
        if announce is not None and announce.has_spec():
            announce.call_historic(kwargs={"plugin": plugin, "name": name})
        return name

    def unregister(self, plugin: object | None = None, name: str | None = None) -> Any | None:
        """Take a plugin and its implementations out; as pluggy's, but a hook that it never reached does not matter."""
        gone = super().unregister(plugin, name)
        for key, registration in list(self._registrations.items()):
            if self._name2plugin.get(key) is not registration.plugin:
                del self._registrations[key]
        alive = {id(impl) for hook in vars(self.hook).values() for impl in hook.get_hookimpls()}
        self._implementations = {key: entry for key, entry in self._implementations.items() if key in alive}
        return gone

    @contextlib.contextmanager
    def registered(self, plugin: object, name: str | None = None, **options: Any) -> Generator[str | None, None, None]:
        """Register ``plugin`` for the time of a ``with`` block."""
        given = self.register(plugin, name, **options)
        try:
            yield given
        finally:
            if given is not None and self.get_plugin(given) is plugin:
                self.unregister(plugin)

    def sync(self, owner: str, plugins: Sequence[object], *, source: str = "code") -> None:
        """Make the registrations of one kind of owner equal ``plugins``, in their order.

        For a list that its owner changes at will (``trainer.callbacks``): those no longer in it are unregistered, new
        ones registered, moved ones moved; one whose methods were assigned or patched since is read again. Costs a few
        microseconds per plugin when nothing has changed.
        """
        present = {id(r.plugin): r for r in self._registrations.values() if r.owner == owner}
        wanted: dict[int, object] = {}
        for plugin in plugins:
            if id(plugin) in wanted:
                warnings.warn(
                    f"{type(plugin).__name__} stands in the list twice; it takes part once", UserWarning, stacklevel=2
                )
            wanted[id(plugin)] = plugin
        for key, registration in present.items():
            if key not in wanted:
                self.unregister(registration.plugin, registration.name)
        moved = False
        for place, (key, plugin) in enumerate(wanted.items()):
            known = present.get(key)
            if known is None:
                self.register(plugin, self._free_name(plugin), owner=owner, source=source)
                known = self._registration_of(plugin)
                moved = True
            elif known.snapshot is not None and known.snapshot != (now := callback.snapshot(plugin)):
                self._read_again(known)
                known.snapshot = now
            if known is not None and known.position != place:
                known.position = place
                moved = True
        if moved:
            self._rearrange()

    def refresh(self, plugin: object, implementations: Iterable[Implementation] | None = None) -> None:
        """Read a registered plugin again, after its methods were assigned or patched."""
        registration = self._registration_of(plugin)
        if registration is not None:
            self._read_again(registration, implementations)

    def get_canonical_name(self, plugin: object) -> str:
        """The name a plugin gets if none is given: on hookbus's bus its module or class name, made unique."""
        if not self.list_order:
            return super().get_canonical_name(plugin)
        return self._free_name(plugin)

    def add_hookspecs(self, module_or_class: Any) -> None:
        """Add the hook specifications of a module or class."""
        for name in dir(module_or_class):
            if self.parse_hookspec_opts(module_or_class, name) is not None and not hasattr(self.hook, name):
                setattr(self.hook, name, Hook(name, self))
        super().add_hookspecs(module_or_class)
        for hook in vars(self.hook).values():
            hook.rearrange()

    def check_pending(self) -> None:
        """Raise if an implementation belongs to no specified hook; all such are named, with the nearest hook.

        Raises:
            RegistrationError: unless they are marked ``optionalhook``.
        """
        known = [name for name, hook in vars(self.hook).items() if hook.has_spec()]
        found: list[tuple[object, str]] = []
        for name, hook in vars(self.hook).items():
            if hook.has_spec() or name.startswith("_"):
                continue
            found += [
                (impl.plugin, validate.unknown_hook(name, impl.plugin_name, self._of(impl).location, known))
                for impl in hook.get_hookimpls()
                if not impl.optionalhook
            ]
        if found:
            raise RegistrationError(found[0][0], "\n".join(text for _, text in found))

    # -- looking into it ---------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The names of the registered plugins, in order of registration."""
        return list(self._registrations)

    def registration(self, name: str) -> Registration:
        """What the bus knows of the plugin with this name.

        Raises:
            KeyError: if there is none, with the names that there are.
        """
        try:
            return self._registrations[name]
        except KeyError:
            raise KeyError(f"no plugin {name!r} is registered; there are: {', '.join(self._registrations)}") from None

    def implementations(self, name: str) -> list[Implementation]:
        """What the plugin with this name implements."""
        return list(self.registration(name).implementations)

    def implemented(self, hook: str) -> bool:
        """Whether anybody implements the hook."""
        found: Hook | None = getattr(self.hook, hook, None)
        return found is not None and bool(found._hookimpls)

    def order(self, hook: str) -> list[Position]:
        """The implementations of a hook in the order in which they are called.

        Raises:
            UnknownHookError: no such hook, with the nearest name.
        """
        found: Hook | None = getattr(self.hook, hook, None)
        if found is None:
            guess = validate.suggestion(hook, tuple(vars(self.hook)))
            raise UnknownHookError(f"no hook is named {hook!r}{guess}")
        return found.positions()

    # -- calling -----------------------------------------------------------------------------------------------------

    def add_hookcall_monitoring(self, before: Any, after: Any) -> Callable[[], None]:
        """As pluggy's; while a monitor is on, both call paths go through it."""
        undo_in_pluggy = super().add_hookcall_monitoring(before, after)
        self._set_monitored(self.monitored + 1)

        def undo() -> None:
            undo_in_pluggy()
            self._set_monitored(max(0, self.monitored - 1))

        return undo

    @contextlib.contextmanager
    def timed(self) -> Generator[Timing, None, None]:
        """Time each implementation for the duration of a ``with`` block; outside of one, timing costs nothing."""
        outer, self.timing = self.timing, Timing()
        self._recompile()
        try:
            yield self.timing
        finally:
            self.timing = outer
            self._recompile()

    def set_rank(self, rank: int) -> None:
        """Tell the bus the global rank of this process, which ``rank_zero`` implementations ask for."""
        self._rank = lambda: rank

    def filter_state(self) -> dict[str, dict[str, dict[str, Any]]]:
        """The counters of all filters, by plugin name and hook, for a checkpoint."""
        return {
            name: {hook: gate.state_dict() for hook, gate in registration.filters.items()}
            for name, registration in self._registrations.items()
            if registration.filters
        }

    def load_filter_state(self, state: dict[str, dict[str, dict[str, Any]]]) -> None:
        """Take over saved counters; those of absent plugins are left alone."""
        for name, filters in state.items():
            known = self._registrations[name].filters if name in self._registrations else {}
            for hook, counters in filters.items():
                if hook in known:
                    known[hook].load_state_dict(counters)

    def _hookexec(self, hook_name: str, methods: Any, kwargs: Any, firstresult: bool) -> Any:
        """pluggy's plain way to run a call, taught the two kinds of hook that pluggy lacks."""
        hook: Hook | None = getattr(self.hook, hook_name, None)
        shape = hook.shape if hook is not None else None
        if shape is not None and (shape.fold or shape.collect_errors):
            inner = [impl for impl in methods if not (impl.wrapper or impl.hookwrapper)]
            wrappers = [impl for impl in methods if impl.wrapper or impl.hookwrapper]
            core = plain.plain_implementation(lambda: plain.run_special(shape, inner, kwargs))
            return self._inner_hookexec(hook_name, [core, *wrappers], kwargs, True)
        return self._inner_hookexec(hook_name, methods, kwargs, firstresult)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _read(self, plugin: object, name: str) -> list[Implementation]:
        """What ``plugin`` implements, by its shape."""
        made = native.implementations(plugin, self.parse_hookimpl_opts)
        arguments = {key: hook.shape.parameters for key, hook in vars(self.hook).items() if hook.shape is not None}
        try:
            if callback.is_callback(plugin):
                made += callback.implementations(plugin, arguments)
            elif module.is_module(plugin):
                made += module.implementations(plugin, arguments)
            elif module.is_datamodule(plugin):
                made += module.data_implementations(plugin, arguments)
        except TypeError as error:
            raise RegistrationError(plugin, f"plugin {name!r}: {error}") from None
        return made

    def _read_again(self, registration: Registration, implementations: Iterable[Implementation] | None = None) -> None:
        """Replace those implementations that have changed since they were read."""
        made = list(self._read(registration.plugin, registration.name) if implementations is None else implementations)
        old = {(i.hook, i.origin or i.function, i.args): i for i in registration.implementations}
        new = {(i.hook, i.function, i.args): i for i in made}
        if old.keys() == new.keys():
            return
        self._verify(registration.plugin, registration.name, made)
        for key, implementation in old.items():
            if key not in new:
                self._drop(registration, implementation)
        for key, implementation in new.items():
            if key not in old:
                self._add(registration, implementation)

    def _add(self, registration: Registration, implementation: Implementation) -> None:
        made, gate = filtered(implementation, lambda: self._rank())
        if registration.role == "monitor":
            made = guarded(made, lambda hook, error: self._report(registration, hook, error))
        hook: Hook | None = getattr(self.hook, made.hook, None)
        if hook is None:
            hook = Hook(made.hook, self)
            setattr(self.hook, made.hook, hook)
        impl = plain.hookimpl_of(registration.plugin, registration.name, made)
        self._implementations[id(impl)] = Ranked(made, registration.plugin, registration.name, ())
        hook._maybe_apply_history(impl)
        hook._add_hookimpl(impl)
        registration.implementations.append(made)
        if gate is not None:
            registration.filters[made.hook] = gate

    def _drop(self, registration: Registration, implementation: Implementation) -> None:
        hook: Hook = getattr(self.hook, implementation.hook)
        for impl in hook.get_hookimpls():
            if self._of(impl) is implementation:
                hook._hookimpls.remove(impl)
                del self._implementations[id(impl)]
        hook.changed()
        registration.implementations.remove(implementation)
        registration.filters.pop(implementation.hook, None)

    def _of(self, impl: pluggy.HookImpl) -> Implementation:
        entry = self._implementations.get(id(impl))
        return entry.implementation if entry is not None else plain.implementation_of(impl)

    def _ranked(self, impl: pluggy.HookImpl, owners: Sequence[str] | None) -> Ranked:
        """An implementation with its place among its equals."""
        registration = self._registrations.get(impl.plugin_name)
        if registration is None:
            return Ranked(self._of(impl), impl.plugin, impl.plugin_name, (0,))
        rank = ((owners or OWNERS).index(registration.owner), registration.position)
        return Ranked(self._of(impl), impl.plugin, impl.plugin_name, rank)

    def _registration_of(self, plugin: object) -> Registration | None:
        return next((r for r in self._registrations.values() if r.plugin is plugin), None)

    def _free_name(self, plugin: object) -> str:
        """A readable name that nobody has: the module's, function's or class's, numbered from the second on."""
        base = getattr(plugin, "__name__", None) or type(plugin).__name__
        taken, name, number = self._name2plugin, base, 2
        while taken.get(name) is not None:
            name, number = f"{base}#{number}", number + 1
        return str(name)

    def _is_specified(self, name: str) -> bool:
        hook: Hook | None = getattr(self.hook, name, None)
        return hook is not None and hook.has_spec()

    def _verify(self, plugin: object, name: str, implementations: Sequence[Implementation]) -> None:
        problems = validate.problems(self, plugin, name, implementations)
        if problems:
            raise RegistrationError(plugin, "\n".join(problems))

    def _role(self, plugin: object, name: str) -> str:
        try:
            return role_of(plugin)
        except ValueError as error:
            raise RegistrationError(plugin, f"plugin {name!r}: {error}") from None

    def _check_names(self, plugin: object, name: str, source: str) -> None:
        other = self._registrations.get(name)
        if other is not None:
            raise ValueError(
                f"Plugin name already registered: {name!r} is {other.plugin!r} (from {other.source}), so "
                f"{plugin!r} (from {source}) cannot have it; give one of them another name"
            )
        for other in self._registrations.values():
            if other.plugin == plugin:
                raise ValueError(
                    f"Plugin already registered under a different name: {plugin!r} is {other.name!r} "
                    f"(from {other.source}), it cannot be {name!r} as well"
                )

    def _check_state_key(self, plugin: object, name: str) -> None:
        key = validate.state_key(plugin)
        if key is None:
            return
        for other in self._registrations.values():
            if validate.state_key(other.plugin) == key:
                raise DuplicateStateKeyError(
                    plugin,
                    f"plugins {other.name!r} ({type(other.plugin).__qualname__}, from {other.source}) and {name!r} "
                    f"({type(plugin).__qualname__}) are both stateful and share the state_key {key!r}, so a checkpoint "
                    "could keep only one of their states; override state_key so that it tells them apart",
                )

    def _report(self, registration: Registration, hook: str, error: Exception) -> None:
        """Say once per hook that a monitor failed, and tell whoever listens each time."""
        warnings.warn(
            f"monitor {registration.name!r} failed in {hook}: {type(error).__name__}: {error}; the run goes on",
            RuntimeWarning,
            stacklevel=3,
        )
        listeners: Hook | None = getattr(self.hook, "on_plugin_error", None)
        if listeners is not None and hook != "on_plugin_error":
            kwargs = {"plugin": registration.plugin, "name": registration.name, "hook": hook, "exception": error}
            if listeners.is_historic():
                listeners.call_historic(kwargs=kwargs)
            else:
                listeners(**kwargs)

    def _set_monitored(self, depth: int) -> None:
        self.monitored = depth
        self._recompile()

    def _recompile(self) -> None:
        for hook in vars(self.hook).values():
            hook.changed()

    def _rearrange(self) -> None:
        for hook in vars(self.hook).values():
            hook.rearrange()


def _rank_from_environment() -> int:
    """The global rank as launchers announce it; 0 without one."""
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) or 0)
