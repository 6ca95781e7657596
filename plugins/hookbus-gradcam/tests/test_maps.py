"""Maps against recorded ones, against formulas, and of networks that make it hard."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hookbus.taps import SelectionError
from hookbus_gradcam import (
    METHODS,
    LayerError,
    class_activation_maps,
    elementwise,
    gradcam,
    gradcam_plus_plus,
    hirescam,
    last_convolution,
    layercam,
    normalised,
    tokens,
    xgradcam,
)

GOLDEN = json.loads((Path(__file__).parent / "data" / "cam.json").read_text())


def close(found: torch.Tensor, expected: object, tolerance: float = 1e-12) -> bool:
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    assert found.shape == wanted.shape
    return (found - wanted).abs().max().item() < tolerance


# -- what is known -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("key", GOLDEN["cams"])
def test_recorded_maps(tiny, images, key, inplace):
    layer, method, classes = key.split("|")
    maps = class_activation_maps(tiny(inplace), images, layer, method=method, targets=json.loads(classes))
    assert close(maps[layer], GOLDEN["cams"][key]["raw"])
    assert close(normalised(maps[layer]), GOLDEN["cams"][key]["norm"])
    assert close(maps.output, GOLDEN["logits"])


@pytest.mark.parametrize(
    ("layer", "method", "total", "largest", "at", "first", "other"),
    [
        ("relu2", gradcam, 0.36367956, 0.04160159, (2, 0), 0, 0.03790386),
        ("relu2", gradcam_plus_plus, 3.43717237, 0.30463385, (0, 0), 0.30463385, 0.29471137),
        ("relu2", layercam, 0.48978943, 0.04414974, (1, 1), 0.04093960, 0.04313471),
        ("relu2", elementwise, 0.48978943, 0.04414974, (1, 1), 0.04093960, 0.04313471),
        ("conv2", gradcam, 0.36868184, 0.03556273, (2, 0), 0.01010202, 0.03432760),
        ("conv2", gradcam_plus_plus, 2.21501676, 0.17281258, (0, 1), 0.16730499, 0.13491374),
        ("conv2", xgradcam, 1.41063315, 0.34380175, (2, 0), 0, 0.22388703),
        ("relu1", gradcam, 0.06283964, 0.00237882, (1, 0), 0.00023187, 0.00143299),
        ("relu1", layercam, 0.33587175, 0.02597865, (3, 6), 0.00271800, 0.00061336),
        ("conv1", gradcam, 0.03801786, 0.00176829, (1, 0), 0, 0.00051648),
    ],
)
def test_figures_of_four_layers(tiny, images, layer, method, total, largest, at, first, other):
    found = method(tiny(), images, layer)[0]
    assert found.sum().item() == pytest.approx(total, abs=1e-7)
    assert found.max().item() == pytest.approx(largest, abs=1e-8)
    assert divmod(int(found.argmax()), found.shape[1]) == at
    assert found[0, 0].item() == pytest.approx(first, abs=1e-8)
    assert found[1, 2].item() == pytest.approx(other, abs=1e-8)


def test_after_global_pooling_the_weights_are_those_of_the_linear_layer(tiny, images):
    network = tiny()
    with torch.no_grad():
        features = network.relu2(network.conv2(network.relu1(network.conv1(images))))
    weights = network.fc.weight.detach()[2] / 16  # of 4 x 4 places
    expected = torch.einsum("k,nkhw->nhw", weights, features)
    for method in (gradcam, hirescam):
        assert close(method(network, images, "relu2", targets=2, relu=False), expected, 1e-14)
    assert close(xgradcam(network, images, "relu2", targets=2, relu=False), expected, 1e-6)  # it has an epsilon


def test_hirescam_adds_up_to_the_score(tiny, images):
    network = tiny()
    maps = class_activation_maps(network, images, "relu2", method="hirescam", targets=[0, 2], relu=False)
    expected = maps.scores - network.fc.bias.detach()[[0, 2]]
    assert close(maps["relu2"].sum(dim=(1, 2)), expected, 1e-14)
    assert torch.equal(maps.scores, torch.stack([maps.output[0, 0], maps.output[1, 2]]))


@pytest.mark.parametrize("method", [hirescam, layercam])
def test_what_the_relu_cuts_off_does_not_count_before_it_either(tiny, images, method):
    before, after = method(tiny(inplace=True), images, ["conv2", "relu2"]).values()
    assert torch.equal(before, after)


# -- what is asked for ---------------------------------------------------------------------------------------------------


def test_one_layer_gives_a_tensor_and_several_a_dict(tiny, images):
    network = tiny()
    several = gradcam(network, images, ["relu1", network.conv2])
    assert list(several) == ["relu1", "conv2"]
    assert several["relu1"].shape == (2, 8, 8)
    assert torch.equal(several["conv2"], gradcam(network, images, "conv2"))
    assert list(gradcam(network, images, ["relu*"])) == ["relu1", "relu2"]
    with pytest.raises(LayerError, match="several layers, relu1, relu2"):
        gradcam(network, images, "relu*")


@pytest.mark.parametrize("targets", [2, [2, 1], (2, 1), torch.tensor([2, 1]), torch.tensor(2)])
def test_targets_in_all_forms(tiny, images, targets):
    network = tiny()
    found = class_activation_maps(network, images, "relu2", targets=targets)
    expected = [2, 1] if not isinstance(targets, int) and len(torch.as_tensor(targets).shape) else [2, 2]
    assert found.classes == expected
    assert close(found["relu2"], torch.stack([gradcam(network, images, "relu2", t)[i] for i, t in enumerate(expected)]))


def test_the_default_target_is_the_predicted_class(tiny, images):
    found = class_activation_maps(tiny(), images, "relu2")
    assert found.classes == GOLDEN["argmax"]
    assert torch.equal(found["relu2"], gradcam(tiny(), images, "relu2", targets=0))


def test_functions_as_targets_see_one_sample_each(tiny, images):
    network = tiny()
    found = class_activation_maps(network, images, "relu2", targets=[lambda row: row[1] - row[0], lambda row: row[2]])
    assert found.classes == [None, None]
    output = found.output
    assert torch.equal(found.scores, torch.stack([output[0, 1] - output[0, 0], output[1, 2]]))
    same = gradcam(network, images, "relu2", targets=lambda row: row[2])
    assert torch.equal(same[1], found["relu2"][1])


def test_outputs_that_are_no_tensor(tiny, images):
    class Wrapped(nn.Module):
        def __init__(self, wrap):
            super().__init__()
            self.net, self.wrap = tiny(), wrap

        def forward(self, x):
            return self.wrap(self.net(x))

    expected = gradcam(tiny(), images, "conv2", targets=2)
    mapping = Wrapped(lambda out: {"logits": out, "size": 3})
    pair = Wrapped(lambda out: (out.detach(), [out]))
    assert torch.equal(gradcam(mapping, images, "net.conv2", lambda out: out["logits"][2]), expected)
    assert torch.equal(gradcam(mapping, images, "net.conv2", 2, output="logits"), expected)
    assert torch.equal(gradcam(pair, images, "net.conv2", [lambda out: out[1][0][2]] * 2), expected)
    assert torch.equal(gradcam(pair, images, "net.conv2", 2, output=lambda out: out[1][0]), expected)
    with pytest.raises(ValueError, match="the model gives a dict with 'logits', 'size'"):
        gradcam(mapping, images, "net.conv2", 2)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (3, "target 3 of sample 0 is no class: the model gives scores for 0 to 2"),
        (-1, "target -1 of sample 0"),
        ([0], "expected one target for each of 2 samples, got 1"),
        (torch.tensor([0.5, 1.0]), "one integer per sample"),
        ("cat", "targets must be a class"),
        ([0, "cat"], "a target must be a class or a function, got 'cat'"),
        (lambda row: row, "must return a tensor with one number, got a tensor of shape"),
    ],
)
def test_targets_that_make_no_sense(tiny, images, targets, message):
    with pytest.raises(ValueError, match=message):
        gradcam(tiny(), images, "relu2", targets=targets)


def test_class_scores_at_each_place_are_added_up(images):
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 3, 1)).double()
    weights = network[1].weight.detach()[1, :, 0, 0]
    with torch.no_grad():
        expected = torch.einsum("k,nkhw->nhw", weights, network[0](images)).clamp(min=0)
    assert close(gradcam(network, images, "0", targets=1), expected)


def test_something_that_is_no_model(images):
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got int: 5"):
        gradcam(5, images, "0")


@pytest.mark.filterwarnings("error")
def test_layers_of_which_there_is_no_map(tiny, images):
    network = tiny()
    network.unused = nn.Conv2d(1, 1, 1)
    with pytest.raises(
        SelectionError,
        match=r"^gradcam selects 'cnv2', and no module of the network has such a name; did you mean 'conv2'",
    ):
        gradcam(network, images, "cnv2")
    with pytest.raises(LayerError, match="layer 'unused' is not called"):
        gradcam(network, images, ["conv1", "unused"])
    with pytest.raises(LayerError, match=r"layer 'fc' gives \(2, 3\); expected \(N, K, …\)"):
        gradcam(network, images, "fc")
    with pytest.raises(LayerError, match="the scores do not depend on 'conv1'; does the model detach"):
        gradcam(nn.ModuleDict({"conv1": nn.Conv2d(1, 1, 1)}).double(), images, "conv1", forward=cut_off)
    with pytest.raises(ValueError, match="no method 'cam'; there are gradcam, gradcam"):
        class_activation_maps(network, images, "conv1", method="cam")


def cut_off(network, x):
    return network["conv1"](x).detach().flatten(1) + x.flatten(1)


# -- networks of all kinds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_signals_images_and_volumes_of_any_shape(method):
    for convolution, size in ((nn.Conv1d, (7,)), (nn.Conv2d, (4, 9)), (nn.Conv3d, (2, 3, 5))):
        torch.manual_seed(0)
        network = nn.Sequential(convolution(2, 3, 1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
        x = torch.rand(2, 2, *size)
        network(x)
        found = class_activation_maps(network, x, "1", method=method, targets=[0, 3])["1"]
        assert found.shape == (2, *size)
        alone = class_activation_maps(network, x[1:], "1", method=method, targets=3)["1"]
        assert torch.allclose(found[1:], alone, atol=1e-6)


def test_tokens_of_a_transformer(images):
    """A transformer whose mixing is the identity is a convolution with 2 x 2 patches and global average pooling."""

    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Conv2d(1, 4, 2, stride=2)
            self.mix = nn.Identity()
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            patches = self.embed(x).flatten(2).transpose(1, 2)
            first = torch.zeros_like(patches[:, :1])
            return self.head(self.mix(torch.cat([first, patches], dim=1))[:, 1:].mean(dim=1))

    torch.manual_seed(0)
    network = Patches().double()
    wide = torch.cat([images, images], dim=3)  # 8 x 16 pixels
    found = gradcam(network, wide, "mix", targets=1, reshape=tokens(4, 8))
    # The class token has no gradient, so that leaving it out is all that tokens() does to the weights.
    assert close(found, gradcam(network, wide, "embed", targets=1))
    assert close(gradcam(network, wide, ["mix", "embed"], 1, reshape={"mix": tokens(4, 8)})["mix"], found)
    with pytest.raises(
        LayerError, match=r"expected tokens of shape \(N, 17, K\): 1 to skip and 4 x 4; got \(2, 33, 4\)"
    ):
        gradcam(network, wide, "mix", targets=1, reshape=tokens(4, 4))


def test_modules_that_are_called_several_times(images):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 3, padding=1)
            self.again = self.conv
            self.act = nn.ReLU(inplace=True)

        def forward(self, x):
            return self.act(self.again(self.act(self.conv(x)))).flatten(1)[:, ::16]

    torch.manual_seed(0)
    network = Twice().double()
    with pytest.raises(LayerError, match="layer 'conv' is called 2 times; say which call: call=0 to 1"):
        gradcam(network, images, "conv")
    with torch.no_grad():
        first = network.conv(images)
    maps = [hirescam(network, images, "conv", 2, call=call, relu=False) for call in (0, 1, -1)]
    assert not torch.equal(maps[0], maps[1])
    assert torch.equal(maps[1], maps[2])
    leaf = first.clone().requires_grad_()
    score = torch.relu(network.conv(torch.relu(leaf))).flatten(1)[:, 32].sum()
    assert close(maps[0], (torch.autograd.grad(score, leaf)[0] * leaf.detach()).sum(dim=1))
    assert list(gradcam(network, images, ["again"], call=0)) == ["again"]  # by the name that was asked for
    with pytest.raises(LayerError, match="there is no call 2 of layer 'conv', which is called 2 times"):
        gradcam(network, images, "conv", call=2)


@pytest.mark.parametrize("frozen", ["all", "up to the layer"])
def test_frozen_networks(tiny, images, frozen):
    network = tiny(inplace=True)
    for parameter in network.parameters() if frozen == "all" else network.conv1.parameters():
        parameter.requires_grad_(False)
    for layer in ("conv1", "conv2"):
        assert torch.equal(gradcam(network, images, layer), gradcam(tiny(), images, layer))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_where_gradients_are_off(tiny, images, mode):
    network = tiny(inplace=True)
    expected = gradcam(network, images, "conv2")
    with mode():
        given = images.clone()  # an inference tensor in inference mode
        found = gradcam(network, given, "conv2")
        assert not torch.is_grad_enabled()
    assert torch.equal(found, expected)
    assert not found.is_inference()


def test_a_network_made_in_inference_mode(tiny, images):
    with torch.inference_mode():
        network = tiny()
    assert torch.equal(gradcam(network, images, "conv2"), gradcam(tiny(), images, "conv2"))
    assert network.conv2.weight.is_inference()


def test_autocast_keeps_its_precision_and_its_cache(tiny, images):
    network, x = tiny().float(), images.float()
    exact = gradcam(network, x, "conv2")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert last_convolution(network, x) == "conv2"
        found = class_activation_maps(network, x, "conv2")
        # A weight that a pass had cast and cached without gradients would leave training without them.
        (gradient,) = torch.autograd.grad(network(x).float().sum(), network.conv2.weight)
        assert torch.is_autocast_cache_enabled()
    assert found.output.dtype is torch.bfloat16
    assert found["conv2"].dtype is torch.float32
    assert torch.allclose(found["conv2"], exact, atol=0.1 * exact.max().item())
    assert gradient.abs().sum() > 0


def test_activation_checkpointing(tiny, images):
    class Checkpointed(tiny):
        def forward(self, x):
            features = checkpoint(lambda x: self.relu2(self.conv2(self.relu1(self.conv1(x)))), x, use_reentrant=False)
            return self.fc(self.pool(features).flatten(1))

    found = gradcam(Checkpointed(True), images, ["conv1", "conv2"])
    for layer, maps in found.items():
        assert close(maps, gradcam(tiny(), images, layer))


@pytest.mark.parametrize("inside", [False, True])
def test_a_compiled_network_is_looked_into_uncompiled(tiny, images, inside):
    frames = []

    def backend(graph, example):
        frames.append(graph)
        return graph.forward

    network = tiny()
    if inside:
        network.conv2.compile(backend=backend)
        network.relu1 = torch.compile(network.relu1, backend=backend)
    else:
        network = torch.compile(network, backend=backend)
    network(images)
    compiled = len(frames)
    assert compiled
    found = gradcam(network, images, ["relu1", "conv2"])
    assert torch.equal(found["conv2"], gradcam(tiny(), images, "conv2"))
    assert torch.equal(found["relu1"], gradcam(tiny(), images, "relu1"))
    network(images)
    assert len(frames) == compiled


def test_a_network_in_data_parallel(tiny, images):
    assert torch.equal(gradcam(nn.DataParallel(tiny()), images, "conv2"), gradcam(tiny(), images, "conv2"))


def test_arguments_of_all_kinds(images):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 3)

        def forward(self, x, scale=1.0):
            return (self.conv(x) * scale).mean(dim=(2, 3))

    network = Two().double()
    doubled = gradcam(network, (images, 2.0), "conv", 0)
    assert torch.equal(gradcam(network, {"x": images, "scale": 2.0}, "conv", 0), doubled)
    assert close(doubled, 2 * gradcam(network, images, "conv", 0))
    assert close(gradcam(network, images, "conv", 0, forward=lambda net, x: net(x, scale=2.0)), doubled)
    with pytest.raises(ValueError, match="expected a tensor with a first dimension"):
        gradcam(network, {"x": 1.0}, "conv", 0)


def test_the_last_convolution_is_that_of_the_call_not_of_the_definition(images):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.late = nn.Conv2d(2, 2, 3)
            self.early = nn.Conv2d(1, 2, 3)
            self.gate = nn.Conv2d(2, 2, 1)
            self.never = nn.Conv2d(1, 1, 1)

        def forward(self, x):
            features = self.late(self.early(x))
            return (features * self.gate(features.mean(dim=(2, 3), keepdim=True))).mean(dim=(2, 3))

    assert last_convolution(Odd().double(), images) == "late"  # the gate sees a single place
    assert last_convolution(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).double(), images) is None


@pytest.mark.parametrize("function", [gradcam, gradcam_plus_plus, xgradcam, hirescam, layercam])
def test_methods_name_their_papers(function):
    assert re.search(r"\b20(17|18|20|21)\b", function.__doc__)
