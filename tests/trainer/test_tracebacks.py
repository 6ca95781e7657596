"""What is left of a traceback when it leaves a run."""

from __future__ import annotations

import traceback

import pytest

from hookbus.bus import Bus
from hookbus.markers import hookimpl
from hookbus.trainer.tracebacks import FULL_VARIABLE, shortened


class Plugin:
    @hookimpl
    def on_train_start(self):
        raise ValueError("x")


@pytest.fixture
def error():
    bus = Bus.load(autoload=False)
    bus.register(Plugin())
    with pytest.raises(ValueError, match="x") as caught:
        bus.hook.on_train_start(trainer=None, pl_module=None)
    return caught.value


def files(trace):
    return [frame.filename.rpartition("/")[2] for frame in traceback.extract_tb(trace)]


def test_the_users_lines_and_the_compiled_frame_stay(error):
    kept = files(shortened(error.__traceback__))
    assert kept[0] == kept[-1] == "test_tracebacks.py"
    assert "hook.py" not in kept
    assert [name.startswith("<hookbus on_train_start") for name in kept].count(True) == 1
    lines = traceback.format_tb(shortened(error.__traceback__))
    assert any("# Plugin" in line for line in lines)


def test_everything_stays_on_request(error, monkeypatch):
    monkeypatch.setenv(FULL_VARIABLE, "1")
    assert "hook.py" in files(shortened(error.__traceback__))


def test_an_error_of_hookbus_itself_keeps_its_last_frame():
    with pytest.raises(ValueError, match="owner must be one of") as caught:
        Bus().register(object(), owner="nobody")
    assert files(shortened(caught.value.__traceback__)) == ["test_tracebacks.py", "bus.py"]


def test_nothing_stays_nothing():
    assert shortened(None) is None
