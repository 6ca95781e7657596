from __future__ import annotations

import pytest

SHOW = "import sys; print(__name__, sys.argv, sys.path[0])"
LOAD = "from hookbus.bus import Bus; print(sorted({'ema', 'wandb', 'local_plugin'} & set(Bus.load().names())))"


@pytest.fixture
def script(tmp_path):
    """Write a script into a folder that is not the current one."""

    def write(source, name="scripts/train.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        return str(path)

    return write


def test_a_script_gets_its_arguments_and_path_as_from_python(process, script, tmp_path):
    path = script(SHOW)
    done = process("run", path, "-p", "x", "--lr", "3", "--", "-m")
    assert done.stdout == f"__main__ {[path, '-p', 'x', '--lr', '3', '--', '-m']} {tmp_path / 'scripts'}\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_a_module_gets_its_arguments_and_path_as_from_python(process, script, tmp_path):
    path = script(SHOW, "cwd/trainer_module.py")
    done = process("run", "-m", "trainer_module", "--lr", "3", "-p")
    assert done.stdout == f"__main__ {[path, '--lr', '3', '-p']} {tmp_path / 'cwd'}\n"
    assert done.returncode == 0


def test_the_selection_holds_in_the_script(process, script, plugins):
    path = script(LOAD)
    script("from hookbus.markers import hookimpl\n@hookimpl\ndef on_fit_start(): ...", "scripts/local_plugin.py")
    done = process("-p", "local_plugin", "run", "-p", "no:nan", "-p", "no:wandb", path)
    assert "['ema', 'local_plugin']" in done.stdout, done.stderr


def test_children_inherit_the_selection(process, script, plugins):
    path = script(f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {LOAD!r}])")
    done = process("run", "-p", "no:nan", "-p", "no:wandb", path)
    assert "['ema']" in done.stdout


@pytest.mark.parametrize(
    ("source", "status", "error"),
    [
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit('no data')", 1, "no data\n"),
        ("raise KeyboardInterrupt", 130, "hookbus: interrupted\n"),
    ],
)
def test_the_exit_status_is_the_scripts(process, script, source, status, error):
    done = process("run", script(source))
    assert (done.returncode, done.stderr) == (status, error)


def test_a_traceback_begins_in_the_script(process, script):
    done = process("run", script("def f():\n    return 1 / 0\n\nf()\n"))
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert lines[0] == "Traceback (most recent call last):"
    assert 'train.py", line 4' in lines[1]
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "runpy" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected a script, or -m and a module; see hookbus run --help"),
        (["-m"], "expected a script, or -m and a module; see hookbus run --help"),
        (["no_such.py"], "cannot open 'no_such.py': there is no such file"),
        (["-m", "no_such_module_at_all.x"], "there is no module 'no_such_module_at_all.x'"),
    ],
)
def test_a_mistake_is_one_line(call, arguments, message):
    assert call("run", *arguments) == (2, "", f"hookbus: error: {message}\n")


def test_a_misspelt_plugin_is_found_before_the_script_starts(process, script, plugins):
    done = process("run", "-p", "no:wanbd", script("print('started')"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hookbus: error: -p: no plugin is named 'wanbd'; did you mean 'wandb'?\n"


def test_pickling_by_name_works_as_in_a_script(process, script):
    source = (
        "import pickle\nclass Config: ...\n"
        "if __name__ == '__main__':\n    print(type(pickle.loads(pickle.dumps(Config()))) is Config)\n"
    )
    assert process("run", script(source)).stdout == "True\n"


def test_without_p_an_inherited_selection_is_not_kept(process, script):
    path = script("import os; print(os.environ.get('HOOKBUS_COMMAND_LINE_PLUGINS'))")
    assert process("run", path, HOOKBUS_COMMAND_LINE_PLUGINS="a").stdout == "None\n"
