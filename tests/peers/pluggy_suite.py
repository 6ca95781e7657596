"""Run pluggy's own test suite against ``Bus``.

The suite is not part of this project: it is fetched with pip, as source of the pluggy version that is installed, and
kept under ``.cache/``. Run as a script, this exits nonzero if any test fails that is not listed in ``DIFFERENT``, or if
one that is listed passes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

#: Tests of pluggy that pin what a bus does otherwise on purpose; see docs/differences_from_pluggy.md.
DIFFERENT = {
    "test_not_all_arguments_are_provided_issues_a_warning": "a missing argument is a TypeError, not a warning",
    "test_not_all_arguments_warning_points_at_the_caller": "a missing argument is a TypeError, not a warning",
    "test_call_with_too_few_args": "a missing argument is a TypeError also while nobody implements the hook",
}


class FetchError(RuntimeError):
    """The suite cannot be had: no pip, no registry, or no such version there."""


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        passed: number of tests that passed.
        failed: those that failed, each with the first line of its message.
        output: what pytest wrote.
    """

    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    output: str = ""

    def complaints(self) -> list[str]:
        """What is not as it should be, in sentences; empty if all is well."""
        found = [f"{name} fails: {message}" for name, message in self.failed.items() if name not in DIFFERENT]
        found += [
            f"{name} passes, but is listed as different ({why})"
            for name, why in DIFFERENT.items()
            if name not in self.failed
        ]
        if self.passed < 100:
            found.append(f"only {self.passed} tests passed, so the suite did not run as a whole:\n{self.output}")
        return found


def fetch(wanted: str | None = None) -> Path:
    """The directory with the suite of pluggy's version ``wanted`` (by default the one installed).

    Raises:
        FetchError: with pip's message.
    """
    wanted = wanted or version("pluggy")
    target = ROOT / ".cache" / f"pluggy-{wanted}"
    if (target / "pytest.ini").exists():
        return target
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "pluggy"]
        run = subprocess.run([*pip, f"pluggy=={wanted}", "--dest", folder], capture_output=True, text=True, check=False)
        archives = list(Path(folder).glob("*.tar.gz"))
        if run.returncode or not archives:
            reason = (run.stderr or run.stdout).strip().splitlines() or ["pip gave no archive"]
            raise FetchError(f"pip cannot fetch the source of pluggy {wanted}: {reason[-1]}")
        with tarfile.open(archives[0]) as archive:
            tests = [m for m in archive.getmembers() if m.isfile() and m.name.split("/")[1:2] == ["testing"]]
            target.mkdir(parents=True, exist_ok=True)
            for member in tests:
                content = archive.extractfile(member)
                assert content is not None
                (target / Path(member.name).name).write_bytes(content.read())
    (target / "pytest.ini").write_text("[pytest]\n")  # last: from now on the copy is complete
    return target


def run(suite: Path) -> Outcome:
    """Run the suite in ``suite`` with ``Bus`` in place of pluggy's manager, in a process of its own."""
    path = os.pathsep.join([str(ROOT / "src"), str(HERE)])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "HOOKBUS_"))}
    environment |= {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        arguments = [
            "-q",
            "-p",
            "no:cacheprovider",
            "-c",
            str(suite / "pytest.ini"),
            f"--junitxml={report}",
            str(suite),
        ]
        done = subprocess.run(
            [sys.executable, str(HERE / "bus_for_pluggy.py"), *arguments],
            env=environment,
            cwd=suite,
            capture_output=True,
            text=True,
            check=False,
        )
        outcome = Outcome(output=done.stdout + done.stderr)
        if report.exists():
            for case in ElementTree.parse(report).iter("testcase"):
                problem = case.find("failure") if case.find("failure") is not None else case.find("error")
                if problem is not None:
                    outcome.failed[case.get("name", "?")] = problem.get("message", "").partition("\n")[0]
                elif case.find("skipped") is None:
                    outcome.passed += 1
    return outcome


def main() -> int:
    """Fetch, run, and say what came out."""
    outcome = run(fetch())
    complaints = outcome.complaints()
    print(f"pluggy {version('pluggy')} on Bus: {outcome.passed} passed, {len(outcome.failed)} failed")
    for name in outcome.failed:
        if name in DIFFERENT:
            print(f"  different on purpose: {name}: {DIFFERENT[name]}")
    for complaint in complaints:
        print(f"  {complaint}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
