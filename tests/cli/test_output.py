from __future__ import annotations

import io
import sys

import pytest

from hookbus.cli import output

ROWS = [["ema", "active", ""], ["wandb", "blocked", ""]]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def printed_on_a_terminal(monkeypatch, **variables):
    """What a terminal gets of a table and a heading."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", "COLUMNS": "80", **variables}.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    output.table(ROWS, ["NAME", "STATUS", "X"])
    output.heading("title")
    return terminal.getvalue()


def test_piped_tables_are_plain(capsys):
    output.table(ROWS, ["NAME", "STATUS", "X"])
    assert capsys.readouterr().out == "NAME   STATUS   X\nema    active\nwandb  blocked\n"


def test_without_header_empty_columns_are_left_out(capsys):
    output.table([["1", "", "a"], ["2", "", "b"]], indent=2)
    assert capsys.readouterr().out == "  1  a\n  2  b\n"


def test_a_terminal_gets_colours_and_the_same_words(monkeypatch):
    text = printed_on_a_terminal(monkeypatch)
    assert "\x1b[32mactive" in text
    assert "\x1b[33mblocked" in text
    assert "title" in text


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_without_colours_gets_plain_text(monkeypatch, name, value):
    text = printed_on_a_terminal(monkeypatch, **{name: value})
    assert "active" in text
    assert "\x1b" not in text


def test_characters_that_cannot_be_shown_are_escaped(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    output.say("Höhe")
    sys.stdout.flush()
    assert raw.getvalue() == b"H\\xf6he\n"
