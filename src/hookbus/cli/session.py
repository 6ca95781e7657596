"""A bus with all plugins loaded, for commands that look into it: whatever a plugin does, the listing goes on."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Sequence

from hookbus.bus import Bus
from hookbus.bus.loading import LoadReport, PluginWarning
from hookbus.cli.output import complain


def see_current_directory() -> None:
    """Let plugins of the project be found, as a script run from here would find them."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())


def loaded_bus(words: Sequence[str]) -> tuple[Bus, LoadReport]:
    """A bus with the plugins that a run here would have, and what became of each of them.

    What plugins print goes to standard error, where broken ones are named as well.

    Args:
        words: those after ``-p``.

    Raises:
        UnknownPluginError: for a name that nothing has.
    """
    see_current_directory()
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore", PluginWarning)
        bus = Bus.load(arguments=words, strict=False)
    assert bus.report is not None
    for plugin in bus.report.having("broken"):
        complain(f"plugin {plugin} is broken: {plugin.reason}")
    return bus, bus.report
