from __future__ import annotations

import copy
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import hookbus
from hookbus.errors import MisconfigurationException
from hookbus.hparams import AttributeDict, merged


class Base(hookbus.LightningModule):
    def __init__(self, a: Any, b: Any = 2, *args: Any, c: Any = 3, **kwargs: Any) -> None:
        super().__init__()
        self.save_hyperparameters()


class Chosen(hookbus.LightningModule):
    """Saves what its third argument says."""

    def __init__(self, a: Any, b: Any = 2, how: Any = (), **options: Any) -> None:
        super().__init__()
        self.save_hyperparameters(*how, **options)


def test_all_arguments_but_the_nameless() -> None:
    module = Base(1, 20, 30, 40, x=9)
    assert module.hparams == {"a": 1, "b": 20, "c": 3, "x": 9}
    assert module._hparams_name == "kwargs"
    assert module._log_hyperparams is True


def test_nothing_saved() -> None:
    module = hookbus.LightningModule()
    assert module.hparams == module.hparams_initial == {}
    assert module._log_hyperparams is False


def test_chosen_names() -> None:
    assert Chosen(1, how=["a"]).hparams == {"a": 1}
    with pytest.raises(MisconfigurationException, match=r"'nope' is no argument of Chosen.*a, b, how"):
        Chosen(1, how=["a", "nope"])


@pytest.mark.parametrize("ignore", ["how", ["how"], ("how", "absent")])
def test_ignored_names(ignore: Any) -> None:
    assert Chosen(1, ignore=ignore).hparams == {"a": 1, "b": 2, "ignore": ignore}


def test_a_later_call_adds_and_may_take_away() -> None:
    module = Chosen(1, how=["a"])
    module.save_hyperparameters({"k": 5}, ignore="a", logger=False)
    assert module.hparams == module.hparams_initial == {"k": 5}
    assert module._log_hyperparams is False


@pytest.mark.parametrize("make", [dict, lambda **kw: Namespace(**kw), AttributeDict], ids=["dict", "Namespace", "own"])
def test_one_object_with_all_of_them(make: Any) -> None:
    class Model(hookbus.LightningModule):
        def __init__(self, params: Any) -> None:
            super().__init__()
            self.save_hyperparameters(params)

    module = Model(make(x=1, y=2))
    assert module.hparams == {"x": 1, "y": 2}
    assert module.hparams.x == 1
    assert module._hparams_name == "params"


def test_an_object_that_is_no_argument_has_no_name() -> None:
    module = Chosen(1, how=[{"z": 1, "q": 2}], ignore="q")
    assert module.hparams == {"z": 1}
    assert module._hparams_name is None


def test_names_and_mappings_together() -> None:
    assert Chosen(1, how=["a", {"x": 2}]).hparams == {"a": 1, "x": 2}


@dataclass
class Config:
    x: int = 1


@pytest.mark.parametrize("value", [3, Config(), None])
def test_a_value_in_place_of_a_name(value: Any) -> None:
    with pytest.raises(ValueError, match="pass its name"):
        Chosen(1, how=[value])


def test_a_dataclass_is_a_value_like_any_other() -> None:
    assert Base(Config(7)).hparams["a"] == Config(7)


def test_arguments_of_subclasses_count_and_win() -> None:
    class Sub(Base):
        def __init__(self, a: int, d: int = 4) -> None:
            super().__init__(a * 2, b=5)

    assert Sub(3).hparams == {"a": 3, "b": 5, "c": 3, "d": 4}


def test_mixins_and_methods_in_between() -> None:
    class Mixin:
        def __init__(self, m: int = 1, **kwargs: Any) -> None:
            super().__init__(**kwargs)

    class Model(Mixin, hookbus.LightningModule):
        def __init__(self, n: int = 2) -> None:
            super().__init__(m=3)
            self.remember()

        def remember(self) -> None:
            self.save_hyperparameters()

    assert Model().hparams == {"n": 2}


def test_before_super_init() -> None:
    class Early(hookbus.LightningModule):
        def __init__(self, d: int) -> None:
            self.save_hyperparameters()
            super().__init__()

    assert Early(7).hparams == {"d": 7}


def test_a_module_that_is_a_dataclass() -> None:
    @dataclass(eq=False)
    class Model(hookbus.LightningModule):
        a: int
        sizes: list[int] = field(default_factory=lambda: [1, 2])

        def __post_init__(self) -> None:
            super().__init__()
            self.save_hyperparameters()

    assert Model(5).hparams == {"a": 5, "sizes": [1, 2]}


def test_values_are_those_at_the_call_and_the_initial_ones_stay() -> None:
    class Model(hookbus.LightningModule):
        def __init__(self, a: int, items: list[int]) -> None:
            super().__init__()
            a = a + 10
            self.save_hyperparameters()
            items.append(2)

    module = Model(1, [1])
    module.hparams.a = 5
    assert module.hparams == {"a": 5, "items": [1, 2]}
    assert module.hparams_initial == {"a": 11, "items": [1]}
    module.hparams_initial["items"].append(3)
    assert module.hparams_initial["items"] == [1]


def test_outside_of_init_there_are_no_arguments() -> None:
    module = hookbus.LightningModule()
    module.save_hyperparameters()
    assert module.hparams == {}


def test_a_module_among_them_is_warned_of_and_not_copied() -> None:
    layer = torch.nn.Linear(1, 1)
    with pytest.warns(UserWarning, match=r"ignore=\['a'\]"):
        module = Base(layer)
    assert module.hparams.a is module.hparams_initial.a is layer


def test_what_cannot_be_copied_is_named() -> None:
    with pytest.raises(TypeError, match=r"hyper-parameter 'a' cannot be copied.*ignore=\['a'\]"):
        Base(a=(i for i in ()))


def test_hparams_survive_a_copy_of_the_module() -> None:
    copied = copy.deepcopy(Base(1))
    assert copied.hparams == copied.hparams_initial == {"a": 1, "b": 2, "c": 3}


def test_attribute_dict() -> None:
    values = AttributeDict(b=1, long=2)
    values.a = 3
    del values.b
    assert values == {"a": 3, "long": 2}
    assert repr(values) == '"a":    3\n"long": 2'
    with pytest.raises(AttributeError, match="no hyper-parameter 'b'; there are: long, a"):
        _ = values.b
    with pytest.raises(AttributeError, match="no hyper-parameter 'b'"):
        del values.b


def test_data_modules_have_them_too() -> None:
    class Data(hookbus.LightningDataModule):
        def __init__(self, a: int = 1, b: int = 3) -> None:
            super().__init__()
            self.save_hyperparameters(ignore="b")

    assert Data().hparams == {"a": 1}


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 2), (1, 1.0), (1, True), (torch.ones(2), torch.zeros(2))],
    ids=["value", "float", "bool", "tensor"],
)
def test_module_and_data_module_may_not_differ(one, other):
    with pytest.raises(RuntimeError, match=r"'a' of module and data module have the same name and different values"):
        merged({"a": one, "b": 1}, {"a": other})


def test_equal_hyper_parameters_are_one():
    assert merged({"a": 1, "_class_path": "M"}, {"a": 1, "b": 2, "_class_path": "D"}) == {"a": 1, "b": 2}
    assert len(merged({"a": torch.ones(2)}, {"a": torch.ones(2)})) == 1
