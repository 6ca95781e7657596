"""every, at, once, when and rank_zero: alone, combined, on wrappers, and across a resume."""

import pytest

from hookbus.bus import Bus
from hookbus.bus.filters import filtered
from hookbus.dialects import Implementation
from hookbus.markers import hookimpl, hookspec


class Specs:
    @hookspec
    def x(self, step, loss):
        pass


def make_bus(plugin=None):
    bus = Bus(list_order=True, closed=True)
    bus.add_hookspecs(Specs)
    if plugin is not None:
        bus.register(plugin, "p")
    return bus


def takes_step(**options):
    class Plugin:
        @hookimpl(**options)
        def x(self, step):
            return step

    return Plugin()


def steps(bus, count=12, path="fire"):
    """The steps, from 1, in which the implementation ran."""
    calls = [bus.fire.x(n, -n) if path == "fire" else bus.hook.x(step=n, loss=-n) for n in range(1, count + 1)]
    return [answer for answers in calls for answer in answers]


CASES = [
    ({"every": 5}, [5, 10]),
    ({"every": 1}, list(range(1, 13))),
    ({"at": 3}, [3]),
    ({"at": [1, 7, 99]}, [1, 7]),
    ({"once": True}, [1]),
    ({"when": lambda step: step > 9}, [10, 11, 12]),
    ({"when": lambda loss, step: loss == -step and step % 4 == 0}, [4, 8, 12]),
    ({"when": lambda: False}, []),
    ({"every": 2, "at": [2, 3, 4]}, [2, 4]),
    ({"every": 3, "once": True}, [3]),
    ({"at": [4, 8], "once": True}, [4]),
    ({"every": 2, "when": lambda step: step > 5}, [6, 8, 10, 12]),
    ({"once": True, "when": lambda loss: loss < -3}, [4]),
    ({"every": 2, "at": range(1, 9), "once": True, "when": lambda step: step >= 6, "rank_zero": True}, [6]),
]


@pytest.mark.parametrize("path", ["fire", "hook"])
@pytest.mark.parametrize(("options", "expected"), CASES)
def test_filters_alone_and_combined(options, expected, path):
    assert steps(make_bus(takes_step(**options)), path=path) == expected


@pytest.mark.parametrize(("options", "expected"), CASES)
@pytest.mark.parametrize("kind", ["wrapper", "hookwrapper"])
def test_filters_on_wrappers(kind, options, expected):
    ran = []

    class New:
        @hookimpl(wrapper=True, **options)
        def x(self, step):
            ran.append(step)
            return [*(yield), "wrapped"]

    class Old:
        @hookimpl(hookwrapper=True, **options)
        def x(self, step):
            ran.append(step)
            outcome = yield
            outcome.force_result([*outcome.get_result(), "wrapped"])

    bus = make_bus({"wrapper": New, "hookwrapper": Old}[kind]())
    bus.register(type("Inner", (), {"x": hookimpl(lambda self: "inner")})(), "inner")
    answers = [bus.fire.x(n, -n) for n in range(1, 13)]
    assert ran == expected
    assert [n for n, answer in enumerate(answers, 1) if answer == ["inner", "wrapped"]] == expected
    assert all(answer == ["inner"] for n, answer in enumerate(answers, 1) if n not in expected)


def test_an_idle_wrapper_lets_exceptions_through():
    class Wraps:
        @hookimpl(wrapper=True, at=2)
        def x(self):
            try:
                return (yield)
            except ValueError:
                return "handled"

    def fails(self):
        raise ValueError("inner")

    bus = make_bus(Wraps())
    bus.register(type("Inner", (), {"x": hookimpl(fails)})(), "inner")
    with pytest.raises(ValueError, match="inner"):
        bus.fire.x(1, 1)
    assert bus.fire.x(2, 2) == "handled"


def test_both_paths_count_together():
    bus = make_bus(takes_step(every=2))
    assert [bus.fire.x(1, 0), bus.hook.x(step=2, loss=0), bus.hook.x(step=3, loss=0), bus.fire.x(4, 0)] == [
        [],
        [2],
        [],
        [4],
    ]


def test_rank_zero_asks_at_each_call(monkeypatch):
    for variable in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(variable, raising=False)
    bus = make_bus(takes_step(rank_zero=True))
    assert steps(bus, 1) == [1]
    monkeypatch.setenv("SLURM_PROCID", "2")
    assert steps(bus, 1) == []
    monkeypatch.setenv("RANK", "0")
    assert steps(bus, 1) == [1]
    bus.set_rank(3)
    assert steps(bus, 1) == []
    bus.set_rank(0)
    assert steps(bus, 1) == [1]


def test_calls_on_other_ranks_count_so_that_all_ranks_agree():
    bus = make_bus(takes_step(every=2, rank_zero=True))
    bus.set_rank(1)
    assert steps(bus, 3) == []
    bus.set_rank(0)
    assert bus.fire.x(4, 0) == [4]


def test_the_predicate_is_asked_only_when_the_other_filters_agree():
    asked = []
    assert steps(make_bus(takes_step(every=4, when=lambda step: asked.append(step) or True))) == [4, 8, 12]
    assert asked == [4, 8, 12]


def test_an_implementation_with_defaults_keeps_them():
    class Plugin:
        @hookimpl(every=2)
        def x(self, step, loss=0, other="own"):
            return (step, loss, other)

    assert steps(make_bus(Plugin()), 2) == [(2, -2, "own")]


# -- state -----------------------------------------------------------------------------------------------------------


def test_counters_go_on_after_a_resume():
    before = make_bus(takes_step(every=5))
    assert steps(before, 7) == [5]
    state = before.filter_state()
    assert state == {"p": {"x": {"calls": 7, "done": False}}}

    after = make_bus(takes_step(every=5))
    after.load_filter_state(state)
    assert steps(after, 3) == [3]  # the tenth call


def test_once_stays_done_after_a_resume():
    before = make_bus(takes_step(once=True))
    steps(before, 1)
    after = make_bus(takes_step(once=True))
    after.load_filter_state(before.filter_state())
    assert steps(after, 3) == []


def test_two_filtered_implementations_of_one_hook_keep_counters_of_their_own():
    class Two:
        @hookimpl(every=2)
        def x(self):
            return "even"

        @hookimpl(specname="x", every=3)
        def third(self):
            return "third"

    before, after = make_bus(Two()), make_bus(Two())
    before.fire.x(1, 1)
    assert set(before.filter_state()["p"]) == {"x", "x (third)"}
    after.load_filter_state(before.filter_state())
    assert [sorted(after.fire.x(n, n)) for n in range(2, 7)] == [["even"], ["third"], ["even"], [], ["even", "third"]]


def test_state_of_absent_plugins_and_hooks_is_left_alone():
    bus = make_bus(takes_step(every=2))
    bus.load_filter_state({"gone": {"x": {"calls": 1, "done": False}}, "p": {"y": {"calls": 1, "done": False}}})
    assert steps(bus, 2) == [2]


def test_plugins_without_filters_have_no_state():
    assert make_bus(takes_step()).filter_state() == {}


def test_no_filter_no_change():
    made = Implementation("x", lambda: None, ())
    assert filtered(made, lambda: 0) == (made, None)


def test_a_filtered_implementation_still_says_where_it_was_written():
    plugin = takes_step(every=2)
    made = make_bus(plugin).implementations("p")[0]
    assert made.location.startswith(__file__)
    assert made.location == f"{__file__}:{plugin.x.__code__.co_firstlineno}"
