"""A trained network made ready to learn another task: its parts, and what stays as it was."""

from dataclasses import replace

import pytest
import torch

from repalign import features, models
from repalign.papers import imani

IMAGES = torch.rand(3, 3, 20, 20, generator=torch.Generator().manual_seed(0))


def test_the_trunk_gives_the_last_hidden_layer_and_the_head_is_new():
    net = models.first_available("random")
    model = models.with_head(net, 7, seed=1)
    assert model(IMAGES).shape == (3, 7)
    hidden = features.extract(model, IMAGES, ["trunk"])["trunk"]
    torch.testing.assert_close(hidden, imani.last_hidden(net, IMAGES))
    assert model.head.weight.equal(models.with_head(net, 7, seed=1).head.weight)
    assert not model.head.weight.equal(models.with_head(net, 7, seed=2).head.weight)


def test_the_network_itself_is_not_touched():
    net = models.first_available("random")
    model = models.with_head(net, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert net.module(net.preprocess(IMAGES)).abs().sum() > 0


def test_a_network_without_classifier_is_the_trunk_as_it_is():
    net = models.first_available("random")
    headless = replace(net, module=models.with_head(net, 2).trunk, complete=False)
    model = models.with_head(headless, 4)
    torch.testing.assert_close(model.trunk(model.look(IMAGES)), headless.module(net.preprocess(IMAGES)))


@pytest.mark.parametrize("size", [32, 48])
def test_images_come_to_the_size_that_is_asked_for(size):
    build = lambda: models.build("preact_resnet18", k=2)  # noqa: E731
    net = replace(models.first_available("random"), module=build(), build=build)
    model = models.with_head(net, 3, size=size)
    assert model.look(IMAGES).shape[-2:] == (size, size)
    assert models.replace_head(model, 5)(IMAGES).shape == (3, 5)


def equal(a, b):
    a, b = a.state_dict(), b.state_dict()
    return {key: torch.equal(a[key], b[key]) for key in a}


@pytest.mark.parametrize("name, path", [("mlp", "head"), ("resnet18", "fc"), ("vit_small", "heads.head")])
def test_head_is_replaced(name, path):
    options = dict(inputs=4, width=8) if name == "mlp" else {}
    net = models.build(name, outputs=10, **options)
    new = models.replace_head(net, 3, seed=1)
    assert new.get_submodule(path).out_features == 3
    assert net.get_submodule(path).out_features == 10
    same = equal(new, net)
    assert {key for key in same if not same[key]} == {f"{path}.weight", f"{path}.bias"}
    again, other = models.replace_head(net, 3, seed=1), models.replace_head(net, 3, seed=2)
    assert all(equal(new, again).values())
    assert not all(equal(new, other).values())
    double = models.replace_head(net.double(), 3)
    assert double.get_submodule(path).weight.dtype == torch.float64


@pytest.mark.parametrize(
    "net, message",
    [
        (torch.nn.Sequential(torch.nn.ReLU()), "no dense layer"),
        (torch.nn.Linear(2, 2), "single dense layer"),
    ],
)
def test_a_network_without_a_head_to_replace_says_so(net, message):
    with pytest.raises(ValueError, match=message):
        models.replace_head(net, 2)
