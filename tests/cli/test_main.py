from __future__ import annotations

import pytest


def test_versions_come_from_metadata(call):
    status, out, _ = call("--version")
    lines = dict(line.split(" ", 1) for line in out.splitlines())
    assert status == 0
    assert list(lines) == ["hookbus", "pluggy", "torch", "python"]
    assert lines["pluggy"].startswith("1.")


def test_without_a_command_the_commands_are_listed(call):
    status, out, _ = call()
    assert status == 0
    for command in ("plugins", "hooks", "order", "run"):
        assert f"\n  {command} " in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plugin"], "no command is named 'plugin'; did you mean 'plugins'?"),
        (["xyzzy"], "no command is named 'xyzzy'; there are: plugins, hooks, order, run, ckpt"),
        (["plugins", "--jsn"], "unrecognized arguments: --jsn; see hookbus plugins --help"),
        (["-p"], "argument -p: expected one argument; see hookbus --help"),
        (["plugins", "info"], "info takes the name of one plugin; see hookbus plugins --help"),
        (["order"], "the following arguments are required: hook; see hookbus order --help"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_status_2(call, arguments, message):
    assert call(*arguments) == (2, "", f"hookbus: error: {message}\n")


def test_a_mistake_in_the_configuration_is_one_line_too(call, monkeypatch, tmp_path):
    (tmp_path / "cwd" / "pyproject.toml").write_text("[tool.hookbus]\nplugin = []\n")
    status, out, err = call("plugins")
    assert (status, out) == (2, "")
    assert err.startswith("hookbus: error: ")
    assert "has no key 'plugin'" in err
    assert len(err.splitlines()) == 1


def test_errors_of_hookbus_itself_keep_their_traceback(call, monkeypatch):
    monkeypatch.setattr("hookbus.cli.session.Bus.load", lambda **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        call("hooks")


@pytest.mark.parametrize("command", ["plugins", "hooks", "--version"])
def test_listing_imports_neither_torch_nor_rich(process, plugins, command):
    code = (
        "import sys\nfrom hookbus.cli.main import main\n"
        f"status = main([{command!r}])\nassert not {{'torch', 'rich'}} & set(sys.modules)\nsys.exit(status)"
    )
    done = process(code=code)
    assert (done.returncode, done.stderr.count("Error")) == (0, int(command == "hooks")), done.stderr


def test_python_dash_m_is_the_same_command(process):
    done = process("--version")
    assert done.returncode == 0
    assert "pluggy" in done.stdout


def test_a_reader_that_has_read_enough_is_no_error(process):
    code = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-m', 'hookbus', 'hooks', '--json'], stdout=subprocess.PIPE)\n"
        "p.stdout.close()\nsys.exit(p.wait())"
    )
    done = process(code=code)
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
