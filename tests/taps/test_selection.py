"""Selections say which steps are due, and refuse what has no meaning."""

import pytest
from torch import nn

from hookbus import hookimpl
from hookbus.taps import Moment, Selection
from hookbus.taps.selection import schedule


def due(numbers=range(1, 7), **options):
    selection = schedule(**options)
    return [number for number in numbers if selection.due(Moment(number - 1, number=number))]


@pytest.mark.parametrize(
    ("options", "steps"),
    [({}, [1, 2, 3, 4, 5, 6]), ({"every": 2}, [2, 4, 6]), ({"at": 3}, [3]), ({"at": [1, 5]}, [1, 5])],
)
def test_steps(options, steps):
    assert due(**options) == steps
    assert schedule(**options).scheduled == (options != {})


def test_every_one_is_no_schedule():
    assert not schedule(every=1).scheduled


def test_phases_and_ranks():
    assert schedule(phases="val").due(Moment(phase="val"))
    assert not schedule(phases=["val", "test"]).due(Moment(phase="train"))
    assert not schedule(ranks=0).due(Moment(rank=1))
    assert schedule(ranks={0, 1}).due(Moment(rank=1))


@pytest.mark.parametrize(("micro", "expected"), [("all", [0, 1, 2]), ("first", [0]), ("last", [2])])
def test_batches_of_a_window(micro, expected):
    selection = Selection(micro=micro)
    assert [i for i in range(3) if selection.due(Moment(micro_step=i, last_micro=i == 2))] == expected


def test_marks_become_selections():
    @hookimpl(modules="a.*", types=[int], phases="val", every=3, at=9, rank_zero=True, edits=True)
    def on_module_forward(event): ...

    selection = Selection.of(on_module_forward.hookbus_impl)
    assert selection == Selection(
        modules=("a.*",),
        types=(int,),
        phases=frozenset(["val"]),
        every=3,
        at=frozenset([9]),
        ranks=frozenset([0]),
        edits=True,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every must be .* at least 1, got 0"),
        ({"at": [0]}, "at must name steps counted from 1"),
        ({"phases": "training"}, "phases must be some of train, val"),
        ({"micro": "middle"}, "micro must be one of all, first, last; got 'middle'"),
        ({"on_missing": "cry"}, "on_missing must be one of error, warn, ignore"),
    ],
)
def test_what_has_no_meaning_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        schedule(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"types": "Linear"}, r"types must be classes, such as torch.nn.Linear, got 'Linear' \(str\)"),
        ({"types": [nn.Linear, "ReLU"]}, r"got 'ReLU' \(str\)"),
        ({"types": nn.Linear | nn.ReLU}, r"types must be classes.*\(UnionType\)"),
        ({"modules": 3}, r"modules must be names, patterns, .*, got 3 \(int\)$"),
        ({"modules": ["head", nn.Linear]}, r"got <class .*Linear'> \(type\); classes go to types"),
        ({"where": "head"}, "where must be a function of name and module, got 'head'"),
        ({"every": "2"}, r"every must be given as int, got '2'"),
        ({"at": [1, 2.5]}, r"at must be given as int, got 2.5"),
        ({"ranks": "first"}, r"ranks must be given as int, got 'first'"),
    ],
)
def test_another_type_is_refused(options, message):
    with pytest.raises(TypeError, match=message):
        schedule(**options)


def test_a_mark_takes_classes_only():
    with pytest.raises(TypeError, match=r"types must be classes, such as torch\.nn\.Linear, got 'Linear'"):
        hookimpl(types="Linear")
