"""How all commands take their arguments: ``-p`` everywhere, no abbreviations, and one line for what was wrong."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

PLUGIN_HELP = "load a plugin by name or import path, or leave one out with no:NAME; may be repeated"


class UsageError(Exception):
    """The arguments of a command make no sense; the message says which and why."""


class Parser(argparse.ArgumentParser):
    """The parser of one command.

    Args:
        command: its name; None for ``hookbus`` itself.
        description: what it does, for ``--help``.
    """

    def __init__(self, command: str | None, description: str) -> None:
        prog = "hookbus" if command is None else f"hookbus {command}"
        super().__init__(
            prog=prog,
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_argument("-p", dest="plugins", action="append", default=[], metavar="NAME", help=PLUGIN_HELP)

    def error(self, message: str) -> NoReturn:
        """Raise what :func:`hookbus.cli.main.main` prints."""
        raise UsageError(f"{message}; see {self.prog} --help")


def listing_parser(command: str, description: str) -> Parser:
    """The parser of a command that lists something, for people or as JSON."""
    parser = Parser(command, description)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def plugin_words(early: Sequence[str], options: argparse.Namespace) -> list[str]:
    """What ``-p`` was given before and after the command's name."""
    return [*early, *options.plugins]
