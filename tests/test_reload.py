from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import hookbus
from hookbus.reload import constructor_arguments, hparams_from_file, read_checkpoint


class Model(hookbus.LightningModule):
    def __init__(self, a: Any, b: Any = 2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(1, 1)


class Larger(Model):
    def __init__(self, a: Any, b: Any = 2, strict: bool | None = None) -> None:
        super().__init__(a, b)
        self.extra = torch.nn.Linear(1, 1)
        if strict is not None:
            self.strict_loading = strict


def save(path: Path, module: Any, name: str = "kwargs", **more: Any) -> Path:
    """A checkpoint with the keys that Lightning writes."""
    hparams = (
        {"hyper_parameters": dict(module.hparams), "hparams_name": name} if getattr(module, "hparams", None) else {}
    )
    torch.save({"state_dict": module.state_dict(), **hparams, **more}, path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.ckpt"


def test_weights_and_hyper_parameters_come_back(path: Path) -> None:
    module = Model(1, b=7)
    loaded = Model.load_from_checkpoint(save(path, module))
    assert loaded.hparams == {"a": 1, "b": 7}
    assert torch.equal(loaded.layer.weight, module.layer.weight)
    assert loaded.training
    with path.open("rb") as file:
        assert Model.load_from_checkpoint(file).hparams == {"a": 1, "b": 7}


def test_given_arguments_win(path: Path) -> None:
    assert Model.load_from_checkpoint(save(path, Model(1)), b=9).hparams == {"a": 1, "b": 9}


def test_an_unknown_argument_is_named(path: Path) -> None:
    with pytest.warns(UserWarning, match="Model.__init__ takes no 'bb'"):
        Model.load_from_checkpoint(save(path, Model(1)), bb=9)


def test_a_missing_argument(path: Path) -> None:
    with pytest.raises(TypeError, match="required positional argument: 'a'"):
        Model.load_from_checkpoint(save(path, hookbus.LightningModule()))


class Configured(hookbus.LightningModule):
    def __init__(self, params: Any, other: int = 1) -> None:
        super().__init__()
        self.save_hyperparameters(params)
        self.given, self.other = params, other


def test_one_object_with_all_hyper_parameters(path: Path) -> None:
    save(path, Configured({"x": 1}), "params")
    loaded = Configured.load_from_checkpoint(path, other=5, y=3)
    assert loaded.given == {"x": 1, "y": 3}
    assert loaded.given.y == 3
    assert loaded.other == 5
    assert Configured.load_from_checkpoint(path, params={"z": 0}).hparams == {"z": 0}


def test_constructor_arguments() -> None:
    class Open:
        def __init__(self, a: int = 0, **kwargs: Any) -> None: ...

    assert constructor_arguments(Open, {"a": 1, "x": 2}, "kwargs", {"y": 3}) == {"a": 1, "x": 2, "y": 3}
    assert constructor_arguments(Model, {"a": 1, "x": 2}, None, {}) == {"a": 1}


def test_weights_must_fit_unless_told_otherwise(path: Path) -> None:
    save(path, Model(1))
    with pytest.raises(RuntimeError, match=r"extra\.weight"):
        Larger.load_from_checkpoint(path)
    with pytest.warns(UserWarning, match=r"missing in the file: extra\.bias, extra\.weight"):
        Larger.load_from_checkpoint(path, strict=False)
    with pytest.warns(UserWarning, match=r"missing in the file: extra\.bias, extra\.weight"):
        LooseLarger.load_from_checkpoint(path)


class LooseLarger(Larger):
    def __init__(self, a: Any, b: Any = 2) -> None:
        super().__init__(a, b, strict=False)


def test_two_answers_to_strictness(path: Path) -> None:
    with pytest.raises(ValueError, match=r"strict=True.*strict_loading=False"):
        LooseLarger.load_from_checkpoint(save(path, Model(1)), strict=True)


def test_the_hooks_run_before_the_weights_are_loaded(path: Path) -> None:
    calls: list[str] = []

    class Late(hookbus.LightningModule):
        def configure_model(self) -> None:
            calls.append("configure_model")
            self.layer = torch.nn.Linear(1, 1)

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            calls.append("on_load_checkpoint")
            checkpoint["state_dict"] = {key: value * 0 for key, value in checkpoint["state_dict"].items()}

        def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
            calls.append("load_state_dict")
            super().load_state_dict(*args, **kwargs)  # and returns nothing, as overrides in the wild do

    loaded = Late.load_from_checkpoint(save(path, torch.nn.ModuleDict({"layer": torch.nn.Linear(1, 1)})))
    assert calls == ["configure_model", "on_load_checkpoint", "load_state_dict"]
    assert loaded.layer.weight.item() == 0


def test_it_is_not_for_instances(path: Path) -> None:
    with pytest.raises(TypeError, match="call it on the class"):
        Model(1).load_from_checkpoint(save(path, Model(1)))


def test_a_subclass_may_extend_it(path: Path) -> None:
    class Extended(Model):
        @classmethod
        def load_from_checkpoint(cls, *args: Any, **kwargs: Any) -> Any:
            return super().load_from_checkpoint(*args, b="extended", **kwargs)

    loaded = Extended.load_from_checkpoint(save(path, Model(1)))
    assert type(loaded) is Extended
    assert loaded.hparams.b == "extended"


def test_unsafe_content_needs_consent(path: Path) -> None:
    save(path, Model(pickle.Unpickler))
    with pytest.raises(pickle.UnpicklingError, match="weights_only=False"):
        Model.load_from_checkpoint(path)
    assert Model.load_from_checkpoint(path, weights_only=False).hparams.a is pickle.Unpickler


def test_files_that_are_no_checkpoint(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_checkpoint(path, None, None)
    torch.save([1], path)
    with pytest.raises(ValueError, match="no checkpoint: expected a dictionary, got list"):
        read_checkpoint(path, None, None)


def test_hyper_parameters_from_a_csv_file(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "hparams.csv"
    file.write_text("key,value\na,5\nb,some text\n")
    assert Model.load_from_checkpoint(save(path, Model(1)), hparams_file=file).hparams == {"a": 5, "b": "some text"}


def test_hyper_parameters_from_a_yaml_file(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    file = tmp_path / "hparams.yaml"
    file.write_text("a: 5\nb: [1, 2]\n")
    assert hparams_from_file(file) == {"a": 5, "b": [1, 2]}


def test_other_files_of_hyper_parameters() -> None:
    with pytest.raises(ValueError, match=r"\.yaml, \.yml or \.csv"):
        hparams_from_file("hparams.json")
