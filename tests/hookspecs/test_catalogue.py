"""The catalogue is complete, documented, declared as designed, and loads without torch."""

import inspect
import re
import subprocess
import sys

import pluggy
import pytest

from hookbus import hookspecs
from hookbus.callback import CALLBACK_HOOKS
from hookbus.markers import OWNERS

PAIR = "trainer pl_module"
EVALUATION = {
    template.replace("S", stage): arguments
    for stage in ("validation", "test", "predict")
    for template, arguments in {
        "on_S_model_eval": PAIR,
        "on_S_start": PAIR,
        "on_S_epoch_start": PAIR,
        "on_S_batch_start": f"{PAIR} batch batch_idx dataloader_idx",
        "S_step": f"{PAIR} batch batch_idx dataloader_idx",
        "on_S_batch_end": f"{PAIR} outputs batch batch_idx dataloader_idx",
        "on_S_epoch_end": PAIR,
        "on_S_end": PAIR,
    }.items()
}
CATALOGUE = {
    "setup": {
        "modify_config": "trainer config",
        "configure_callbacks": PAIR,
        "prepare_data": "trainer",
        "setup": f"{PAIR} stage",
        "configure_model": PAIR,
        "configure_sharded_model": PAIR,
        "configure_optimizers": PAIR,
        "train_dataloader": "trainer",
        "val_dataloader": "trainer",
        "test_dataloader": "trainer",
        "predict_dataloader": "trainer",
        "on_exception": f"{PAIR} exception",
        "teardown": f"{PAIR} stage",
        "on_run_close": f"{PAIR} stage exception",
    },
    "fit": {
        "on_fit_start": PAIR,
        "on_sanity_check_start": PAIR,
        "on_sanity_check_end": PAIR,
        "on_train_start": PAIR,
        "on_train_epoch_start": PAIR,
        "on_train_batch_start": f"{PAIR} batch batch_idx",
        "training_step": f"{PAIR} batch batch_idx",
        "on_before_zero_grad": f"{PAIR} optimizer",
        "optimizer_zero_grad": f"{PAIR} epoch batch_idx optimizer",
        "on_before_backward": f"{PAIR} loss",
        "backward": f"{PAIR} loss",
        "on_after_backward": PAIR,
        "on_before_optimizer_step": f"{PAIR} optimizer",
        "configure_gradient_clipping": f"{PAIR} optimizer gradient_clip_val gradient_clip_algorithm",
        "optimizer_step": f"{PAIR} epoch batch_idx optimizer closure",
        "lr_scheduler_step": f"{PAIR} scheduler metric",
        "on_train_batch_end": f"{PAIR} outputs batch batch_idx",
        "on_train_epoch_end": PAIR,
        "on_train_end": PAIR,
        "on_fit_end": PAIR,
    },
    "evaluate": EVALUATION
    | {
        "on_validation_model_zero_grad": PAIR,
        "on_validation_model_train": PAIR,
        "on_test_model_train": PAIR,
    },
    "batch": {
        "on_before_batch_transfer": f"{PAIR} batch dataloader_idx",
        "transfer_batch_to_device": f"{PAIR} batch device dataloader_idx",
        "on_after_batch_transfer": f"{PAIR} batch dataloader_idx",
    },
    "checkpoint": {
        "on_save_checkpoint": f"{PAIR} checkpoint",
        "on_load_checkpoint": f"{PAIR} checkpoint",
        "on_save_weights": f"{PAIR} checkpoint",
        "on_checkpoint_saved": f"{PAIR} path checkpoint",
    },
    "logging": {
        "log_metrics": "trainer metrics step",
        "log_hyperparams": "trainer params",
        "log_image": "trainer key image step",
        "log_figure": "trainer key image step",
        "finalize": "trainer status",
    },
    "control": {
        "on_plugin_registered": "plugin name",
        "on_plugin_error": "plugin name hook exception",
        "on_resume": f"{PAIR} checkpoint changes",
    },
    "taps": {
        "on_module_forward_pre": "event",
        "on_module_forward": "event",
        "on_module_forward_error": "event",
        "on_module_grad_output": "event",
        "on_module_grad_input": "event",
        "on_parameter_grad": "event",
        "on_optimizer_step_skipped": f"{PAIR} optimizer",
    },
}
ROWS = [(stage, name, tuple(args.split())) for stage, hooks in CATALOGUE.items() for name, args in hooks.items()]
NAMES = [name for _, name, _ in ROWS]

STEPS = {
    "configure_optimizers",
    "train_dataloader",
    "val_dataloader",
    "test_dataloader",
    "predict_dataloader",
    "training_step",
    "optimizer_zero_grad",
    "backward",
    "configure_gradient_clipping",
    "optimizer_step",
    "lr_scheduler_step",
    "validation_step",
    "test_step",
    "predict_step",
    "on_validation_model_eval",
    "on_test_model_eval",
    "on_predict_model_eval",
    "on_validation_model_train",
    "on_test_model_train",
    "on_validation_model_zero_grad",
}
DATAMODULE_FIRST = ("datamodule", "callback", "plugin", "default", "module")
DATAMODULE_BEFORE_MODULE = ("callback", "plugin", "default", "datamodule", "module")
OWNER_ORDER = {
    "setup": DATAMODULE_FIRST,
    "teardown": DATAMODULE_FIRST,
    "prepare_data": DATAMODULE_BEFORE_MODULE,
    "train_dataloader": DATAMODULE_BEFORE_MODULE,
    "val_dataloader": DATAMODULE_BEFORE_MODULE,
    "test_dataloader": DATAMODULE_BEFORE_MODULE,
    "predict_dataloader": DATAMODULE_BEFORE_MODULE,
    "on_load_checkpoint": ("module", "datamodule", "callback", "plugin", "default"),
}


def options(name):
    return hookspecs.spec(name).hookbus_spec


def test_catalogue_has_exactly_the_designed_hooks():
    assert sorted(hookspecs.names()) == sorted(NAMES)
    assert len(set(hookspecs.names())) == len(hookspecs.names())


@pytest.mark.parametrize(("stage", "name", "arguments"), ROWS, ids=NAMES)
def test_hook_has_its_arguments_in_order_and_without_defaults(stage, name, arguments):
    parameters = inspect.signature(hookspecs.spec(name)).parameters
    assert tuple(parameters) == arguments
    assert hookspecs.stage_of(name) == stage
    assert all(p.default is p.empty and p.annotation is not p.empty for p in parameters.values())


@pytest.mark.parametrize("name", NAMES)
def test_hook_is_documented(name):
    doc = inspect.getdoc(hookspecs.spec(name))
    first, _, rest = doc.partition("\n")
    assert first.endswith(".")
    assert "Called" in rest or "It still works" in rest, "says when it is called"
    for argument in inspect.signature(hookspecs.spec(name)).parameters:
        assert re.search(rf"^    {argument}: \S", doc, re.MULTILINE), f"{argument} is not documented"


@pytest.mark.parametrize("name", NAMES)
def test_hooks_that_a_doc_refers_to_exist(name):
    doc = inspect.getdoc(hookspecs.spec(name))
    for mentioned in re.findall(r"``(on_\w+)``", doc):
        assert mentioned in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_hook_is_called_as_designed(name):
    declared = options(name)
    assert declared["firstresult"] == (name in STEPS)
    assert declared["fold"] == ("batch" if name in CATALOGUE["batch"] else None)
    assert declared["collect_errors"] == (name in {"on_exception", "on_run_close"})
    assert declared["historic"] == (name in {"on_plugin_registered", "on_plugin_error"})
    assert declared["owners"] == OWNER_ORDER.get(name, OWNERS)


@pytest.mark.parametrize("name", NAMES)
def test_only_what_lightnings_callback_has_is_open_to_unmarked_callback_methods(name):
    assert options(name)["native_only"] == (name not in CALLBACK_HOOKS)


def test_steps_that_answer_nothing_say_how_to_replace_them():
    for name in ("backward", "optimizer_step", "optimizer_zero_grad", "lr_scheduler_step", "on_test_model_eval"):
        assert "not None, say True" in inspect.getdoc(hookspecs.spec(name))


def test_names_follow_a_run():
    order = hookspecs.names()
    fit = [
        "modify_config",
        "setup",
        "configure_optimizers",
        "on_fit_start",
        "on_train_batch_start",
        "training_step",
        "on_before_backward",
        "on_before_optimizer_step",
        "on_train_batch_end",
        "on_train_epoch_end",
        "on_fit_end",
    ]
    assert sorted(fit, key=order.index) == fit
    stages = [hookspecs.stage_of(name) for name in order]
    assert list(dict.fromkeys(stages)) == [module.__name__.rpartition(".")[2] for module in hookspecs.SPEC_MODULES]


def test_configure_sharded_model_warns_its_implementers():
    warning = options("configure_sharded_model")["warn_on_impl"]
    assert isinstance(warning, DeprecationWarning)
    assert "configure_model" in str(warning)
    assert [name for name in NAMES if options(name)["warn_on_impl"]] == ["configure_sharded_model"]


def test_unknown_hook_is_named_with_the_nearest():
    with pytest.raises(LookupError, match=r"no hook named 'on_trian_start'; did you mean 'on_train_start'\?"):
        hookspecs.stage_of("on_trian_start")
    with pytest.raises(LookupError, match=r"'xyzzy'; `hookbus hooks` lists"):
        hookspecs.spec("xyzzy")


def test_nearest():
    assert hookspecs.nearest("on_train_epoch_ends") == "on_train_epoch_end"
    assert hookspecs.nearest("qqqq") is None
    assert hookspecs.nearest("gradcm", iter(["tensorboard", "gradcam"])) == "gradcam"
    assert hookspecs.nearest("backward", []) is None


def test_plain_pluggy_can_use_the_catalogue():
    manager = pluggy.PluginManager("hookbus")
    for module in hookspecs.SPEC_MODULES:
        manager.add_hookspecs(module)
    assert all(hasattr(manager.hook, name) for name in NAMES)
    assert manager.hook.backward.spec.opts["firstresult"]


def test_importing_the_catalogue_imports_no_torch():
    code = "import sys, hookbus.hookspecs, hookbus.callback, hookbus.markers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
