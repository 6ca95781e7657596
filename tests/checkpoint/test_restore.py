"""Taking up a checkpoint: what does not fit is named key by key, and leaves the module and all files as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.runs import Tiny, data, fit, saved, trainer

from hookbus.checkpoint.errors import CheckpointError, DamagedCheckpointError, UnsafeCheckpointError
from hookbus.checkpoint.restore import MismatchError
from hookbus.errors import MisconfigurationException


class Deeper(Tiny):
    """Shares one name with ``Tiny``, in another shape."""

    def __init__(self) -> None:
        super().__init__(width=3)
        self.more = torch.nn.Linear(3, 1)
        self.layer.weight.requires_grad_(True)


def state_of(module: torch.nn.Module) -> list[Any]:
    return [value.clone() for value in module.state_dict().values()]


@pytest.mark.parametrize("strict", [True, False])
def test_a_checkpoint_of_another_model(strict: bool, tmp_path: Path) -> None:
    path, module = saved(tmp_path), Deeper()
    module.strict_loading = strict
    before, bytes_before = state_of(module), path.read_bytes()
    with pytest.raises(MismatchError) as caught:
        fit(tmp_path, module=module, ckpt_path=path)
    text = str(caught.value)
    assert f"{str(path)!r} does not fit Deeper, which is left as it was" in text
    assert "layer.weight is (1, 2) in the file and (3, 2) in the module" in text
    assert "missing in the file: more.bias, more.weight" in text
    assert all(map(torch.equal, before, state_of(module)))
    assert path.read_bytes() == bytes_before
    with pytest.raises(MismatchError, match=r"layer\.weight is \(1, 2\)"):
        Deeper.load_from_checkpoint(path)


def test_keys_that_are_missing_or_superfluous_may_be_passed_over(tmp_path: Path) -> None:
    class Wider(Tiny):
        def __init__(self) -> None:
            super().__init__()
            self.more = torch.nn.Linear(1, 1)

    path, wider = saved(tmp_path), Wider()
    wider.strict_loading = False
    made = trainer(tmp_path)
    with pytest.warns(UserWarning, match=r"not all weights match: missing in the file: more\.bias, more\.weight"):
        made.validate(wider, data(), ckpt_path=path, verbose=False)
    assert torch.equal(wider.layer.weight, torch.load(path, weights_only=True)["state_dict"]["layer.weight"])
    path = saved(tmp_path, module=Wider(), name="wider.ckpt")
    with pytest.raises(MismatchError, match=r"not in the module: more\.bias, more\.weight"):
        fit(tmp_path, ckpt_path=path)


def changed(path: Path, change: Any) -> Path:
    """Another file, as torch writes it, with a change."""
    content = torch.load(path, weights_only=True)
    change(content)
    torch.save(content, path.with_name("changed.ckpt"))
    return path.with_name("changed.ckpt")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda content: content.pop("state_dict"), CheckpointError, "with the key 'state_dict'"),
        (lambda content: content.pop("optimizer_states"), MisconfigurationException, "holds weights only"),
        (lambda content: content["optimizer_states"].clear(), MisconfigurationException, r"states of 0 optimizer\(s\)"),
        (lambda content: content["hookbus"]["ranks"][0].pop("rng"), CheckpointError, "lacks rng under hookbus/ranks"),
        (lambda content: content["hookbus"].update(format_version=99), CheckpointError, "format version 99"),
        (lambda content: content.update(hookbus=[1]), CheckpointError, "its key 'hookbus' holds a list"),
    ],
    ids=["weights", "optimizers", "number of optimizers", "random streams", "version", "kind"],
)
def test_what_is_missing_is_named(change: Any, error: Any, message: str, tmp_path: Path) -> None:
    path = changed(saved(tmp_path), change)
    before = path.read_bytes()
    with pytest.raises(error, match=message) as caught:
        fit(tmp_path, ckpt_path=path, max_epochs=2)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before


def test_a_newer_format_is_refused_everywhere(tmp_path: Path) -> None:
    path = changed(saved(tmp_path), lambda content: content["hookbus"].update(format_version=99))
    with pytest.raises(CheckpointError, match="format version 99, and this hookbus reads up to 1: update hookbus"):
        Tiny.load_from_checkpoint(path)
    with pytest.raises(CheckpointError, match="format version 99"):
        trainer(tmp_path).validate(Tiny(), data(), ckpt_path=path)


def test_a_file_with_weights_only_can_be_tested_and_not_resumed(tmp_path: Path) -> None:
    fit(tmp_path).save_checkpoint(tmp_path / "x.ckpt", weights_only=True)
    trainer(tmp_path).validate(Tiny(), data(), ckpt_path=tmp_path / "x.ckpt", verbose=False)
    with pytest.raises(MisconfigurationException, match="holds weights only, so training cannot resume"):
        fit(tmp_path, ckpt_path=tmp_path / "x.ckpt")


def test_an_optimizer_of_another_kind(tmp_path: Path) -> None:
    class Frozen(Tiny):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([self.layer.weight], lr=0.1)

    path = saved(tmp_path)
    with pytest.raises(MisconfigurationException, match=r"optimizer 0 \(saved by SGD\) does not fit the SGD"):
        fit(tmp_path, module=Frozen(), ckpt_path=path, max_epochs=2)


@pytest.mark.parametrize("known", [True, False], ids=["own file", "file of Lightning"])
def test_an_optimizer_of_another_class_is_refused_before_training(known: bool, tmp_path: Path) -> None:
    class Adaptive(Tiny):
        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    class Momentum(Tiny):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

        def on_fit_start(self) -> None:
            raise AssertionError("it has begun")

    path = saved(tmp_path, module=Adaptive())
    if not known:
        content = torch.load(path, weights_only=False)
        del content["hookbus"]["optimizers"]
        torch.save(content, path)
    by = r" \(saved by Adam\)" if known else ""
    with pytest.raises(
        MisconfigurationException, match=f"optimizer 0{by} does not fit the SGD .*lacks .*'momentum'.*betas"
    ):
        fit(tmp_path, module=Momentum(), ckpt_path=path, max_epochs=2)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", DamagedCheckpointError, "is empty"),
        (b"\x89PNG\r\n", CheckpointError, "begins with"),
        (b"(dp0\n.", CheckpointError, "begins with"),
        (b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.", UnsafeCheckpointError, "bare pickle"),
    ],
    ids=["empty", "picture", "old pickle", "bare pickle"],
)
def test_another_kind_of_file(content: bytes, error: Any, message: str, tmp_path: Path) -> None:
    path, module = tmp_path / "x.ckpt", Tiny()
    path.write_bytes(content)
    before = state_of(module)
    for use in (
        lambda: fit(tmp_path, module=module, ckpt_path=path),
        lambda: trainer(tmp_path).validate(module, data(), ckpt_path=path),
        lambda: Tiny.load_from_checkpoint(path),
    ):
        with pytest.raises(error, match=message):
            use()
    assert path.read_bytes() == content
    assert all(map(torch.equal, before, state_of(module)))
