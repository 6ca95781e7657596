"""The Callback base class has Lightning's interface and makes no demands on its subclasses."""

import abc
import inspect
import subprocess
import sys

import pytest

from hookbus import hookspecs
from hookbus.callback import CALLBACK_HOOKS, Callback

# Recorded from lightning 2.6.6: public methods of lightning.pytorch.Callback with their parameters after self.
LIGHTNING = {
    "setup": "trainer pl_module stage",
    "teardown": "trainer pl_module stage",
    "on_fit_start": "trainer pl_module",
    "on_fit_end": "trainer pl_module",
    "on_sanity_check_start": "trainer pl_module",
    "on_sanity_check_end": "trainer pl_module",
    "on_train_batch_start": "trainer pl_module batch batch_idx",
    "on_train_batch_end": "trainer pl_module outputs batch batch_idx",
    "on_train_epoch_start": "trainer pl_module",
    "on_train_epoch_end": "trainer pl_module",
    "on_validation_epoch_start": "trainer pl_module",
    "on_validation_epoch_end": "trainer pl_module",
    "on_test_epoch_start": "trainer pl_module",
    "on_test_epoch_end": "trainer pl_module",
    "on_predict_epoch_start": "trainer pl_module",
    "on_predict_epoch_end": "trainer pl_module",
    "on_validation_batch_start": "trainer pl_module batch batch_idx dataloader_idx=0",
    "on_validation_batch_end": "trainer pl_module outputs batch batch_idx dataloader_idx=0",
    "on_test_batch_start": "trainer pl_module batch batch_idx dataloader_idx=0",
    "on_test_batch_end": "trainer pl_module outputs batch batch_idx dataloader_idx=0",
    "on_predict_batch_start": "trainer pl_module batch batch_idx dataloader_idx=0",
    "on_predict_batch_end": "trainer pl_module outputs batch batch_idx dataloader_idx=0",
    "on_train_start": "trainer pl_module",
    "on_train_end": "trainer pl_module",
    "on_validation_start": "trainer pl_module",
    "on_validation_end": "trainer pl_module",
    "on_test_start": "trainer pl_module",
    "on_test_end": "trainer pl_module",
    "on_predict_start": "trainer pl_module",
    "on_predict_end": "trainer pl_module",
    "on_exception": "trainer pl_module exception",
    "state_dict": "",
    "load_state_dict": "state_dict",
    "on_save_checkpoint": "trainer pl_module checkpoint",
    "on_load_checkpoint": "trainer pl_module checkpoint",
    "on_before_backward": "trainer pl_module loss",
    "on_after_backward": "trainer pl_module",
    "on_before_optimizer_step": "trainer pl_module optimizer",
    "on_before_zero_grad": "trainer pl_module optimizer",
}


def described(method):
    parameters = list(inspect.signature(method).parameters.values())[1:]
    return " ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters)


def test_methods_are_those_of_lightning():
    methods = {n: m for n, m in vars(Callback).items() if inspect.isfunction(m) and not n.startswith("_")}
    assert {name: described(method) for name, method in methods.items()} == LIGHTNING


def test_callback_hooks_are_the_methods_that_are_hooks():
    assert set(CALLBACK_HOOKS) == set(LIGHTNING) - {"state_dict", "load_state_dict"}
    assert list(CALLBACK_HOOKS) == [name for name in hookspecs.names() if name in CALLBACK_HOOKS]


@pytest.mark.parametrize("name", CALLBACK_HOOKS)
def test_parameters_stand_in_the_order_in_which_the_bus_passes_them(name):
    method = list(inspect.signature(getattr(Callback, name)).parameters)[1:]
    assert method == list(inspect.signature(hookspecs.spec(name)).parameters)


@pytest.mark.parametrize("name", CALLBACK_HOOKS)
def test_annotations_read_as_lightnings_do(name):
    annotations = getattr(Callback, name).__annotations__
    assert annotations["trainer"] == "pl.Trainer"
    assert annotations["pl_module"] == "pl.LightningModule"
    assert annotations["return"] == "None"
    assert len(annotations) == len(inspect.signature(getattr(Callback, name)).parameters)


@pytest.mark.parametrize("name", CALLBACK_HOOKS)
def test_hooks_do_nothing_by_default(name):
    count = len(inspect.signature(getattr(Callback, name)).parameters) - 1
    assert getattr(Callback(), name)(*[object()] * count) is None


def test_state_is_empty_and_keyed_by_class_name():
    class Plain(Callback):
        pass

    assert Plain().state_key == Plain.__qualname__
    assert Plain().state_dict() == {}
    assert Plain().load_state_dict({}) is None


def test_state_key_can_tell_instances_apart():
    class Counter(Callback):
        def __init__(self, what):
            self.what = what

        @property
        def state_key(self):
            return self._generate_state_key(what=self.what)

    assert Counter("epochs").state_key == f"{Counter.__qualname__}{{'what': 'epochs'}}"
    assert Counter("epochs").state_key != Counter("batches").state_key


def test_plain_class_that_mixes_and_takes_attributes():
    assert type(Callback) is type
    assert "__init__" not in vars(Callback)
    assert not hasattr(Callback, "__slots__")

    class Abstract(Callback, metaclass=abc.ABCMeta):
        def __init__(self):
            self.made = True  # no super().__init__()

    instance = Abstract()
    instance.on_train_start = lambda trainer, pl_module: "assigned"
    assert instance.made
    assert instance.on_train_start(None, None) == "assigned"
    assert instance.state_dict() == {}


@pytest.mark.parametrize("module_first", [True, False])
def test_mixes_with_nn_module(module_first):
    torch = pytest.importorskip("torch")

    class Body:
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def on_train_start(self, trainer, pl_module):
            return "seen"

    bases = (torch.nn.Module, Callback) if module_first else (Callback, torch.nn.Module)
    instance = type("Evaluator", (Body, *bases), {})()
    assert instance.layer(torch.zeros(3, 2)).shape == (3, 1)
    assert instance.on_train_start(None, None) == "seen"
    assert instance.state_key == "Evaluator"
    assert set(instance.state_dict()) == ({"layer.weight", "layer.bias"} if module_first else set())


def test_importing_it_imports_no_torch():
    code = "import sys, hookbus.callback; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
