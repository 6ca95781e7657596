"""What plugins put into a checkpoint comes back to them, whatever it is, and nobody else's; and who is told of what, when."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.runs import Tiny, fit, saved, trainer

from hookbus import Callback, hookimpl
from hookbus.callbacks import ModelCheckpoint
from hookbus.checkpoint.reading import read


class Keeper(Callback):
    """Keeps a state that it was given."""

    def __init__(self, state: Any = None, key: str = "") -> None:
        self.state, self.key, self.got = state, key, []

    @property
    def state_key(self) -> str:
        return self.key or super().state_key

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state_dict: Any) -> None:
        self.got.append(state_dict)


@pytest.mark.parametrize("state", [{}, None, 0, False, "", [], {"n": 0}, torch.tensor(0.0)], ids=repr)
def test_any_state_comes_back(state: Any, tmp_path: Path) -> None:
    path, keeper = saved(tmp_path, Keeper(state)), Keeper()
    fit(tmp_path, keeper, ckpt_path=path, max_epochs=2)
    assert len(keeper.got) == 1
    assert type(keeper.got[0]) is type(state)
    assert bool(keeper.got[0] == state)


def test_a_key_that_is_a_class_does(tmp_path: Path) -> None:
    class Old(Keeper):
        @property
        def state_key(self) -> Any:
            return type(self)

    path, keeper = saved(tmp_path, Old({"n": 1})), Old()
    fit(tmp_path, keeper, ckpt_path=path, max_epochs=2)
    assert keeper.got == [{"n": 1}]


def test_instances_of_one_class_get_their_own(tmp_path: Path) -> None:
    path = saved(tmp_path, Keeper({"n": 1}, "a"), Keeper({"n": 2}, "b"))
    first, second = Keeper(key="a"), Keeper(key="b")
    fit(tmp_path, second, first, ckpt_path=path, max_epochs=2)
    assert (first.got, second.got) == ([{"n": 1}], [{"n": 2}])


@pytest.mark.parametrize("late", [False, True])
def test_one_key_for_two_states_is_an_error(late: bool, tmp_path: Path) -> None:
    class Brings(Tiny):
        def configure_callbacks(self) -> Any:
            return [type("Other", (Keeper,), {})(1, "a")] if late else []

    with pytest.raises(Exception, match="share the state_key 'a'"):
        fit(tmp_path, Keeper(1, "a"), *([] if late else [Keeper(2, "a")]), module=Brings())


def test_callbacks_of_the_module_whose_key_changes_later(tmp_path: Path) -> None:
    class Lazy(Keeper):
        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            self.key = f"set up for {stage}"

    class Brings(Tiny):
        def __init__(self, state: Any = None) -> None:
            super().__init__()
            self.lazy = Lazy(state, "as made")

        def configure_callbacks(self) -> Any:
            return self.lazy

    path, module = saved(tmp_path, module=Brings({"n": 1})), Brings()
    assert read(path)["callbacks"] == {"as made": {"n": 1}}
    fit(tmp_path, module=module, ckpt_path=path, max_epochs=2)
    assert module.lazy.got == [{"n": 1}]


def test_a_plugin_whose_arguments_changed_its_key_is_found_by_its_name(tmp_path: Path) -> None:
    path, keeper = saved(tmp_path, Keeper({"n": 1}, "with 3")), Keeper(key="with 4")
    fit(tmp_path, keeper, ckpt_path=path, max_epochs=2)
    assert keeper.got == [{"n": 1}]


def test_states_of_absent_plugins_are_kept_and_said_once(tmp_path: Path) -> None:
    path = saved(tmp_path, Keeper({"n": 1}, "a"), Keeper({"n": 2}, "b"))
    second = Keeper({"n": 3}, "b")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        later = saved(tmp_path, second, name="later.ckpt", ckpt_path=path, max_epochs=3)
    said = [str(entry.message) for entry in caught if "not present" in str(entry.message)]
    assert len(said) == 1
    assert "'a'; they are kept for the next checkpoint" in said[0]
    assert read(later)["callbacks"] == {"a": {"n": 1}, "b": {"n": 3}}
    back = Keeper(key="a")
    fit(tmp_path, back, ckpt_path=later, max_epochs=4)
    assert back.got == [{"n": 1}]


def test_a_state_that_could_not_be_read_back_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    class Own:
        pass

    made = fit(tmp_path, Keeper({"window": [Own()]}))
    with pytest.raises(TypeError, match=r"state of 'Keeper'.*Own at state\['window'\]\[0\].*add_safe_globals"):
        made.save_checkpoint(tmp_path / "x.ckpt")
    assert os.listdir(tmp_path) == []


def test_a_monitor_whose_state_fails_does_not_cost_the_checkpoint(tmp_path: Path) -> None:
    class Broken(Keeper):
        role = "monitor"

        def state_dict(self) -> Any:
            raise ValueError("no state today")

    with pytest.warns(UserWarning, match=r"state of monitor 'Broken' is not saved: ValueError: no state today"):
        path = saved(tmp_path, Broken(), Keeper(1))
    assert list(read(path)["callbacks"].values()) == [1]


def test_the_module_comes_first_on_load_and_may_mend_the_weights(tmp_path: Path) -> None:
    path, order = saved(tmp_path), []

    class Renamed(Tiny):
        def __init__(self) -> None:
            super().__init__()
            self.other, self.layer = self.layer, torch.nn.Identity()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.other(batch).square().mean()

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            order.append("module")
            weights = checkpoint["state_dict"]
            checkpoint["state_dict"] = {name.replace("layer", "other"): weights[name] for name in weights}

    class Looks(Keeper):
        def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
            same = torch.equal(pl_module.other.weight, checkpoint["state_dict"]["other.weight"])
            order.append(("callback", same))

    fit(tmp_path, Looks(), module=Renamed(), ckpt_path=path, max_epochs=2)
    assert order == ["module", ("callback", True)]


@pytest.mark.parametrize("in_background", [False, True])
def test_everybody_is_told_once_a_file_is_in_place(in_background: bool, tmp_path: Path) -> None:
    told, asked = [], []

    class Told(Callback):
        def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
            checkpoint["mine"] = len(asked)
            asked.append(checkpoint["global_step"])

        @hookimpl
        def on_checkpoint_saved(self, path: str, checkpoint: Any) -> None:
            told.append((os.path.relpath(path, tmp_path), read(path)["mine"] == checkpoint["mine"]))

    saver = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=2)
    fit(tmp_path, Told(), saver, async_checkpoints=in_background)
    assert told == [("step=2.ckpt", True), ("step=4.ckpt", True)]
    assert asked == [2, 4], "once for each file"


def test_what_has_changed_is_told_on_resume(tmp_path: Path) -> None:
    class Mutator(Callback):
        role = "mutator"

    class Told(Callback):
        @hookimpl
        def on_resume(self, trainer: Any, checkpoint: Any, changes: Any) -> None:
            self.changes, self.step = list(map(str, changes)), trainer.global_step

    path, told = saved(tmp_path, Mutator(), Told(), accumulate_grad_batches=2), Told()
    with pytest.warns(UserWarning, match="other plugins that change the training: plugin Mutator is gone"):
        fit(tmp_path, told, Keeper(), ckpt_path=path, max_epochs=2)
    assert told.step == 2
    assert any(change.startswith("plugin Mutator is gone (was ") for change in told.changes)
    assert any(change.startswith("plugin Keeper is new (") for change in told.changes)
    assert "setting accumulate_grad_batches: 2 then, 1 now" in told.changes
    fit(tmp_path, told := Told(), ckpt_path=saved(tmp_path, Told()), max_epochs=1)
    assert told.changes == []


def test_saving_changes_nothing(tmp_path: Path) -> None:
    made = fit(tmp_path, Keeper({"n": 1}))
    made.save_checkpoint(tmp_path / "a.ckpt")
    before = made.progress.state_dict(), torch.get_rng_state()
    made.save_checkpoint(tmp_path / "b.ckpt")
    assert made.progress.state_dict() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    first, second = read(tmp_path / "a.ckpt"), read(tmp_path / "b.ckpt")
    assert first["loops"] == second["loops"]
    assert first["hookbus"]["progress"] == second["hookbus"]["progress"]


def test_there_is_nothing_to_save_before_a_run(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="there is nothing to save: call fit"):
        trainer(tmp_path).save_checkpoint(tmp_path / "x.ckpt")


def test_versions_and_order_are_compared(tmp_path: Path) -> None:
    class Told(Callback):
        @hookimpl
        def on_resume(self, changes: Any) -> None:
            self.changes = list(map(str, changes))

    class A(Keeper):
        pass

    class B(Keeper):
        pass

    content = torch.load(saved(tmp_path, Told(), A(), B()), weights_only=True)
    content["hookbus"]["versions"] |= {"torch": "1.0", "numpy": "gone since"}
    next(entry for entry in content["hookbus"]["plugins"] if entry["name"] == "A")["version"] = "0.0.1"
    torch.save(content, tmp_path / "older.ckpt")
    told = Told()
    fit(tmp_path, told, B(), A(), ckpt_path=tmp_path / "older.ckpt", max_epochs=2)
    assert f"version torch: 1.0 then, {torch.__version__} now" in told.changes
    assert "plugin order: Told, A, B then, Told, B, A now" in told.changes
    assert any(change.startswith("plugin A: ") and "A 0.0.1, unspecified then" in change for change in told.changes)


class Holder(Tiny):
    """Remembers what it was made with."""

    def __init__(self, act: Any = None, rate: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()


class Local:
    """What its name does not lead to, as of a class within a function."""

    __qualname__ = "somewhere.<locals>.Local"


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("value", [lambda x: x, Local(), {"deep": [1, Local()]}], ids=["lambda", "local", "nested"])
def test_a_hyper_parameter_that_cannot_be_pickled_is_left_out(value: Any, background: bool, tmp_path: Path) -> None:
    saver, module = ModelCheckpoint(tmp_path, "x", every_n_train_steps=1), Holder(value)
    with pytest.warns(UserWarning, match="'act' of Holder is not saved in checkpoints") as caught:
        fit(tmp_path, saver, module=module, async_checkpoints=background)
    assert sum("'act'" in str(warning.message) for warning in caught) == 1
    assert module.hparams.act is value
    assert read(tmp_path / "x.ckpt")["hyper_parameters"] == {"rate": 0.1}
    assert Holder.load_from_checkpoint(tmp_path / "x.ckpt").hparams == {"act": None, "rate": 0.1}


@pytest.mark.parametrize("background", [False, True])
def test_what_a_hook_adds_must_be_picklable(background: bool, tmp_path: Path) -> None:
    class Adds(Callback):
        def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
            if trainer.global_step > 1:
                checkpoint["own"] = {"ways": [1, lambda: 0]}

    saver = ModelCheckpoint(tmp_path, "x", every_n_train_steps=1)
    with pytest.raises(TypeError, match=r"checkpoint\['own'\]\['ways'\]\[1\] is a .*function that cannot be pickled"):
        fit(tmp_path, Adds(), saver, async_checkpoints=background)
    assert read(tmp_path / "x.ckpt")["global_step"] == 1
