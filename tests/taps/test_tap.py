"""A tap is a plugin like any other: it can be listed, closed, passed to a trainer, and told what its errors do."""

import copy
import functools
import warnings

import pytest
import torch
from tests.taps.networks import Net, Training, hooks_on, loader, trainer

import hookbus
from hookbus import tapping
from hookbus.taps import SelectionError, Tap, TapWarning

X = torch.ones(2, 4)


def test_a_tap_is_registered_under_the_name_of_its_handler():
    def look(event): ...

    with tapping(Net()) as taps:
        taps.tap("head", look)
        taps.tap("stem", look)
        assert taps.bus.names() == ["look", "look#2"]
        assert repr(taps.bus.get_plugin("look")) == "<Tap look on modules='head'>"


def test_a_tap_can_be_given_to_a_trainer():
    heard = []
    fit = trainer(
        Tap("net.head", lambda event: heard.append((event.phase, event.step)), every=2, phases=["train", "val"])
    )
    fit.fit(Training(), loader(4), loader(2))
    assert heard == [("train", 1), ("train", 3), ("val", 4)]


def test_errors_are_raised_by_default():
    def fail(event):
        raise ValueError("no")

    model = Net()
    with tapping(model) as taps:
        taps.tap("head", fail)
        with pytest.raises(ValueError, match="no"):
            model(X)


@pytest.mark.parametrize(("policy", "calls"), [("warn", 3), ("disable", 1)])
def test_errors_can_be_warnings(policy, calls):
    heard = []

    def fail(event):
        heard.append(1)
        raise ValueError("no")

    model = Net()
    with tapping(model) as taps:
        taps.tap("head", fail, on_error=policy)
        with pytest.warns(TapWarning, match="tap 'fail' raised ValueError: no for <forward of head"):
            model(X)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model(X)
            model(X)
    assert len(heard) == calls


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": "backward"}, "kinds must be some of forward_pre, .*; got backward"),
        ({"kinds": []}, "got none"),
        ({"on_error": "ignore"}, "on_error must be"),
        ({"on_error": "warn", "edits": True}, "half an edit"),
    ],
)
def test_what_has_no_meaning_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Tap("head", print, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evry": 3}, "tap has no argument 'evry'; did you mean 'every'"),
        ({"kind": "forward"}, "tap has no argument 'kind'; did you mean 'kinds'"),
        ({"types": "Linear"}, "types must be classes, such as torch.nn.Linear, got 'Linear'"),
    ],
)
def test_options_that_do_not_exist_are_refused(options, message):
    with pytest.raises(TypeError, match=message):
        Tap("head", print, **options)


def test_a_handler_that_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="handler must be a function of one event, got 3"):
        Tap("head", 3)


def test_the_handler_is_what_messages_name():
    def look(event): ...

    place = f"{__file__}:{look.__code__.co_firstlineno}"
    with tapping(Net()) as taps:
        for policy in ("raise", "warn"):
            with taps.tap("head", look, on_error=policy):
                assert [row.location for row in taps.bus.order("on_module_forward")] == [place]
        with pytest.raises(SelectionError) as caught:
            taps.tap("haed", functools.partial(look))
    assert place in str(caught.value)


def test_leaving_the_block_closes_it():
    model = Net()
    taps = tapping(model)
    with taps.tap("head", print) as tap:
        assert tap in [taps.bus.get_plugin(name) for name in taps.bus.names()]
    assert hooks_on(model) == 0
    assert taps.bus.names() == []


def test_a_copy_of_a_bus_has_taps_of_its_own():
    class Counting:
        def __init__(self):
            self.count = 0

        def __call__(self, event):
            self.count += 1

    bus = hookbus.Bus.load(autoload=False)
    counting = Counting()
    bus.register(Tap("head", counting), "tap")
    other = copy.deepcopy(bus)
    taps = hookbus.taps.Taps(other)
    model = Net()
    taps.attach(model)
    model(X)
    assert counting.count == 0
    assert other.get_plugin("tap")._handler.count == 1
