"""Settings from pyproject.toml and the environment."""

from __future__ import annotations

import pytest

from hookbus_gradcam.factory import callbacks
from hookbus_gradcam.settings import Settings, SettingsError, read, samples_called


def test_without_settings_the_defaults_hold(tmp_path):
    assert read({}, tmp_path) == Settings()


def test_the_environment_wins_over_pyproject(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.hookbus-gradcam]\nevery = 5\nlayers = ["conv1", "conv2"]\nsamples = ["0:3", "1:0"]\n'
    )
    (tmp_path / "deeper").mkdir()
    found = read({"HOOKBUS_GRADCAM_EVERY": "2", "HOOKBUS_GRADCAM_METHOD": "layercam"}, tmp_path / "deeper")
    assert found == Settings(every=2, layers="conv1,conv2", samples="0:3,1:0", method="layercam")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("EVRY", "1", r"HOOKBUS_GRADCAM_\* has no 'evry'; expected one of directory, every,"),
        ("EVERY", "often", "every: expected a number of epochs, or 0 for never; got 'often'"),
        ("SAMPLES", "1:a", "expected a number, such as 4, or LOADER:SAMPLE"),
        ("METHOD", "cam", "there is no method 'cam'"),
        ("TARGET", "cat", "expected predicted, label, or the number of a class; got 'cat'"),
    ],
)
def test_mistakes_are_named(tmp_path, variable, value, message):
    with pytest.raises(SettingsError, match=message):
        read({f"HOOKBUS_GRADCAM_{variable}": value}, tmp_path)


@pytest.mark.parametrize(
    "text", ["[tool.hookbus-gradcam]\nevery = true", "[tool.hookbus-gradcam", "[tool]\nhookbus-gradcam = 3"]
)
def test_mistakes_in_pyproject_name_the_file(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(SettingsError, match=r"pyproject\.toml"):
        read({}, tmp_path)


def test_samples():
    assert samples_called("4") == 4
    assert samples_called("0:7, 1:3,0:1") == {0: [7, 1], 1: [3]}


def test_the_factory_makes_a_callback_as_the_settings_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in {"EVERY": "3", "LAYERS": "a, b", "TARGET": "7", "SAMPLES": "0:2", "DIRECTORY": "maps"}.items():
        monkeypatch.setenv(f"HOOKBUS_GRADCAM_{name}", value)
    (made,) = callbacks()
    assert (made.every, made.layers, made.target, made.samples) == (3, ["a", "b"], 7, {0: [2]})
    assert made.directory == "maps"
    assert callbacks()[0] is not made
    monkeypatch.setenv("HOOKBUS_GRADCAM_EVERY", "0")
    assert callbacks() == []
