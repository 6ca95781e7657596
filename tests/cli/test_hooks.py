from __future__ import annotations

import json

import pytest

from hookbus.hookspecs import names


def test_all_hooks_are_listed_by_stage(call):
    status, out, _ = call("hooks")
    stages = [line for line in out.splitlines() if not line.startswith(" ")]
    listed = [line.split()[0] for line in out.splitlines() if line.startswith(" ")]
    assert status == 0
    assert stages[:3] == ["setup", "fit", "evaluate"]
    assert listed == list(names())


def test_a_hook_is_described_with_its_call_order(call, plugins):
    status, out, err = call("hooks", "on_train_start")
    lines = out.splitlines()
    assert status == 0
    assert lines[0] == "on_train_start(trainer, pl_module)  [list]"
    assert any(line.startswith("      pl_module: ") for line in lines)  # the whole documentation
    assert [line.split() for line in lines[-3:-1]] == [
        ["1", "tryfirst", "wandb", "()", "wandbpkg.py:4"],
        ["2", "trylast", "ema", "(trainer)", "emapkg.py:9"],
    ]
    assert "plugin 'nan' (hookbus-nan 0.3) is broken" in err


def test_a_pattern_describes_in_short(call):
    status, out, _ = call("hooks", "on_*_batch_end")
    assert status == 0
    assert [line.partition("(")[0] for line in out.splitlines() if line.startswith("on_")] == [
        "on_train_batch_end",
        "on_validation_batch_end",
        "on_test_batch_end",
        "on_predict_batch_end",
    ]
    assert "Args:" not in out


@pytest.mark.parametrize(
    ("hook", "result"),
    [
        ("training_step", "first result"),
        ("on_after_batch_transfer", "fold of batch"),
        ("on_plugin_registered", "historic"),
        ("on_fit_start", "list"),
    ],
)
def test_what_a_call_returns_is_said(call, hook, result):
    assert f"[{result}]" in call("hooks", hook)[1]


def test_order_is_the_call_order_alone(call, plugins):
    status, out, _ = call("order", "on_train_start")
    assert status == 0
    assert [line.split()[2] for line in out.splitlines()] == ["wandb", "ema"]
    assert call("order", "on_train_end")[1].split() == ["1", "wandb", "(pl_module)", "wandbpkg.py:7"]
    assert call("-p", "no:wandb", "order", "on_train_start", "-p", "no:ema")[1] == (
        "on_train_start has no implementation\n"
    )


def test_json(call, plugins):
    (hook,) = json.loads(call("hooks", "on_train_start", "--json")[1])
    assert (hook["name"], hook["stage"], hook["result"]) == ("on_train_start", "fit", "list")
    assert hook["signature"] == "on_train_start(trainer, pl_module)"
    assert "Training begins" in hook["doc"]
    order = json.loads(call("order", "on_train_start", "--json")[1])
    assert order == hook["order"]
    assert [(p["index"], p["plugin"], p["flags"], p["args"]) for p in order] == [
        (1, "wandb", ["tryfirst"], []),
        (2, "ema", ["trylast"], ["trainer"]),
    ]
    assert order[0]["location"].endswith("wandbpkg.py:4")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hooks", "on_train_stat"], "no hook is named 'on_train_stat'; did you mean 'on_train_start'?"),
        (["order", "on_train_stat"], "no hook is named 'on_train_stat'; did you mean 'on_train_start'?"),
        (["hooks", "on_x*"], "no hook matches 'on_x*'; `hookbus hooks` lists all of them"),
    ],
)
def test_an_unknown_hook_is_an_error(call, arguments, message):
    assert call(*arguments) == (2, "", f"hookbus: error: {message}\n")
