"""Every network against its paper: layers, parameters counted by hand, output shape, seeds."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from repalign import models
from repalign.models.initialization import generator, normal, orthogonal


def count(model):
    return sum(p.numel() for p in model.parameters())


def dense(a, b, bias=True):
    return a * b + bias * b


def conv(a, b, kernel=3, bias=False):
    return a * b * kernel**2 + bias * b


def on_meta(name, **options):
    with torch.device("meta"):
        return models.build(name, **options)


def kinds(model, *types):
    return sum(isinstance(m, types) for m in model.modules())


def test_mlp_layers_and_count():
    net = models.build("mlp", inputs=784, outputs=10, depth=4, width=200)  # Canatar V
    names = ["flatten", "fc1", "act1", "fc2", "act2", "fc3", "act3", "fc4", "act4", "head"]
    assert [name for name, _ in net.named_children()] == names
    assert count(net) == dense(784, 200) + 3 * dense(200, 200) + dense(200, 10)
    # Lou: L = 10 weight matrices of width 256, no bias.
    lou = models.build("mlp", inputs=784, outputs=10, depth=9, width=256, bias=False)
    assert len(list(lou.parameters())) == 10
    assert count(lou) == 784 * 256 + 8 * 256**2 + 2560
    # Maennel E.1: layers of 2048 and 256.
    assert models.build("mlp", inputs=30, outputs=10, width=(2048, 256)).fc2.weight.shape == (256, 2048)
    assert net(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


@pytest.mark.parametrize(
    "activation, reference",
    [
        ("relu", torch.relu),
        ("tanh", torch.tanh),
        ("prelu", lambda h: torch.where(h > 0, h, 0.25 * h)),
        ("leaky_relu", lambda h: torch.where(h > 0, h, 0.01 * h)),
        ("linear", lambda h: h),
    ],
)
def test_mlp_is_its_formula(activation, reference):
    net = models.MLP(5, 2, depth=2, width=7, activation=activation, init="torch", seed=3)
    x = normal((4, 5), generator(0))
    h = x
    for layer in (net.fc1, net.fc2):
        h = reference(h @ layer.weight.T + layer.bias)
    torch.testing.assert_close(net(x), h @ net.head.weight.T + net.head.bias)


@pytest.mark.parametrize(
    "init, deviations",
    [
        ("he", (math.sqrt(2 / 400), math.sqrt(2 / 300))),
        ("lecun", (math.sqrt(1 / 400), math.sqrt(1 / 300))),
        ("width", (math.sqrt(1 / 300), math.sqrt(1 / 300))),
        ("torch", (math.sqrt(1 / 1200), math.sqrt(1 / 900))),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_scale_of_the_first_weights(init, deviations, scale):
    net = models.MLP(400, 10, depth=2, width=300, init=init, init_scale=scale, seed=1)
    for layer, deviation in zip((net.fc1, net.fc2), deviations, strict=True):
        weight = layer.weight.detach()
        assert float(weight.std()) == pytest.approx(scale * deviation, rel=0.02)
        assert abs(float(weight.mean())) < 0.02 * deviation
        assert (init == "torch") == bool(layer.bias.any())


def test_orthogonal_weights():
    net = models.MLP(20, 5, depth=2, width=30, init="orthogonal", init_scale=3.0, seed=0)
    w1, w2 = net.fc1.weight.double(), net.fc2.weight.double()
    torch.testing.assert_close(w1.T @ w1, 9 * torch.eye(20).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(w2 @ w2.T, 9 * torch.eye(30).double(), atol=1e-5, rtol=0)
    # Uniform over the group: entries of many small matrices have mean zero and variance 1/2.
    g = generator(0)
    entries = torch.stack([orthogonal(2, 2, g) for _ in range(2000)])
    assert float(entries.mean(0).abs().max()) < 0.06
    assert float((entries.square().mean(0) - 0.5).abs().max()) < 0.03


def test_normal_numbers_are_normal():
    x = normal((200_000,), generator(5), torch.float64)
    assert torch.isfinite(x).all()
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        assert float((x**power).mean()) == pytest.approx(moment, abs=0.1)


@pytest.mark.parametrize(
    "name, options",
    [
        ("mlp", dict(inputs=6, outputs=2, width=5)),
        ("rbf", dict(inputs=6, units=5)),
        ("simple_cnn", dict(units=8)),
        ("preact_resnet18", dict(k=4)),
        ("resnet11", dict(width=8)),
        ("t2t_vit", dict(depth=7, image_size=32)),
        ("resnet18", dict(small_images=True)),
        ("vit_small", dict(depth=1)),
    ],
)
def test_the_seed_decides_and_nothing_else(name, options):
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = models.build(name, **options, seed=1).state_dict()
    assert torch.equal(torch.get_rng_state(), before)  # the global state of randomness is untouched
    torch.manual_seed(12)
    again, other = (models.build(name, **options, seed=s).state_dict() for s in (1, 2))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_the_same_weights_on_every_platform():
    # From the definition alone: uniform numbers, the inverse normal distribution, √(2 / fan-in).
    u = torch.rand((4, 3), generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    z = torch.special.ndtri(u + 2.0**-54)
    net = models.MLP(3, 1, width=(4,), seed=7)
    torch.testing.assert_close(net.fc1.weight.detach(), (z * math.sqrt(2 / 3)).float(), rtol=1e-6, atol=0)
    # A generator is drawn from, so two networks from one generator differ.
    g = generator(7)
    same, differs = (models.MLP(3, 1, width=(4,), seed=g) for _ in range(2))
    assert torch.equal(same.fc1.weight, net.fc1.weight)
    assert not torch.equal(differs.fc1.weight, net.fc1.weight)


def test_torchvision_draws_its_own_distributions_from_our_seed():
    net = models.build("resnet18", outputs=10, seed=3)
    weight = net.layer1[0].conv1.weight.detach()
    assert float(weight.std()) == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.02)  # He, by fan-out
    bound = 1 / math.sqrt(512)  # a dense layer of torch: uniform
    assert float(net.fc.weight.detach().abs().max()) == pytest.approx(bound, rel=0.01)
    assert float(net.fc.weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.03)
    assert not net.bn1.bias.any()
    vit = models.vit_small(seed=3)
    assert float(vit.encoder.pos_embedding.detach().std()) == pytest.approx(0.02, rel=0.03)
    assert not vit.heads.head.weight.any()


def test_rbf_network():
    net = models.build("rbf", inputs=6, outputs=1, units=9, bandwidth=0.7, seed=0)
    assert count(net) == 9 * 6 + dense(9, 1)
    x = normal((4, 6), generator(1))
    by_hand = torch.stack([torch.exp(-(x - c).square().sum(1) / (2 * 0.7**2)) for c in net.rbf.centers], 1)
    torch.testing.assert_close(net.rbf(x), by_hand)
    net(x).sum().backward()
    assert net.rbf.centers.grad.abs().sum() > 0  # the centers are trained
    started = models.RBFNetwork(6, units=4, centers=x)
    torch.testing.assert_close(started.rbf(x).diagonal(), torch.ones(4))


def test_simple_cnn():
    net = models.build("simple_cnn", convs=3, filters=16, units=64, outputs=10)  # Maennel fig. 6, left
    names = ["conv0", "relu0", "conv1", "relu1", "conv2", "relu2", "flatten", "dense", "dense_relu", "head"]
    assert [name for name, _ in net.named_children()] == names
    convs = conv(3, 16, bias=True) + 2 * conv(16, 16, bias=True)
    assert count(net) == convs + dense(16 * 32 * 32, 64) + dense(64, 10)
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    e2 = models.SimpleCNN((3, 27, 27), convs=2, stride=3, padding="valid")
    assert e2.conv0(torch.zeros(1, 3, 27, 27)).shape[2:] == (9, 9)  # 81 patches, none overlapping
    assert e2(torch.zeros(1, 3, 27, 27)).shape == (1, 10)
    e3 = models.SimpleCNN(convs=3, filters=16, units=512, pool=True)
    assert e3.dense.in_features == 16 * 15 * 15
    assert e3(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


@pytest.mark.parametrize("convs", [1, 2, 3, 5])
@pytest.mark.parametrize("side, stride, padding", [(16, 1, "same"), (32, 2, "same"), (32, 1, "valid")])
def test_simple_cnn_in_the_sizes_of_maennel(convs, side, stride, padding):
    net = models.SimpleCNN(
        (3, side, side), 25, convs=convs, filters=4, units=6, stride=stride, padding=padding
    )
    for _ in range(convs):
        side = -(-side // stride) if padding == "same" else side - 2
    assert net.dense.in_features == 4 * side**2
    expected = conv(3, 4, bias=True) + (convs - 1) * conv(4, 4, bias=True)
    assert count(net) == expected + dense(4 * side**2, 6) + dense(6, 25)
    assert len(net.probed) == convs + 1


VGG16 = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
VGG19 = (3, 64, 64, 128, 128, *[256] * 4, *[512] * 8)


@pytest.mark.parametrize("name, filters", [("vgg16", VGG16), ("vgg19", VGG19)])
def test_vgg_without_the_large_dense_layers(name, filters):
    net = models.build(name, outputs=10)
    convs = sum(conv(a, b, bias=True) for a, b in pairwise(filters))
    assert count(net) == convs + dense(512, 10)
    assert [m.out_channels for m in net if isinstance(m, nn.Conv2d)] == list(filters[1:])
    assert kinds(net, nn.MaxPool2d) == 5
    assert kinds(net, nn.Linear) == 1
    assert net(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    # ImageNet: 224 pixels become 7; an odd side is rounded up by SAME padding.
    assert on_meta(name, image=(3, 224, 224), outputs=1000).head.in_features == 512 * 49
    assert on_meta(name, image=(3, 33, 33)).head.in_features == 512 * 4
    assert models.VGG(name, (3, 33, 33), 3)(torch.zeros(1, 3, 33, 33)).shape == (1, 3)
    assert kinds(on_meta(name, batch_norm=True), nn.BatchNorm2d) == len(filters) - 1


@pytest.mark.parametrize("name, filters", [("vgg16", VGG16), ("vgg19", VGG19)])
def test_a_narrow_vgg_keeps_its_proportions(name, filters):
    net = models.build(name, image=(1, 28, 28), width=4)
    assert [m.out_channels for m in net if isinstance(m, nn.Conv2d)] == [f // 16 for f in filters[1:]]
    assert net.head.in_features == 32
    assert net(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert net.probed == on_meta(name).probed


def residual_count(stem, widths, blocks):
    """Parameters of a pre-activation network up to its last block; a norm has two per channel."""
    total, channels = stem, widths[0]
    for width in widths:
        for block in range(blocks):
            total += 2 * channels + conv(channels, width) + 2 * width + conv(width, width)
            if channels != width:
                assert block == 0
                total += conv(channels, width, kernel=1)
            channels = width
    return total


def test_resnet18_v2_with_group_norm():
    net = models.build("resnet18_v2", outputs=10)
    widths = (64, 128, 256, 512)
    assert count(net) == residual_count(conv(3, 64, 7), widths, 2) + 2 * 512 + dense(512, 10)
    assert kinds(net, nn.GroupNorm) == 17
    assert kinds(net, nn.BatchNorm2d) == 0
    # 18 layers with weights: the stem, 16 in the blocks, the head; and three on skips.
    assert kinds(net, nn.Conv2d, nn.Linear) == 18 + 3
    assert net(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    assert net.stage4(net.stage3(net.stage2(net.stage1(torch.zeros(1, 64, 56, 56))))).shape[2:] == (7, 7)


@pytest.mark.parametrize("k", [8, 64])
def test_preact_resnet18(k):
    net = models.build("preact_resnet18", k=k)
    widths = (k, 2 * k, 4 * k, 8 * k)
    assert count(net) == residual_count(conv(3, k), widths, 2) + dense(8 * k, 10)
    if k == 64:
        assert count(net) == 11_171_146  # the usual ResNet18 for CIFAR has 11.2 million
    assert models.probed_layers(net) == ("stem", "stage1", "stage2", "stage3", "stage4", "head")
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    x = normal((2, k, 8, 8), generator(0))
    block = net.stage1[0].eval()
    inner = block.conv1(torch.relu(block.norm1(x)))
    torch.testing.assert_close(block(x), x + block.conv2(torch.relu(block.norm2(inner))))


def test_wide_resnet():
    net = models.build("wide_resnet")
    widths = (64, 128, 256)
    assert count(net) == residual_count(conv(3, 64, 5), widths, 4) + 2 * 256 + dense(256, 10)
    # The stem, 3 groups × 4 blocks × 2, two skips (the first group is as wide as the stem), the head.
    assert kinds(net, nn.Conv2d, nn.Linear) == 1 + 24 + 2 + 1
    assert net.stem.weight.shape == (64, 3, 5, 5)
    assert net(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


@pytest.mark.parametrize("skips", [True, False])
def test_resnet11(skips):
    net = models.build("resnet11", skips=skips).eval()
    filters = (3, 64, 128, 128, 128, 256, 256, 256, 512, 512, 512, 256)
    convs = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convs] == list(filters[1:])
    assert len(convs) == 11
    expected = sum(conv(a, b) + 2 * b for a, b in pairwise(filters))
    assert count(net) == expected + dense(256, 10, bias=False)
    shapes = {}
    for name in net.probed:
        net.get_submodule(name).register_forward_hook(lambda m, i, o, n=name: shapes.update({n: o.shape}))
    assert net(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    assert list(shapes) == list(net.probed)  # in the order of the forward pass
    assert [shape[1] for shape in shapes.values()] == list(filters[2:])
    assert shapes["block3"][1] == 512  # N₉
    assert shapes["flatten"] == (1, 256)  # N₁₀
    x = normal((1, 128, 4, 4), generator(0)).abs()
    inner = net.block1.second(net.block1.first(x))
    torch.testing.assert_close(net.block1(x), x + inner if skips else inner)


def test_resnet11_with_scaled_outputs():
    x = normal((4, 3, 16, 16), generator(0))
    plain, scaled = (models.ResNet11(width=4, output_scale=f, seed=1).eval() for f in (1.0, 0.125))
    torch.testing.assert_close(scaled(x), 0.125 * plain(x), rtol=0, atol=0)
    assert plain.probed == scaled.probed
    assert list(plain.state_dict()) == list(scaled.state_dict())


# Published sizes in millions of parameters.
@pytest.mark.parametrize(
    "name, options, millions",
    [
        ("resnet18", {}, 11.7),
        ("resnet50", {}, 25.6),
        ("resnet101", {}, 44.5),
        ("imagenet_vgg16", {}, 138.4),
        ("imagenet_vgg19", {}, 143.7),
        ("vit_b_16", {}, 86.6),
        ("t2t_vit", dict(depth=7), 4.3),
        ("t2t_vit", dict(depth=10), 5.9),
        ("t2t_vit", dict(depth=12), 6.9),
        ("t2t_vit", dict(depth=14), 21.5),
        ("t2t_vit", dict(depth=19), 39.2),
        ("t2t_vit", dict(depth=24), 64.1),
    ],
)
def test_published_sizes(name, options, millions):
    net = on_meta(name, **options)
    fixed = sum(b.numel() for b in net.buffers()) if name == "t2t_vit" else 0  # positions: counted there
    assert (count(net) + fixed) / 1e6 == pytest.approx(millions, abs=0.06)
    for layer in models.probed_layers(net):
        net.get_submodule(layer)
    assert net(torch.zeros(2, 3, 224, 224, device="meta")).shape == (2, 1000)


def test_vit_b_16_counted_by_hand():
    d, tokens = 768, 197
    block = 4 * d + dense(d, 3 * d) + dense(d, d) + dense(d, 4 * d) + dense(4 * d, d)
    expected = conv(3, d, 16, bias=True) + d + tokens * d + 12 * block + 2 * d + dense(d, 10)
    assert count(on_meta("vit_b_16", outputs=10)) == expected
    small = models.build("vit_small", depth=2, width=48)
    assert small(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert small.encoder.pos_embedding.shape == (1, 65, 48)


def test_vit_small_on_digits():
    net = models.vit_small(image_size=28, channels=1, depth=2, width=48, seed=3)
    assert net.encoder.pos_embedding.shape == (1, 50, 48)
    assert net.conv_proj.weight.shape == (48, 1, 4, 4)
    # A truncated normal of deviation 1/√fan-in, as torchvision starts the layer.
    assert net.conv_proj.weight.std().item() == pytest.approx(0.25, rel=0.1)
    assert not net.conv_proj.bias.any()
    again = models.vit_small(image_size=28, channels=1, depth=2, width=48, seed=3)
    assert torch.equal(net.conv_proj.weight, again.conv_proj.weight)
    state = torch.get_rng_state()
    models.vit_small(image_size=28, channels=1, depth=1, width=12)
    assert torch.equal(torch.get_rng_state(), state)


def test_resnets_for_small_images():
    net = models.build("resnet50", outputs=10, small_images=True)
    assert net.conv1.stride == (1, 1)
    assert net.layer1(net.maxpool(net.relu(net.bn1(net.conv1(torch.zeros(1, 3, 32, 32)))))).shape[2:] == (
        32,
        32,
    )
    assert count(net) == 25_557_032 - conv(3, 64, 7) + conv(3, 64, 3) - dense(2048, 1000) + dense(2048, 10)
    assert net(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_t2t_counted_by_hand():
    def mix(inputs, width=64):
        return (
            2 * inputs + dense(inputs, 3 * width) + dense(width, width) + 2 * width + 2 * dense(width, width)
        )

    block = 4 * 256 + dense(256, 768, False) + dense(256, 256) + dense(256, 512) + dense(512, 256)
    expected = mix(3 * 49) + mix(64 * 9) + dense(64 * 9, 256) + 256 + 7 * block + 2 * 256 + dense(256, 5)
    net = models.T2TViT(5, depth=7, image_size=64)
    assert count(net) == expected
    assert net.positions.shape == (1, 1 + 16, 256)
    x = normal((2, 3, 64, 64), generator(0))
    assert net(x).shape == (2, 5)
    torch.testing.assert_close(net(x)[:1], net(x[:1]), rtol=1e-4, atol=1e-6)
    narrow = models.T2TViT(5, depth=7, width=128, image_size=64)
    assert [narrow.embed.out_features, narrow.blocks[0].heads, narrow.head.in_features] == [128, 2, 128]
    assert narrow(x).shape == (2, 5)


def test_linear_attention_estimates_softmax_attention():
    from repalign.models.t2t import LinearAttention

    layer, g = LinearAttention(4, width=8, features=4096), generator(0)
    layer.random.copy_(normal((4096, 8), g))
    q, k = 0.3 * normal((5, 8), g), 0.3 * normal((6, 8), g)
    exact, estimate = torch.exp(q @ k.T), layer.phi(q) @ layer.phi(k).T
    torch.testing.assert_close(estimate, exact, rtol=0.15, atol=0)


@pytest.mark.parametrize("name", models.NAMES)
def test_every_name_lists_layers_that_exist(name):
    options = dict(inputs=12) if name in ("mlp", "rbf") else {}
    net = on_meta(name, **options, **(dict(outputs=2) if name == "mlp" else {}))
    layers = models.probed_layers(net)
    assert len(set(layers)) == len(layers) > 0
    for layer in layers:
        net.get_submodule(layer)


# Every name with small options, and how to ask for gray images where that is possible.
SMALL = {
    "mlp": (dict(inputs=3072, outputs=10, width=8), dict(inputs=1024)),
    "rbf": (dict(inputs=3072, outputs=10, units=8), dict(inputs=1024)),
    "simple_cnn": (dict(filters=4, units=8), dict(image=(1, 32, 32))),
    "vgg16": (dict(width=2), dict(image=(1, 32, 32))),
    "vgg19": (dict(width=2), dict(image=(1, 32, 32))),
    "resnet18_v2": ({}, dict(channels=1)),
    "wide_resnet": (dict(blocks=1, width=1), dict(channels=1)),
    "resnet11": (dict(width=4), dict(channels=1)),
    "preact_resnet18": (dict(k=2), dict(channels=1)),
    "resnet18": (dict(outputs=10, small_images=True), dict(channels=1)),
    "resnet50": (dict(outputs=10, small_images=True), dict(channels=1)),
    "resnet101": (dict(outputs=10), None),
    "imagenet_vgg16": (dict(outputs=10), None),
    "imagenet_vgg19": (dict(outputs=10), None),
    "t2t_vit": (dict(outputs=10, depth=7, image_size=32), dict(channels=1)),
    "vit_b_16": (dict(outputs=10, image_size=32), None),
    "vit_small": (dict(depth=2, width=48), dict(channels=1)),
}
LARGE = ("resnet50", "resnet101", "imagenet_vgg16", "imagenet_vgg19", "vit_b_16")


@pytest.mark.parametrize("name", models.NAMES)
def test_every_network_runs_in_float32_and_reaches_what_it_probes(name):
    options, gray = SMALL[name]
    for channels, more in ((3, {}), (1, gray)):
        if more is None:
            continue
        # The large ones are not worth seconds of drawing weights: shapes are checked all the same.
        place = "meta" if name in LARGE else "cpu"
        with torch.device(place):
            net = models.build(name, **{**options, **more}).eval()
        reached = []
        for layer in models.probed_layers(net):
            net.get_submodule(layer).register_forward_hook(
                lambda m, i, o, layer=layer, reached=reached: reached.append(layer)
            )
        out = net(normal((2, channels, 32, 32), generator(0)).to(place))
        assert out.shape == (2, 10)
        assert out.dtype == torch.float32
        assert place == "meta" or out.isfinite().all()
        assert tuple(reached) == models.probed_layers(net)
        assert {p.dtype for p in net.parameters()} == {torch.float32}


def build_bad(name, **options):
    return lambda: models.build(name, **options)


@pytest.mark.parametrize(
    "call, message",
    [
        (build_bad("resnet81"), "Did you mean resnet18"),
        (build_bad("transformer-xl"), "Choose one of mlp"),
        (build_bad("mlp", inputs=3, outputs=2, activation="gelu"), "relu, tanh"),
        (build_bad("mlp", inputs=3, outputs=2, init="xavier"), "he, lecun"),
        (build_bad("mlp", inputs=3, outputs=2, depth=0), "at least one hidden layer"),
        (build_bad("mlp", inputs=3, outputs=2, depth=3, width=(4, 5)), "leave depth out"),
        (build_bad("rbf", inputs=3, bandwidth=0.0), "above 0"),
        (build_bad("rbf", inputs=3, centers=torch.ones(2, 2)), r"\(1024, 3\)"),
        (build_bad("simple_cnn", image=(32, 32)), "channels, height, width"),
        (build_bad("simple_cnn", padding="full"), "same or valid"),
        (build_bad("simple_cnn", image=(3, 8, 8), padding="valid", convs=9), "nothing is left"),
        (build_bad("t2t_vit", depth=13), "7, 10, 12, 14"),
        (build_bad("t2t_vit", image_size=100), "multiple of 16"),
        (build_bad("t2t_vit", width=100), "multiple of 64"),
        (build_bad("vit_small", patch=5), "divide without remainder"),
        (build_bad("imagenet_vgg16", small_images=True), "residual networks"),
        (build_bad("resnet50", channels=1), "3 channels, not 1: use small_images"),
        (build_bad("vgg16", width=0), "at least 1"),
        (build_bad("resnet11", output_scale=0), "above 0"),
        (lambda: models.VGG("vgg11"), "vgg16, vgg19"),
        (lambda: models.imagenet("alexnet"), "resnet18"),
        (lambda: models.initialize(nn.Linear(2, 2), "width"), "pass the width"),
        (lambda: models.probed_layers(nn.Sequential(nn.Linear(2, 2))), "set model.probed"),
    ],
)
def test_bad_options_say_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_an_unknown_option_is_named():
    with pytest.raises(TypeError, match="mlp has no option widht: it takes inputs, outputs, depth, width"):
        models.build("mlp", inputs=3, outputs=2, widht=3)
