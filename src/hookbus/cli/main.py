"""``hookbus``: find the command, hand it its arguments, and turn the user's mistakes into one line each.

A command is a function ``(arguments, plugins) -> exit status`` that makes its own parser; ``plugins`` are the words
after a ``-p`` that stood before the command's name. It is imported only when it is called. Other distributions bring
further ones: :mod:`hookbus.cli.installed`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from hookbus.cli.parser import Parser, UsageError

#: Where each command is, and what it is for.
COMMANDS: Final = {
    "plugins": ("hookbus.cli.plugins:plugins", "what is installed, active, blocked or broken"),
    "hooks": ("hookbus.cli.hooks:hooks", "the lifecycle points, and who implements them"),
    "order": ("hookbus.cli.hooks:order", "in which order a hook calls its implementations"),
    "run": ("hookbus.cli.run:run", "run a script with a selection of plugins"),
    "ckpt": ("hookbus.cli.ckpt:ckpt", "what stands in a checkpoint, and whether it is whole"),
}
USAGE_STATUS: Final = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments, those of this process by default.

    Returns:
        The exit status: 0 for success, 2 for a mistake in arguments or configuration.
    """
    try:
        return _dispatch(sys.argv[1:] if argv is None else argv)
    except BrokenPipeError:  # `hookbus hooks | head`: who reads has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if not _is_the_users(error):
            raise
        print(f"hookbus: error: {error}", file=sys.stderr)
        return USAGE_STATUS


def _dispatch(argv: Sequence[str]) -> int:
    parser = _RootParser(None, "")
    parser.add_argument("--version", action="store_true", help="print versions and exit")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="command ...", help="one of the above")
    options = parser.parse_args(argv)
    if options.version:
        from hookbus.cli.version import print_versions

        return print_versions()
    if not options.command:
        parser.print_help()
        return 0
    name, *arguments = options.command
    return _command(name)(arguments, options.plugins)


def _command(name: str) -> Callable[[Sequence[str], Sequence[str]], int]:
    if name not in COMMANDS:
        from hookbus.cli.installed import installed, load

        others = installed()
        if name in others:
            return load(name, others[name])
        import difflib

        known = [*COMMANDS, *others]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
        raise UsageError(f"no command is named {name!r}; {hint}")
    module, _, function = COMMANDS[name][0].partition(":")
    command: Callable[[Sequence[str], Sequence[str]], int] = getattr(importlib.import_module(module), function)
    return command


class _RootParser(Parser):
    """Looks for the commands of others only where a list of all is wanted."""

    def format_help(self) -> str:
        from hookbus.cli.installed import purposes

        own = {name: purpose for name, (_, purpose) in COMMANDS.items()}
        known = {**purposes(), **own}
        width = max(map(len, known))
        lines = [f"  {name:{width}}  {known[name]}" for name in dict.fromkeys((*own, *known))]
        self.description = "\n".join(
            ["PyTorch training as an event bus: every lifecycle point is a hook.", "", "commands:", *lines]
        )
        return super().format_help()


def _is_the_users(error: Exception) -> bool:
    """Whether the error is a mistake of the person at the keyboard, to be said without a traceback."""
    if isinstance(error, UsageError):
        return True
    from hookbus.bus.config import ConfigError
    from hookbus.bus.discovery import UnknownPluginError
    from hookbus.bus.errors import UnknownHookError
    from hookbus.bus.loading import PluginLoadError

    return isinstance(error, ConfigError | UnknownPluginError | UnknownHookError | PluginLoadError)
