"""Maennel et al.'s operations, each by what it must keep and what it must change."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from repalign import covariance, models
from repalign.models import MLP, VGG, SimpleCNN
from repalign.models.initialization import generator, normal
from repalign.papers import maennel


def cnn(seed=0, **options):
    return SimpleCNN((3, 8, 8), 10, **{"convs": 2, "filters": 6, "units": 12, **options}, seed=seed)


def trained(model, seed=5):
    """The network with weights of other sizes and with biases, as after training."""
    g = generator(seed)
    with torch.no_grad():
        for i, p in enumerate(model.parameters(), start=1):
            p.mul_(1 + i).add_(0.1 * normal(tuple(p.shape), g))
    return model


def equal(a, b):
    a, b = a.state_dict(), b.state_dict()
    return {key: torch.equal(a[key], b[key]) for key in a}


def test_layers_are_what_the_papers_count():
    assert list(maennel.layers(cnn())) == ["conv0", "conv1", "dense", "head"]
    with torch.device("meta"):
        vgg, normalized = VGG(), VGG(batch_norm=True)
    assert list(maennel.layers(vgg)) == [*(f"conv{i}" for i in range(13)), "head"]
    with_norm = maennel.layers(normalized)
    assert with_norm["conv0"][:3] == ("conv0.weight", "conv0.bias", "norm0.weight")
    assert maennel.layers(MLP(3, 2, width=(4, 4), activation="prelu"))["fc1"][-1] == "act1.weight"
    blocks = [f"stage{i}.{j}" for i in range(1, 5) for j in range(2)]
    assert list(maennel.layers(models.resnet18_v2())) == ["stem", *blocks, "head"]
    resnet = maennel.layers(models.imagenet("resnet18"))
    assert list(resnet)[:3] == ["conv1", "layer1.0", "layer1.1"]


@pytest.mark.parametrize("name", models.NAMES)
def test_every_tensor_belongs_to_one_layer(name):
    options = dict(mlp=dict(inputs=12, outputs=2), rbf=dict(inputs=12)).get(name, {})
    with torch.device("meta"):
        net = models.build(name, **options)
    keys = [key for group in maennel.layers(net).values() for key in group]
    assert sorted(keys) == sorted(net.state_dict())


@pytest.mark.parametrize("k", range(5))
def test_the_first_k_layers_are_copied(k):
    source, target = trained(cnn(1)), cnn(2)
    before = target.state_dict()["conv0.weight"].clone()
    moved = maennel.copy_layers(source, target, k)
    copied = {key for name in list(maennel.layers(source))[:k] for key in maennel.layers(source)[name]}
    assert {key for key, same in equal(moved, source).items() if same} == copied
    assert {key for key, same in equal(moved, target).items() if not same} == copied
    assert torch.equal(target.conv0.weight, before)  # the target itself stays
    assert moved.probed == target.probed


def test_running_averages_are_copied_too():
    source, target = models.preact_resnet18(k=2, seed=1), models.preact_resnet18(k=2, seed=2)
    source(normal((4, 3, 8, 8), generator(0)))
    moved = maennel.copy_layers(source, target, 3)
    assert torch.equal(moved.stage1[1].norm1.running_mean, source.stage1[1].norm1.running_mean)
    assert torch.equal(moved.stage2[0].norm1.running_mean, target.stage2[0].norm1.running_mean)


def test_a_bias_is_set_to_zero_and_all_else_kept():
    net = trained(cnn())
    bare = maennel.zero_bias(net, ["conv0"])
    assert {key for key, same in equal(bare, net).items() if not same} == {"conv0.bias"}


@pytest.mark.parametrize("biases", ["layer", "network"])
def test_rescaled_layers_have_the_norm_of_the_start(biases):
    start = maennel.norms(cnn())
    assert start["conv0"] == pytest.approx(float(cnn().conv0.weight.detach().norm()))
    scaled = maennel.rescale(trained(cnn()), start, biases=biases)
    for name, norm in start.items():
        layer = scaled.get_submodule(name)
        weight = layer.weight.detach().double().square().sum()
        bias = layer.bias.detach().double().square().sum() if biases == "layer" else 0
        assert float((weight + bias) ** 0.5) == pytest.approx(norm)


def test_the_networks_of_figure_5_one_step_after_the_other():
    before, fresh = SimpleCNN((3, 8, 8), 5, convs=1, filters=40, units=12), cnn(3, convs=1, filters=40)
    start = maennel.norms(before)
    upstream = trained(before)
    pretrained = models.replace_head(maennel.rescale(upstream, start), 10, seed=1)
    assert {name: maennel.norms(pretrained)[name] for name in ("conv0", "dense")} == pytest.approx(
        {name: start[name] for name in ("conv0", "dense")}
    )
    assert pretrained.head.out_features == 10
    assert not pretrained.head.bias.any()
    bare = maennel.zero_bias(pretrained, ["conv0"])
    assert torch.equal(bare.conv0.weight, pretrained.conv0.weight)
    assert not bare.conv0.bias.any()
    covariance = maennel.filter_covariance(pretrained, "conv0")
    sampled = maennel.rescale(maennel.sample_filters(fresh, "conv0", covariance), maennel.norms(fresh))
    assert maennel.norms(sampled) == pytest.approx(maennel.norms(fresh))
    assert torch.equal(sampled.dense.weight, fresh.dense.weight)
    # Transferring the first layer alone: the others are those of the network it goes to.
    one = maennel.copy_layers(pretrained, fresh, 1)
    assert torch.equal(one.conv0.bias, pretrained.conv0.bias)
    assert torch.equal(one.dense.weight, fresh.dense.weight)


@given(st.integers(0, 2**31), st.booleans())
def test_rescaling_keeps_predictions(seed, deep):
    net = MLP(4, 3, width=(6,) * (4 if deep else 1), seed=seed).double()
    start = maennel.norms(net)
    trained(net, seed)
    x = normal((9, 4), generator(seed), torch.float64)
    out, scaled = net(x), maennel.rescale(net, start, biases="network")(x)
    # One positive number for all outputs.
    torch.testing.assert_close(scaled / scaled.norm(), out / out.norm())


def test_scaling_biases_layer_by_layer_can_change_predictions():
    """A.4 says that predictions stay. With biases they need not: at x = 1, 4x against 4 − 4x."""
    net = MLP(1, 2, width=(1,)).double()
    with torch.no_grad():
        net.fc1.weight.fill_(4.0)
        net.head.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        net.head.bias.copy_(torch.tensor([0.0, 4.0]))
    scaled = maennel.rescale(net, {"fc1": 1.0, "head": 1.0})
    x = torch.tensor([[1.0]], dtype=torch.float64)
    assert net(x).argmax() == 0
    assert scaled(x).argmax() == 1
    assert maennel.rescale(net, {"fc1": 1.0, "head": 1.0}, biases="network")(x).argmax() == 0


def spread(d, seed=0):
    a = normal((d, d), generator(seed), torch.float64)
    return a @ a.mT / d


def test_sampled_filters_have_the_covariance():
    sigma = spread(27)
    net = trained(SimpleCNN((3, 4, 4), filters=20_000, convs=1, units=1))
    sampled = maennel.sample_filters(net, "conv0", sigma, seed=1)
    got = maennel.filter_covariance(sampled, "conv0")
    torch.testing.assert_close(got, sigma, atol=0.05 * float(sigma.diagonal().max()), rtol=0)
    moments = maennel.filter_covariance(sampled, "conv0", center=False)
    torch.testing.assert_close(got, moments, atol=1e-3, rtol=0)
    assert not sampled.conv0.bias.any()
    assert torch.equal(sampled.dense.weight, net.dense.weight)
    again = maennel.sample_filters(net, "conv0", sigma.numpy(), seed=1)
    assert torch.equal(again.conv0.weight, sampled.conv0.weight)


def test_a_covariance_of_low_rank_is_sampled_in_its_range():
    v = torch.linalg.qr(normal((27, 2), generator(0), torch.float64)).Q
    net = maennel.sample_filters(cnn(), "conv0", v @ v.mT, seed=0)
    w = maennel.filters(net, "conv0").double()
    torch.testing.assert_close(w @ v @ v.mT, w, atol=1e-6, rtol=0)


def test_the_first_transfer_function_is_that_of_its_parts():
    images = normal((6, 3, 8, 8), generator(2))
    for net, name, stride in (
        (cnn(stride=2), "conv0", 2),
        (models.resnet18_v2(width=4, groups=2), "stem", 2),
    ):
        size = net.get_submodule(name).kernel_size[0]
        found = maennel.first_transfer_function(net, images)
        patches = covariance.patch_covariance(images.double(), size, stride=stride)
        filters = maennel.filter_covariance(net, name, center=False)
        expected = covariance.transfer_function(patches, filters)
        assert torch.allclose(found.tau, expected.tau)
        assert torch.allclose(found.sigma, expected.sigma)
    with pytest.raises(ValueError, match="should be a convolution"):
        maennel.first_transfer_function(MLP(4, 2), images)


@pytest.mark.parametrize("which, shift", [("top", 0), ("top", 3), ("bottom", 0), ("bottom", 2)])
def test_eigenvector_filters(which, shift):
    sigma = spread(54)
    net = maennel.eigenvector_filters(trained(cnn()), "conv1", sigma, which=which, shift=shift)
    w = maennel.filters(net, "conv1").double()
    torch.testing.assert_close(w @ w.mT, torch.eye(6).double(), atol=1e-6, rtol=0)
    value = torch.from_numpy(np.linalg.eigvalsh(sigma.numpy()).copy())
    expected = (value.flip(0) if which == "top" else value)[shift : shift + 6]
    torch.testing.assert_close((w @ sigma * w).sum(1), expected, rtol=1e-5, atol=1e-7)
    assert (w.gather(1, w.abs().argmax(1, keepdim=True)) > 0).all()
    assert not net.conv1.bias.any()


def test_eigenvector_filters_are_weighted_and_signed():
    tau = [4.0, 3.0, 2.0, 1.0, 1.0, 1.0]
    plain = maennel.eigenvector_filters(cnn(), "conv0", spread(27), tau=tau)
    norms = maennel.filters(plain, "conv0").norm(dim=1)
    torch.testing.assert_close(norms, torch.tensor(tau))
    signed = maennel.eigenvector_filters(cnn(), "conv0", spread(27), tau=tau, seed=1)
    ratio = (maennel.filters(signed, "conv0") / maennel.filters(plain, "conv0")).mean(1)
    torch.testing.assert_close(ratio.abs(), torch.ones(6))
    assert -6 < float(ratio.sum()) < 6


NET = cnn()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: maennel.copy_layers(NET, NET, 5), "from 0 to 4"),
        (lambda: maennel.copy_layers(cnn(filters=5), NET, 1), r"conv0.weight has shape \(6, 3, 3, 3\)"),
        (lambda: maennel.copy_layers(MLP(3, 2), NET, 1), "not there, but fc1, fc2"),
        (lambda: maennel.rescale(models.preact_resnet18(k=2), {}), "do not rescale those"),
        (lambda: maennel.rescale(VGG(batch_norm=True), {}), "without normalization"),
        (lambda: maennel.rescale(NET, {"conv0": 1.0}), "layers conv0, conv1, dense, head, but are of conv0"),
        (lambda: maennel.rescale(NET, maennel.norms(NET), biases="none"), "layer or network"),
        (lambda: maennel.rescale(NET, dict.fromkeys(maennel.layers(NET), 0.0)), "above 0"),
        (lambda: maennel.sample_filters(NET, "conv9", spread(27)), "the layers are conv0"),
        (lambda: maennel.sample_filters(NET, "conv1", spread(27)), "should be 54 × 54"),
        (lambda: maennel.sample_filters(NET, "conv0", -spread(27)), "negative eigenvalues"),
        (lambda: maennel.eigenvector_filters(NET, "conv0", spread(27), which="middle"), "top or bottom"),
        (lambda: maennel.eigenvector_filters(NET, "conv0", spread(27), shift=22), "there are 5 eigen"),
        (lambda: maennel.eigenvector_filters(NET, "conv0", spread(27), tau=[1.0, 2.0]), "each of 6"),
        (lambda: maennel.layers(nn.ReLU()), "no layer with weights"),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()
