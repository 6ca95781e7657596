"""Lightning's names: each test is a process of its own, since what is imported where is the very thing tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hookbus

SOURCE = Path(hookbus.__file__).parents[1]
INSTALL = "import hookbus\nhookbus.install_aliases()\n"
MODEL = """
import torch
import lightning as L
import pytorch_lightning as pl
from lightning.pytorch.callbacks import EarlyStopping
from pytorch_lightning.utilities.types import STEP_OUTPUT
from torch.utils.data import DataLoader


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx) -> STEP_OUTPUT:
        loss = self.layer(batch).pow(2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = pl.Trainer(max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                     enable_model_summary=False, callbacks=[EarlyStopping("loss", check_on_train_epoch_end=True)])
trainer.fit(Model(), DataLoader(torch.ones(4, 2)))
print("steps", trainer.global_step, type(trainer).__module__)
"""


@pytest.fixture
def run(tmp_path):
    """Run a script, with ``tmp_path/site`` in front on its path."""

    def run(source, *command):
        script = tmp_path / "script.py"
        script.write_text(source)
        return subprocess.run(
            [sys.executable, *command, str(script)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(SOURCE)]),
                "HOOKBUS_DISABLE_PLUGIN_AUTOLOAD": "1",
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run


@pytest.fixture
def real_lightning(tmp_path):
    """A package that stands for the real Lightning."""
    folder = tmp_path / "site" / "lightning"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("REAL = True\n")


def test_every_name_in_the_table_is_there(run):
    done = run(
        INSTALL
        + """
from importlib import import_module
from hookbus.aliases.names import served
for module, names in served().items():
    served_there = import_module(module)
    for name in names:
        getattr(served_there, name)
    assert set(names) <= set(dir(served_there))
print("all there")
"""
    )
    assert done.stdout == "all there\n", done.stderr


def test_a_script_for_lightning_runs(run):
    done = run(INSTALL + MODEL)
    assert "steps 8 hookbus.trainer.trainer" in done.stdout, done.stderr


def test_hookbus_run_as_lightning(run):
    assert "steps 8" in run(MODEL, "-m", "hookbus", "run", "--as-lightning").stdout


def test_nothing_is_served_unless_asked_for(run):
    done = run("import hookbus, hookbus.aliases, importlib.util as u\nprint(u.find_spec('pytorch_lightning'))")
    assert done.stdout == "None\n", done.stderr


def test_both_roots_give_the_same_classes(run):
    done = run(
        INSTALL
        + """
import lightning, pytorch_lightning
import lightning.pytorch.callbacks.early_stopping as new
import pytorch_lightning.callbacks.early_stopping as old
from lightning.pytorch.core.datamodule import LightningDataModule
assert new.EarlyStopping is old.EarlyStopping is hookbus.callbacks.EarlyStopping
assert lightning.Trainer is lightning.pytorch.Trainer is pytorch_lightning.Trainer is hookbus.Trainer
assert LightningDataModule is hookbus.LightningDataModule
import lightning.fabric, lightning_fabric.utilities.rank_zero as rank_zero
assert lightning.fabric.utilities.rank_zero.rank_zero_only is rank_zero.rank_zero_only
"""
    )
    assert done.returncode == 0, done.stderr


def test_a_logger_for_trainer_and_fabric_has_two_bases(run):
    done = run(
        INSTALL
        + """
from lightning.fabric.loggers.logger import Logger as Fabric
from lightning.pytorch.loggers.logger import Logger

class ForFabric(Fabric):
    name, version = "n", 0
    def log_metrics(self, metrics, step=None): ...
    def log_hyperparams(self, params): ...

class ForTrainer(Logger, ForFabric): ...

ForTrainer().finalize("success")
"""
    )
    assert done.returncode == 0, done.stderr


def test_submodules_are_there_without_an_import_of_their_own(run):
    done = run(INSTALL + "import lightning as L\nprint(L.pytorch.callbacks.early_stopping.EarlyStopping.__name__)")
    assert done.stdout == "EarlyStopping\n", done.stderr


def test_what_packages_ask_before_they_import(run):
    done = run(
        INSTALL
        + """
import importlib.util
assert importlib.util.find_spec("lightning") and importlib.util.find_spec("pytorch_lightning")
assert importlib.util.find_spec("lightning.pytorch.callbacks").name == "lightning.pytorch.callbacks"
import lightning, pytorch_lightning
for module in (lightning, lightning.pytorch, pytorch_lightning):
    assert int(module.__version__.split(".")[0]) == 2
assert lightning.__path__ == []
"""
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("import lightning.pytorch.foo", "no 'foo' in it"),
        ("from lightning.pytorch.callbacks import Foo", "no 'Foo' in it. It offers: BackboneFinetuning, "),
        ("from lightning.pytorch.utilities.types import FOO", "It offers: EVAL_DATALOADERS, "),
        ("from lightning.fabric import Fabric", "hookbus has no Fabric"),
        ("import lightning.pytorch.cli", "start it with `hookbus run SCRIPT`"),
        ("from lightning.pytorch.profilers import SimpleProfiler", 'profiler="simple"|"advanced"|"pytorch"'),
        ("import lightning.foo.bar", "hookbus serves 'lightning', but no 'foo' in it"),
    ],
)
def test_an_unknown_name_is_an_import_error_that_says_what_there_is(run, statement, said):
    done = run(INSTALL + f"try:\n    {statement}\nexcept ModuleNotFoundError as error:\n    print(error)")
    assert said in done.stdout, done.stderr


def test_an_unknown_attribute_is_an_attribute_error(run):
    done = run(INSTALL + "import lightning as L\nprint(hasattr(L, 'Fabric'), getattr(L.pytorch, 'foo', 5))")
    assert done.stdout == "False 5\n", done.stderr


def test_an_unknown_name_is_not_taken_from_an_installed_lightning(run, real_lightning, tmp_path):
    (tmp_path / "site" / "lightning" / "foo.py").write_text("")
    done = run(INSTALL + "try:\n    import lightning.foo\nexcept ImportError:\n    print('absent')")
    assert done.stdout == "absent\n", done.stderr


def test_a_real_lightning_that_is_imported_already_is_an_error(run, real_lightning):
    done = run("import lightning\n" + INSTALL)
    assert done.returncode == 1
    assert "RuntimeError: install_aliases() came too late: the real lightning (" in done.stderr


def test_an_installed_lightning_gives_way(run, real_lightning):
    done = run(INSTALL + "import lightning\nprint(hasattr(lightning, 'REAL'))")
    assert done.stdout == "False\n", done.stderr


def test_uninstalling_brings_the_real_one_back(run, real_lightning):
    done = run(
        INSTALL
        + """
import sys, lightning.pytorch.callbacks
hookbus.install_aliases()
hookbus.uninstall_aliases()
assert not [name for name in sys.modules if name.startswith("lightning")]
import lightning
print(lightning.REAL)
"""
    )
    assert done.stdout == "True\n", done.stderr


def test_entry_points_that_import_lightning_get_hookbus(run, tmp_path):
    site = tmp_path / "site"
    info = site / "beeper-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: beeper\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[lightning.pytorch.callbacks_factory]\nbeeper = beeper:make\n")
    (site / "beeper.py").write_text(
        "from lightning.pytorch import Callback\nclass Beeper(Callback): ...\ndef make():\n    return [Beeper()]\n"
    )
    done = run(
        INSTALL
        + "import os\nos.environ.pop('HOOKBUS_DISABLE_PLUGIN_AUTOLOAD')\n"
        + "print([type(c).__name__ for c in hookbus.Trainer(logger=False).callbacks if isinstance(c, hookbus.Callback)])"
    )
    assert "'Beeper'" in done.stdout, done.stderr


def test_all_of_hookbus_callbacks_that_lightning_has_are_served():
    from hookbus.aliases.names import served
    from hookbus.callbacks import __all__ as ours

    own = {"PlainProgress", "TimedProgressBar"}
    assert set(ours) - own <= set(served()["lightning.pytorch.callbacks"])
