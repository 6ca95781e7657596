"""``hookbus run``: a script as ``python`` would run it, with a selection of plugins for every Trainer in it."""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Final

from hookbus.aliases import install_aliases
from hookbus.bus.config import read_selection, set_command_line
from hookbus.bus.discovery import find
from hookbus.bus.plan import plan
from hookbus.cli.output import complain
from hookbus.cli.parser import Parser, UsageError, plugin_words

INTERRUPTED: Final = 130
_DESCRIPTION = """\
Run a script, or a module with -m, as python would. What -p says holds for every Trainer in it.

  hookbus run -p no:wandb train.py --epochs 3
  hookbus run -p mypackage.plugin -m mypackage.train
  hookbus run --as-lightning train.py         # "import lightning" in it means hookbus"""


def run(arguments: Sequence[str], early: Sequence[str]) -> int:
    """Carry out the command; the status is the script's own, 130 after an interrupt."""
    parser = Parser("run", _DESCRIPTION)
    parser.add_argument(
        "--as-lightning", action="store_true", help="serve lightning and pytorch_lightning from hookbus in the script"
    )
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="run a module; its arguments follow")
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="script ...", help="the script and its arguments")
    options = parser.parse_args(arguments)
    command = [*(options.module or ()), *options.script]
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        parser.error("expected a script, or -m and a module")
    as_module = options.module is not None
    if as_module:
        _set_first_path(os.getcwd())
        _check_module(command[0])
    else:
        _check_script(command[0])
        _set_first_path(os.path.dirname(os.path.realpath(command[0])))
    set_command_line(plugin_words(early, options))
    plan(read_selection(), find())  # a misspelt name should not wait for the script's first Trainer
    if options.as_lightning:
        install_aliases()
    sys.argv = list(command)
    return _executed(command[0], as_module)


def _executed(target: str, as_module: bool) -> int:
    try:
        if as_module:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(target, run_name="__main__")
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - shown as python would show it, with the script's frames alone
        error.__traceback__ = _without_our_frames(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's first line on."""
    ours = {__file__, runpy.__file__, runpy.__spec__.origin, "<frozen runpy>"}
    inner = traceback
    while inner is not None and inner.tb_frame.f_code.co_filename in ours:
        inner = inner.tb_next
    return inner or traceback


def _check_script(path: str) -> None:
    if not os.path.exists(path):
        raise UsageError(f"cannot open {path!r}: there is no such file")


def _check_module(name: str) -> None:
    try:
        found = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise UsageError(f"there is no module {name!r}")


def _set_first_path(directory: str) -> None:
    """Put ``directory`` where python puts the script's, unless it was told not to (``-P``)."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = directory
