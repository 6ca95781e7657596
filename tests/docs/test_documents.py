"""The documents tell the truth: their snippets run, their console output is what the commands print, links lead somewhere.

A document is played from top to bottom in an empty folder. hookbus-throughput is the only plugin installed, beside the one
whose README it is:

- ``python``: executed, all blocks of a document in one namespace; a first line ``# name.py`` writes the file as well.
  Functions named ``test_…`` are called in the end.
- ``toml``: with a ``[project]`` table the distribution is installed; otherwise it is written to pyproject.toml.
- ``console``: each line ``$ hookbus …`` (``VARIABLE=value`` may stand before it) is called, and what follows it must be
  what it prints, where ``...`` stands for anything. Numbers of lines, and those that a run prints, do not matter.
  Other commands are not run.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import hookbus
from hookbus.cli.main import main
from hookbus.hookspecs import names

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "plugins" / "hookbus-throughput"
ORDER = ROOT / "docs" / "order.md"
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("plugins/*/README.md")),
]


@dataclass
class Block:
    """A fenced block: its language, its text, and the line of the document in which it begins."""

    language: str
    text: str
    line: int


def blocks(document: Path) -> Iterator[Block]:
    text = document.read_text(encoding="utf-8")
    for found in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield Block(found[1], found[2], text.count("\n", 0, found.start()) + 2)


class Reader:
    """Does what a document says."""

    def __init__(self, install) -> None:
        self.install = install
        self.namespace: dict[str, object] = {"__name__": "__main__"}

    def play(self, block: Block, document: Path) -> None:
        if block.language == "python":
            named = re.match(r"# (\w+\.py)\n", block.text)
            if named:
                Path(named[1]).write_text(block.text)
            exec(compile("\n" * (block.line - 1) + block.text, document, "exec"), self.namespace)
        elif block.language == "toml":
            self.read_toml(block.text)
        elif block.language == "console":
            for command, expected in commands(block.text):
                self.call(command, expected)

    def read_toml(self, text: str) -> None:
        project = tomllib.loads(text).get("project")
        if project is None:
            Path("pyproject.toml").write_text(text)
        else:
            self.install(project["name"], project["version"], project["entry-points"])

    def call(self, command: str, expected: str) -> None:
        words = shlex.split(command)
        variables = dict(words.pop(0).split("=", 1) for word in list(words) if re.match(r"[A-Z_]+=", word))
        if words[0] != "hookbus":
            return
        printed = io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", list(sys.argv))
            patch.setattr(sys, "path", [os.getcwd(), *sys.path])  # the first one is the script's, as python has it
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                main(words[1:])
            os.environ.pop("HOOKBUS_COMMAND_LINE_PLUGINS", None)
        changing = r"\d+(\.\d+)?" if words[1] == "run" else r"(?<=\.py:)\d+"
        wanted, got = (re.sub(changing, "0", text.rstrip()) + "\n" for text in (expected, printed.getvalue()))
        matches = doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS)
        assert matches, f"$ {command}\nthe document says:\n{wanted}\nit prints:\n{got}"


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, with the output that follows it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected


@pytest.fixture
def reader(document, tmp_path, monkeypatch, make_distribution) -> Iterator[Reader]:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NO_COLOR", "1")
    before = set(sys.modules)
    plugins = dict.fromkeys([PLUGIN, *([document.parent] if document.parent.parent == PLUGIN.parent else [])])
    monkeypatch.setattr(sys, "path", [str(folder), *(str(plugin / "src") for plugin in plugins), *sys.path])
    for plugin in plugins:
        project = tomllib.loads((plugin / "pyproject.toml").read_text())["project"]
        make_distribution(
            project["name"],
            project["version"],
            project["entry-points"],
            metadata=f"Summary: {project['description']}\nLicense-Expression: {project['license']}\n",
        )
    yield Reader(make_distribution)
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_snippets_run(document, reader, monkeypatch):
    for block in blocks(document):
        reader.play(block, document)
    for name, found in reader.namespace.items():
        if name.startswith("test_"):
            found(monkeypatch)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (document.parent / target).exists()]
    assert not missing


def test_every_hook_has_its_place_in_the_order():
    text = ORDER.read_text(encoding="utf-8")
    spelled = text + text.replace("{S}", "validation") + text.replace("{S}", "test")
    assert [name for name in names() if not re.search(rf"\b{name}\b", spelled)] == []


@pytest.mark.filterwarnings("ignore:configure_sharded_model is deprecated")
def test_hooks_of_a_fit_are_called_in_the_documented_order(tmp_path, monkeypatch):
    """In a fit of one batch, the last calls of the hooks that stand once in the pseudo-code are in order, piece by piece."""

    class Model(hookbus.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, batch_idx):
            return self.layer(batch).sum()

        def validation_step(self, batch, batch_idx):
            self.layer(batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    monkeypatch.setenv("HOOKBUS_DISABLE_PLUGIN_AUTOLOAD", "1")
    calls: list[str] = []
    trainer = hookbus.Trainer(
        max_epochs=1, num_sanity_val_steps=0, enable_progress_bar=False, default_root_dir=tmp_path
    )

    def recorder(name):
        return staticmethod(hookbus.hookimpl(lambda: calls.append(name)))

    trainer.bus.register(type("Recorder", (), {name: recorder(name) for name in names()})())
    batch = torch.utils.data.DataLoader(torch.ones(1, 1))
    trainer.fit(Model(), batch, batch)

    pieces = re.findall(r"```text\n(.*?)```", ORDER.read_text(encoding="utf-8"), re.DOTALL)
    read = [re.findall(r"\w+", re.sub("#.*", "", piece).replace("{S}", "validation")) for piece in pieces]
    counts = Counter(word for words in read for word in words)
    assert len(read) == 6
    for words in read:
        documented = [word for word in words if counts[word] == 1 and word in calls]
        assert documented == sorted(documented, key=lambda name: len(calls) - 1 - calls[::-1].index(name))
