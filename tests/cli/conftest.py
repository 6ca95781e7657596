"""Calling the command line, in this process or as one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hookbus
from hookbus.cli.main import main

SOURCE = Path(hookbus.__file__).parents[1]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Stand in an empty folder, with ``sys.path`` as a copy, and no plugin but those that the test installs."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("FORCE_COLOR", raising=False)


@pytest.fixture
def call(capsys) -> Callable[..., tuple[int, str, str]]:
    """Call ``hookbus`` in this process: exit status, standard output, standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture
def process(tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``python -m hookbus`` as a process of its own, with the made-up distributions on its path."""

    def process(*arguments: str, code: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(SOURCE), str(tmp_path / "site")])
        command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "hookbus"]
        return subprocess.run(
            [*command, *arguments],
            env={**os.environ, "PYTHONPATH": path, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return process


@pytest.fixture
def plugins(make_distribution):
    """Three plugins: ``ema`` works, ``nan`` cannot be imported, ``wandb`` works."""
    ema = """
from hookbus.markers import hookimpl

print("ema says hello")

class Ema:
    role = "mutator"

    @hookimpl(trylast=True)
    def on_train_start(self, trainer): ...
"""
    wandb = """
from hookbus.markers import hookimpl

@hookimpl(tryfirst=True)
def on_train_start(): ...

@hookimpl
def on_train_end(pl_module): ...
"""
    description = "Summary: Averages weights\nLicense: MIT\nHome-page: https://ema.example\n"
    make_distribution("hookbus-ema", "1.2.0", {"hookbus": {"ema": "emapkg:Ema"}}, {"emapkg": ema}, metadata=description)
    make_distribution("hookbus-nan", "0.3", {"hookbus": {"nan": "nanpkg"}}, {"nanpkg": "import no_such_module_at_all"})
    make_distribution("hookbus-wandb", "2.0", {"hookbus": {"wandb": "wandbpkg"}}, {"wandbpkg": wandb})
