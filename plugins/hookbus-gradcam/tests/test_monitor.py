"""The callback in real runs: what it draws, and that the run does not notice."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path

import importlib_metadata
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookbus
from hookbus_gradcam import GradCamMonitor


class Network(hookbus.LightningModule):
    """With dropout, batch normalization and an in-place ReLU, which all show if something disturbs them."""

    def __init__(self, convolution: bool = True) -> None:
        super().__init__()
        first = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)] if convolution else []
        self.network = nn.Sequential(*first, nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 if convolution else 36, 3))

    def forward(self, x):
        return self.network(x)

    def loss(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def data(count=10, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(count, 1, 6, 6, generator=generator)
    return TensorDataset(images, torch.randint(3, (count,), generator=generator))


class Shown:
    """Stands for a logger that shows pictures."""

    def __init__(self):
        self.images = []

    @hookbus.hookimpl
    def log_image(self, key, image, step):
        self.images.append((key, image, step))


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.setenv("HOOKBUS_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def fit(tmp_path):
    def fit(monitor, model=None, val=None, **options):
        hookbus.seed_everything(0, verbose=False)
        given = {"max_epochs": 2, "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
        monitors = [] if monitor is None else monitor if isinstance(monitor, list) else [monitor]
        trainer = hookbus.Trainer(
            default_root_dir=tmp_path, log_every_n_steps=1, **{**given, **options, "callbacks": monitors}
        )
        trainer.fit(model or Network(), DataLoader(data(), 4, shuffle=True), val or DataLoader(data(6), 4))
        return trainer

    return fit


@pytest.fixture
def sketch(monkeypatch) -> list:
    """Nothing is drawn, which takes long, but empty files are written; gives the lists of pictures."""
    seen = []

    def draw(pictures, path, title):
        seen.append(pictures)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return np.zeros((1, 1, 3), np.uint8)

    monkeypatch.setattr("hookbus_gradcam.images.draw", draw)
    return seen


def drawn(trainer) -> list[str]:
    return sorted(path.name for path in Path(trainer.log_dir).glob("gradcam/*.png"))


def test_pictures_of_the_last_convolution_are_written_and_logged(fit, capsys):
    shown = Shown()
    trainer = fit(GradCamMonitor(), plugins=[shown])
    assert drawn(trainer) == ["epoch=0000-step=00000003-network.0.png", "epoch=0001-step=00000006-network.0.png"]
    assert [(key, step) for key, _, step in shown.images] == [("gradcam/network.0", 2), ("gradcam/network.0", 5)]
    assert shown.images[0][1].dtype.name == "uint8"
    assert shown.images[0][1].shape[2] == 3
    said = capsys.readouterr().out
    assert said.count("gradcam: draws layer 'network.0', the last convolution") == 1


@pytest.mark.parametrize(
    ("every", "epochs", "others", "expected"),
    [(2, 5, {}, [1, 3]), (3, 6, {"check_val_every_n_epoch": 2}, [3, 5]), (1, 2, {"val_check_interval": 1}, [0, 1])],
)
def test_every_so_many_epochs(fit, sketch, every, epochs, others, expected):
    trainer = fit(GradCamMonitor(every), max_epochs=epochs, **others)
    assert [int(name[6:10]) for name in drawn(trainer)] == expected


def test_a_resumed_run_goes_on_where_it_was(fit, sketch, tmp_path):
    trainer = fit(GradCamMonitor(5), max_epochs=5)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    assert len(sketch) == 1
    resumed = hookbus.Trainer(
        max_epochs=7, callbacks=[GradCamMonitor(5)], logger=False, enable_progress_bar=False, default_root_dir=tmp_path
    )
    loader = DataLoader(data(6), 4)
    resumed.fit(Network(), loader, loader, ckpt_path=tmp_path / "last.ckpt")
    assert resumed.current_epoch == 7
    assert len(sketch) == 1  # the tenth epoch is the next


def test_weights_metrics_and_random_numbers_are_those_of_a_run_without(fit, tmp_path):
    def run(monitor):
        hookbus.seed_everything(3, verbose=False)
        model = Network()
        trainer = fit(monitor, model, [DataLoader(data(6), 4), DataLoader(data(5, seed=1), 2)])
        with (Path(trainer.log_dir) / "metrics.csv").open(newline="") as file:
            rows = list(csv.reader(file))
        return model.state_dict(), rows, torch.get_rng_state()

    monitor = GradCamMonitor(layers=["network.0", "network.2"], method="gradcam++")
    (weights, rows, stream), (plain_weights, plain_rows, plain_stream) = run(monitor), run(None)
    assert all(torch.equal(weights[name], plain_weights[name]) for name in plain_weights)
    assert rows == plain_rows
    assert torch.equal(stream, plain_stream)
    assert len(list(tmp_path.rglob("*.png"))) == 4  # it was there


def test_chosen_samples_of_several_loaders(fit, sketch):
    sets = [data(6), data(5, seed=1)]
    fit(GradCamMonitor(samples={0: [5, 1], 1: [4]}), val=[DataLoader(one, 4) for one in sets], max_epochs=1)
    (pictures,) = sketch
    assert [picture.caption[: len("loader 0, sample 0")] for picture in pictures] == [
        "loader 0, sample 1",
        "loader 0, sample 5",
        "loader 1, sample 4",
    ]
    for picture, expected in zip(pictures, (sets[0][1], sets[0][5], sets[1][4]), strict=True):
        assert torch.equal(picture.image, expected[0])


def test_target_label_explains_the_label(fit, sketch):
    fit(GradCamMonitor(target="label", samples=3), max_epochs=1)
    labels = data(6).tensors[1][:3].tolist()
    assert [f"class {label}" in picture.caption for label, picture in zip(labels, sketch[0], strict=True)] == [True] * 3


def test_fast_dev_run_writes_nothing_and_the_sanity_check_is_left_alone(fit, tmp_path):
    shown = Shown()
    monitor = GradCamMonitor()
    fit(monitor, fast_dev_run=True, plugins=[shown])
    assert not list(tmp_path.rglob("*.png"))
    assert shown.images == []
    trainer = fit(monitor, max_epochs=1, num_sanity_val_steps=2)
    assert len(drawn(trainer)) == 1


def test_dictionaries_and_models_that_return_more_than_scores(fit, tmp_path):
    class Wrapped(Network):
        def forward(self, image):
            return {"logits": self.network(image), "size": 3}

        def loss(self, batch):
            return nn.functional.cross_entropy(self(batch["picture"])["logits"], batch["label"])

    images, labels = data(8).tensors
    loader = DataLoader([{"picture": x, "label": y} for x, y in zip(images, labels, strict=True)], 4)
    model = Wrapped()
    trainer = hookbus.Trainer(
        max_epochs=1,
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        logger=False,
        enable_checkpointing=False,
        callbacks=[GradCamMonitor(input="picture", target="label", directory=tmp_path / "maps")],
    )
    trainer.fit(model, loader, loader)
    assert [path.name for path in (tmp_path / "maps").iterdir()] == ["epoch=0000-step=00000002-network.0.png"]


def test_without_a_convolution_it_says_so_once_and_does_nothing(fit, capsys):
    trainer = fit(GradCamMonitor(), Network(convolution=False), max_epochs=3)
    assert capsys.readouterr().out.count("gradcam: there is no convolution in the model; name layers") == 1
    assert drawn(trainer) == []


@pytest.mark.parametrize(
    ("monitor", "message"),
    [
        (GradCamMonitor(layers="nowhere"), "no module of the network has such a name"),
        (GradCamMonitor(samples=[100]), "none of the samples"),
        (GradCamMonitor(input="picture"), "has no 'picture'"),
        (GradCamMonitor(target=7), "target 7 of sample 0 is no class"),
    ],
)
def test_what_keeps_it_from_drawing_is_said_once_and_the_run_goes_on(fit, monitor, message):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = fit(monitor, max_epochs=3)
    assert trainer.current_epoch == 3
    assert len([w for w in caught if message in str(w.message)]) == 1
    assert drawn(trainer) == []


def test_one_that_is_given_takes_the_place_of_the_installed_one(fit, sketch):
    trainer = fit([GradCamMonitor(yields=True), GradCamMonitor(layers="network.2")], max_epochs=1)
    assert drawn(trainer) == ["epoch=0000-step=00000003-network.2.png"]


def test_a_second_fit_begins_anew(fit, sketch):
    monitor = GradCamMonitor()
    fit(monitor)
    with_layers = fit(monitor, Network(convolution=False))
    assert drawn(with_layers) == []
    assert len(drawn(fit(monitor, max_epochs=1))) == 1


@pytest.mark.parametrize("samples", ["x", 2.5, [0, "1"], {0: 1}, {"val": [0]}, -1])
def test_samples_that_make_no_sense(samples):
    with pytest.raises(ValueError, match="samples must be a number of samples, a list of indices"):
        GradCamMonitor(samples=samples)


@pytest.mark.parametrize("arguments", [{"every": -1}, {"target": "cat"}, {"method": "cam"}])
def test_arguments_that_make_no_sense(arguments):
    with pytest.raises(ValueError):
        GradCamMonitor(**arguments)


def test_installing_is_all_it_takes(fit, sketch, monkeypatch, tmp_path):
    monkeypatch.delenv("HOOKBUS_DISABLE_PLUGIN_AUTOLOAD", raising=False)
    try:
        importlib_metadata.distribution("hookbus-gradcam")
    except importlib_metadata.PackageNotFoundError:
        pytest.skip("hookbus-gradcam is not installed here; `make test` installs it")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.hookbus-gradcam]\nlayers = ["network.2"]\nevery = 2\n')
    trainer = fit(None)
    assert trainer.bus.registration("gradcam").role == "monitor"
    assert drawn(trainer) == ["epoch=0001-step=00000006-network.2.png"]
    assert drawn(fit(None, plugins=["no:gradcam"])) == []
