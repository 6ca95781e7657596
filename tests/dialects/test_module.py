"""Modules and data modules: the hook's arguments without trainer and pl_module, by position."""

import functools

import pytest

from hookbus.dialects import SignatureMismatchError, module
from hookbus.markers import hookimpl

ARGUMENTS = {
    "training_step": ("trainer", "pl_module", "batch", "batch_idx"),
    "validation_step": ("trainer", "pl_module", "batch", "batch_idx", "dataloader_idx"),
    "test_step": ("trainer", "pl_module", "batch", "batch_idx", "dataloader_idx"),
    "on_train_start": ("trainer", "pl_module"),
    "on_train_batch_start": ("trainer", "pl_module", "batch", "batch_idx"),
    "backward": ("trainer", "pl_module", "loss"),
    "optimizer_step": ("trainer", "pl_module", "epoch", "batch_idx", "optimizer", "closure"),
    "transfer_batch_to_device": ("trainer", "pl_module", "batch", "device", "dataloader_idx"),
    "on_after_batch_transfer": ("trainer", "pl_module", "batch", "dataloader_idx"),
    "setup": ("trainer", "pl_module", "stage"),
    "train_dataloader": ("trainer",),
    "on_exception": ("trainer", "pl_module", "exception"),
    "on_module_forward": ("trainer", "module"),
}


def base(name, **methods):
    """A base class as Lightning defines it; the dialect knows it by name and package."""
    for hook, method in methods.items():
        method.__qualname__ = f"{name}.{hook}"
    return type(name, (), {"__module__": "lightning.pytorch.core", **methods})


class Module(
    base(
        "LightningModule",
        training_step=lambda self, *args, **kwargs: None,
        on_train_start=lambda self: None,
        backward=lambda self, loss, *args, **kwargs: ("base backward", loss, args),
        optimizer_step=lambda self, epoch, batch_idx, optimizer, optimizer_closure=None: "base step",
        transfer_batch_to_device=lambda self, batch, device, dataloader_idx: "moved",
        on_after_batch_transfer=lambda self, batch, dataloader_idx: batch,
    )
):
    def training_step(self, batch):
        return ("loss", batch)

    def validation_step(self, *args):
        return args

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        return (batch, batch_idx, dataloader_idx)

    def setup(self, stage):
        return stage

    def on_module_forward(self, module):
        """A name that is a hook, but none that a LightningModule has."""


def read(plugin, **options):
    return {made.hook: made for made in module.implementations(plugin, ARGUMENTS, **options)}


def test_kinds():
    assert module.is_module(Module())
    assert not module.is_datamodule(Module())
    assert module.is_datamodule(base("LightningDataModule")())
    assert not module.is_module(object())


def test_a_module_answers_what_it_overrides_and_what_its_base_does_by_default():
    assert set(read(Module())) == {
        *("training_step", "validation_step", "test_step", "setup"),
        *("backward", "optimizer_step", "transfer_batch_to_device"),
    }


def test_arguments():
    found = read(Module())
    assert found["training_step"].args == ("batch",)
    assert (found["setup"].args, found["setup"].optional) == ((), ("stage",))
    assert found["backward"].args == ("loss",)
    assert found["optimizer_step"].args == ("epoch", "batch_idx", "optimizer", "closure")
    assert found["backward"].function("l") == ("base backward", "l", ())
    assert not found["training_step"].silent


def test_the_dataloader_index_goes_to_who_does_not_demand_it_only_where_there_are_several():
    single, several = read(Module()), read(Module(), several_loaders=True)
    for step in ("validation_step", "test_step"):
        assert single[step].args == ("batch", "batch_idx")
        assert several[step].args == ("batch", "batch_idx", "dataloader_idx")
    assert single["transfer_batch_to_device"].args == ("batch", "device", "dataloader_idx")


def test_the_stage_goes_by_name_to_who_takes_it_by_name():
    class Named(Module):
        def setup(self, *, stage):
            return stage

    class Any(Module):
        def setup(self, **kwargs):
            return kwargs

    class Other(Module):
        def setup(self, what):
            return what

    made = [read(plugin())["setup"] for plugin in (Named, Any, Other)]
    assert [(one.args, one.optional) for one in made] == [((), ("stage",)), ((), ("stage",)), (("stage",), ())]


def test_a_wrapper_around_a_base_method_is_no_step_of_its_own():
    plugin = Module()
    plugin.on_train_start = functools.wraps(plugin.on_train_start)(lambda: "wrapped")
    assert "on_train_start" in read(plugin)

    class Bare(base("LightningModule", validation_step=lambda self, batch, batch_idx: None)):
        """Has the step of its base."""

    plugin = Bare()
    plugin.validation_step = functools.partial(plugin.validation_step)
    assert "validation_step" not in read(plugin)
    plugin.validation_step = functools.wraps(plugin.validation_step)(lambda *args: "wrapped")
    assert "validation_step" not in read(plugin)
    plugin.validation_step = lambda batch, batch_idx: "own"
    assert "validation_step" in read(plugin)


def test_hooks_left_to_somebody_else():
    assert "transfer_batch_to_device" not in read(Module(), without=["transfer_batch_to_device"])


def test_a_step_assigned_to_the_instance_is_used():
    plugin = Module()
    plugin.training_step = lambda batch, batch_idx: "wrapped"
    made = read(plugin)["training_step"]
    assert made.args == ("batch", "batch_idx")
    assert made.function(1, 2) == "wrapped"


def test_marked_methods_are_native_implementations():
    class Marked(Module):
        @hookimpl
        def training_step(self, batch):
            pass

    assert "training_step" not in read(Marked())


def test_all_methods_that_cannot_be_called_are_named():
    class Bad(Module):
        def training_step(self, batch, mood):
            pass

        def on_train_start(self, trainer):
            pass

    with pytest.raises(SignatureMismatchError) as caught:
        read(Bad())
    text = str(caught.value)
    assert "Bad.training_step takes (batch, mood), but the hook has (batch, batch_idx)" not in text
    assert "Bad.on_train_start takes (trainer), but the hook has ()" in text


def test_a_data_module():
    class Data(base("LightningDataModule", train_dataloader=lambda self: None, setup=lambda self, stage: None)):
        def train_dataloader(self):
            return "loader"

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return "augmented"

        def on_exception(self, exception):
            return exception

        def training_step(self, batch):
            """Nobody asks a data module for this."""

    found = {made.hook: made for made in module.data_implementations(Data(), ARGUMENTS)}
    assert {hook: made.args for hook, made in found.items()} == {
        "train_dataloader": (),
        "on_after_batch_transfer": ("batch", "dataloader_idx"),
        "on_exception": ("exception",),
    }
    assert module.claimed_transfers(Data()) == ("on_after_batch_transfer",)
