"""Commands that other distributions bring."""

from __future__ import annotations

import pytest

MODULE = """
from hookbus.cli.parser import UsageError

def greet(arguments, plugins):
    if "--nobody" in arguments:
        raise UsageError("expected somebody to greet")
    print("hello", *arguments, *plugins)
    return 3
"""


@pytest.fixture
def greeting(make_distribution):
    make_distribution(
        "hookbus-greeting",
        entry_points={"hookbus.commands": {"greet": "greeting:greet", "plugins": "greeting:greet"}},
        modules={"greeting": MODULE},
        metadata="Summary: Says hello\n",
    )


def test_it_is_called_with_its_arguments_and_the_plugins_before_its_name(call, greeting):
    assert call("-p", "ema", "greet", "--loud", "world") == (3, "hello --loud world ema\n", "")
    assert call("greet", "--nobody") == (2, "", "hookbus: error: expected somebody to greet\n")


def test_it_is_listed_and_suggested(call, greeting):
    assert "\n  greet    hookbus-greeting: Says hello\n" in call()[1]
    assert call("gret")[2] == "hookbus: error: no command is named 'gret'; did you mean 'greet'?\n"


def test_the_commands_of_hookbus_cannot_be_replaced(call, greeting):
    assert call("plugins")[1] == "no plugins are installed\n"
    assert "\n  plugins  what is installed, active, blocked or broken\n" in call()[1]


def test_two_of_one_name_are_an_error_that_names_both(call, greeting, make_distribution):
    make_distribution("hookbus-other", entry_points={"hookbus.commands": {"greet": "greeting:greet"}})
    assert "several distributions bring a command 'greet': hookbus-greeting, hookbus-other" in call("greet")[2]


def test_one_that_cannot_be_imported_is_named(call, make_distribution):
    make_distribution("hookbus-bad", entry_points={"hookbus.commands": {"bad": "no_such_module_here:f"}})
    status, _, err = call("bad")
    assert status == 2
    assert "the command 'bad' of hookbus-bad cannot be imported: ModuleNotFoundError" in err


def test_listing_them_imports_neither_them_nor_torch(process, greeting):
    code = (
        "import sys\nfrom hookbus.cli.main import main\n"
        "status = main([])\nassert not {'torch', 'greeting'} & set(sys.modules)\nsys.exit(status)"
    )
    done = process(code=code)
    assert done.returncode == 0, done.stderr
    assert "hookbus-greeting: Says hello" in done.stdout
