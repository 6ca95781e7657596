"""Random implementations: pluggy's own manager, ``bus.hook`` and ``bus.fire`` do the same; list order follows a model.

Run with ``HOOKBUS_MAX_EXAMPLES=20000`` for a thorough search.
"""

import os
import warnings
from dataclasses import dataclass
from functools import partial
from itertools import count
from textwrap import dedent, indent

import pluggy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookbus.bus import Bus
from hookbus.markers import OWNERS, hookspec

EXAMPLES = int(os.environ.get("HOOKBUS_MAX_EXAMPLES", "200"))
thorough = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

spec_marker, impl_marker = pluggy.HookspecMarker("proof"), pluggy.HookimplMarker("proof")
ARGUMENTS = {"a": 1, "b": 2, "c": 3}  # `d` keeps the default of the specification


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt, which would stop the test run."""


RAISES = {
    "value error": "raise ValueError(NAME)",
    "error from another": "raise KeyError(NAME) from OSError('cause of', NAME)",
    "stop iteration": "raise StopIteration(NAME)",
    "interrupt": "raise Interrupt(NAME)",
}
ANSWERS = {"none": "return None", "name": "return NAME", "zero": "return 0", **RAISES}
BEFORE = {"pass": "pass", "no yield": "return", **RAISES}
AFTER = {
    "pass": "return (yield)",
    "replace": "yield; return NAME",
    "wrap": "return ('in', NAME, (yield))",
    "none": "yield",
    "swallow": """
        try:
            return (yield)
        except BaseException as error:
            note(type(error).__name__)
            return NAME""",
    "translate": """
        try:
            return (yield)
        except BaseException as error:
            raise LookupError(NAME) from error""",
    "always": """
        try:
            return (yield)
        finally:
            note('finally')""",
    **{key: f"yield; {text}" for key, text in RAISES.items()},
}
AFTER_OLD = {
    "pass": "yield",
    "look": "outcome = yield; note(repr(outcome.exception))",
    "force": "(yield).force_result(NAME)",
    "force error": "(yield).force_exception(LookupError(NAME))",
    **{key: f"yield; {text}" for key, text in RAISES.items()},
}


@dataclass(frozen=True)
class Plan:
    """One implementation: its kind, place, parameters and what it does. A required parameter is no optional one."""

    kind: str
    place: str
    args: tuple[str, ...]
    optional: tuple[str, ...]
    before: str
    action: str

    def __post_init__(self):
        object.__setattr__(self, "optional", tuple(name for name in self.optional if name not in self.args))

    def source(self):
        parameters = [*self.args, *(f"{name}='own {name}'" for name in self.optional)]
        if self.kind == "plain":
            body = [ANSWERS[self.action]]
        else:
            body = [BEFORE[self.before], {"wrapper": AFTER, "hookwrapper": AFTER_OLD}[self.kind][self.action]]
        lines = [f"note('enter', {', '.join([*self.args, *self.optional])})", *(dedent(text).strip() for text in body)]
        return f"def x({', '.join(['self', *parameters])}):\n" + indent("\n".join(lines), "    ")

    def build(self, name, events, marker):
        def note(*what):
            events.append((name, *what))

        namespace = {"note": note, "NAME": name, "Interrupt": Interrupt}
        exec(self.source(), namespace)
        options = {self.kind: True} if self.kind != "plain" else {}
        if self.place:
            options[self.place] = True
        return type(name, (), {"x": marker(**options)(namespace["x"])})()


def plans(kinds):
    def of(kind):
        actions = {"plain": ANSWERS, "wrapper": AFTER, "hookwrapper": AFTER_OLD}[kind]
        quiet = ["pass"] * 6 if kind != "plain" else ["none", "name"] * 3
        return st.builds(
            Plan,
            kind=st.just(kind),
            place=st.sampled_from(["", "", "tryfirst", "trylast"]),
            args=st.lists(st.sampled_from("abcd"), unique=True).map(tuple),
            optional=st.lists(st.sampled_from("abcdz"), unique=True, max_size=2).map(tuple),
            before=st.sampled_from(["pass"] * 6 + list(BEFORE)),
            action=st.sampled_from(quiet + list(actions)),
        )

    return st.lists(st.one_of([of(kind) for kind in kinds]), max_size=6)


def outcome(call):
    """What a call gave: its value, or its exception with all causes."""
    try:
        return ("returned", call())
    except BaseException as error:
        chain = []
        while error is not None:
            chain.append((type(error), error.args))
            error = error.__cause__
        return ("raised", chain)


def run(manager, specs, impls, removed, events, call):
    """Register, call, unregister some, call again; what came out and what happened on the way."""
    manager.add_hookspecs(specs)
    plugins = [plan.build(f"P{i}", events, impl_marker) for i, plan in enumerate(impls)]
    for plugin in plugins:
        manager.register(plugin)
    first = outcome(call)
    for i in sorted({i % len(plugins) for i in removed}) if plugins else ():
        manager.unregister(plugins[i])
    return first, outcome(call)


@thorough
@given(
    impls=plans(["plain", "plain", "wrapper", "hookwrapper"]),
    firstresult=st.booleans(),
    removed=st.lists(st.integers(0, 5), max_size=2),
    monitored=st.sampled_from([False, False, True]),
    extra=st.booleans(),
)
def test_pluggy_hook_and_fire_do_the_same(impls, firstresult, removed, monitored, extra):
    class Specs:
        @spec_marker(firstresult=firstresult)
        def x(self, a, b, c, d="default d"):
            pass

    def run_on(manager, events, call):
        if monitored:
            manager.add_hookcall_monitoring(lambda *_: events.append("before"), lambda *_: events.append("after"))
        return run(manager, Specs, impls, removed, events, call)

    given_ = {**ARGUMENTS, "z": 26} if extra else ARGUMENTS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pluggy.PluggyTeardownRaisedWarning)
        plain, events = pluggy.PluginManager("proof"), []
        expected = run_on(plain, events, lambda: plain.hook.x(**given_))

        bus, on_hook = Bus("proof"), []
        assert run_on(bus, on_hook, lambda: bus.hook.x(**given_)) == expected
        assert on_hook == events

        if not extra:
            bus, on_fire = Bus("proof"), []
            assert run_on(bus, on_fire, lambda: bus.fire.x(*ARGUMENTS.values())) == expected
            assert on_fire == events


# -- list order, folds and collected errors: a model that says it in the simplest way ------------------------------------


def modelled_order(entries, owners):
    """Wrappers outermost, tryfirst, others, trylast; then by owner, then as registered."""
    rank = {"tryfirst": 0, "": 1, "trylast": 2}
    return sorted(entries, key=lambda e: (e[1].kind == "plain", rank[e[1].place], owners.index(e[2])))


def modelled_call(entries, shape, values):
    """The call as nested functions."""
    wrappers = [e for e in entries if e[1].kind != "plain"]
    inner = [e for e in entries if e[1].kind == "plain"]

    def arguments(plan):
        return [values[n] for n in plan.args], {n: values[n] for n in plan.optional if n in values}

    def innermost():
        results, errors = [], []
        for plugin, plan, _ in inner:
            positional, optional = arguments(plan)
            try:
                value = plugin.x(*positional, **optional)
            except BaseException as error:
                if not shape.get("collect_errors"):
                    raise
                errors.append(error)
                continue
            if value is None:
                continue
            results.append(value)
            if shape.get("fold"):
                values[shape["fold"]] = value
            if shape.get("firstresult"):
                break
        if errors:
            raise errors[0]
        if shape.get("fold"):
            return values[shape["fold"]]
        if shape.get("firstresult"):
            return results[0] if results else None
        return results

    def around(depth):
        if depth == len(wrappers):
            return innermost()
        plugin, plan, _ = wrappers[depth]
        positional, optional = arguments(plan)
        generator = plugin.x(*positional, **optional)
        try:
            next(generator)
        except StopIteration:
            raise RuntimeError("did not yield") from None
        failure = None
        try:
            value = around(depth + 1)
        except BaseException as error:
            failure = error
        try:
            generator.send(value) if failure is None else generator.throw(failure)
        except StopIteration as stop:
            return stop.value
        except RuntimeError as error:
            if isinstance(failure, StopIteration) and error.__cause__ is failure:
                raise failure from failure.__cause__
            raise
        raise AssertionError("second yield")

    return around(0)


def without_place(result):
    """pluggy's message says where the wrapper stands; the model's does not."""
    kind, value = result
    if kind == "raised":
        value = [(t, ("did not yield",) if a and str(a[0]).endswith("did not yield") else a) for t, a in value]
    return kind, value


@thorough
@given(
    impls=plans(["plain", "plain", "wrapper"]),
    shape=st.sampled_from([{}, {"firstresult": True}, {"fold": "b"}, {"collect_errors": True}]),
    both=st.booleans(),
    owners=st.permutations(OWNERS),
    who=st.lists(st.sampled_from(OWNERS), min_size=6, max_size=6),
    monitored=st.booleans(),
)
def test_list_order_follows_the_model_on_both_paths(impls, shape, both, owners, who, monitored):
    if both and "collect_errors" not in shape:
        shape = {**shape, "collect_errors": True}

    class Specs:
        @hookspec(owners=tuple(owners), **shape)
        def x(self, a, b, c, d="default d"):
            pass

    def bus_with(events):
        bus = Bus(list_order=True)
        bus.add_hookspecs(Specs)
        for i, (plan, owner) in enumerate(zip(impls, who, strict=False)):
            bus.register(plan.build(f"P{i}", events, pluggy.HookimplMarker("hookbus")), owner=owner)
        if monitored:
            bus.add_hookcall_monitoring(lambda *_: None, lambda *_: None)
        return bus

    events = []
    entries = [
        (plan.build(f"P{i}", events, impl_marker), plan, owner)
        for i, (plan, owner) in enumerate(zip(impls, who, strict=False))
    ]
    ordered = modelled_order(entries, list(owners))
    values = {**ARGUMENTS, "d": "default d"}
    expected = without_place(outcome(lambda: modelled_call(ordered, shape, values)))

    for path in ("hook", "fire"):
        seen = []
        bus = bus_with(seen)
        assert [position.plugin for position in bus.order("x")] == [type(plugin).__name__ for plugin, _, _ in ordered]
        call = partial(bus.hook.x, **ARGUMENTS) if path == "hook" else partial(bus.fire.x, *ARGUMENTS.values())
        assert without_place(outcome(call)) == expected
        assert seen == events


@pytest.mark.parametrize("path", ["hook", "fire"])
def test_outer_wrappers_still_run_when_an_inner_one_yields_twice(path):
    # The one case that the search leaves out: pluggy abandons the outer wrappers then, hookbus does not.
    events, names = [], count()

    class Specs:
        @spec_marker
        def x(self, a):
            pass

    class Outer:
        @impl_marker(wrapper=True, tryfirst=True)
        def x(self):
            try:
                return (yield)
            finally:
                events.append("outer done")

    class Twice:
        @impl_marker(wrapper=True)
        def x(self):
            yield
            yield next(names)

    bus = Bus("proof")
    bus.add_hookspecs(Specs)
    bus.register(Outer())
    bus.register(Twice())
    with pytest.raises(RuntimeError, match="has second yield"):
        bus.fire.x(1) if path == "fire" else bus.hook.x(a=1)
    assert events == ["outer done"]
