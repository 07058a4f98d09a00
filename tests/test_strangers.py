"""Models that nobody here wrote: what goes in, which layers there are, and which axis holds the features."""

import os
import weakref
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from repalign import data, train
from repalign.alignment import alignment_curve, cumulative_power, kernel_spectrum, spectrum
from repalign.features import activation_rates, extract, layers
from repalign.kernels import cka, cka_grid
from repalign.linear import squared_descent
from repalign.machine.vision import torchvision
from repalign.models.initialization import generator, normal


def images(n=5, size=32):
    return normal((n, 3, size, size), generator(0))


def words(n=7, length=6, vocabulary=50):
    return torch.randint(0, vocabulary, (n, length), generator=generator(1))


def hooked(model, name, *args, **kwargs):
    """What a user would write: one hook, one pass over everything."""
    found = []
    handle = model.get_submodule(name).register_forward_hook(lambda _m, _i, output: found.append(output))
    model.eval()
    with torch.no_grad():
        model(*args, **kwargs)
    handle.remove()
    return found[0]


class Block(nn.Module):
    """Attention of one head and a small network, as language models have them; returns a tuple."""

    def __init__(self, d):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(d), nn.Linear(d, 3 * d)
        self.up, self.down, self.act = nn.Linear(d, 2 * d), nn.Linear(2 * d, d), nn.GELU()

    def forward(self, x, mask):
        q, k, v = self.mix(self.norm(x)).chunk(3, dim=-1)
        scores = (q @ k.mT).masked_fill(mask[:, None] == 0, -torch.inf)
        x = x + scores.softmax(-1) @ v
        return x + self.down(self.act(self.up(x))), scores


class Output(OrderedDict):
    """Named fields that are also a mapping."""


@dataclass
class Fields:
    loss: torch.Tensor | None
    last: torch.Tensor
    hidden: tuple


class Language(nn.Module):
    """A language model in the manner of the well-known library: keywords in, named fields out."""

    def __init__(self, d=8, depth=2, kind=Output):
        super().__init__()
        self.kind = kind
        self.embeddings = nn.Embedding(50, d)
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(Block(d) for _ in range(depth))
        self.head = nn.Linear(d, 2)

    def forward(self, input_ids, attention_mask=None):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        states = [self.embeddings(input_ids)]
        for block in self.encoder.layer:
            states.append(block(states[-1], mask)[0])
        logits = self.head(states[-1][:, 0])
        if self.kind is Fields:
            return Fields(None, logits, tuple(states))
        return self.kind(logits=logits, hidden_states=tuple(states))


# What goes in.


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_token_ids_stay_whole_numbers(precision):
    net = nn.Sequential(nn.Embedding(1000, 4), nn.Flatten(), nn.Linear(12, 2)).to(precision)
    ids = torch.tensor([[257, 513, 999], [1, 2, 3], [998, 997, 511]])  # bfloat16 holds no 257
    expected = net[0].weight[ids].flatten(1).detach()
    assert torch.equal(extract(net, ids, ["0"])["0"], expected)
    arrays = extract(net, ids.numpy(), ["0"])["0"]
    np.testing.assert_array_equal(arrays, expected.float())
    assert extract(nn.Embedding(1000, 4), torch.arange(3))["output"].shape == (3, 4)


def test_integers_for_a_model_of_numbers_are_an_error_with_advice():
    with pytest.raises(RuntimeError) as caught:
        extract(nn.Sequential(nn.Linear(3, 2)), torch.ones(4, 3, dtype=torch.uint8), ["0"])
    assert "pass x.float()" in caught.value.__notes__[0]


@pytest.mark.parametrize("kind", [Output, Fields])
def test_dict_and_tuple_inputs_and_named_outputs(kind):
    model, ids = Language(kind=kind), words()
    mask = torch.ones_like(ids)
    mask[2, 3:] = 0
    expected = hooked(model, "encoder.layer.1", ids, mask)[0].flatten(1)
    named = {"input_ids": ids, "attention_mask": mask}
    for x in (named, (ids, mask), {k: v.numpy() for k, v in named.items()}):
        found = extract(model, x, batch_size=3)
        assert list(found) == ["encoder.layer.0", "encoder.layer.1"]
        np.testing.assert_allclose(found["encoder.layer.1"], expected, rtol=1e-5, atol=1e-6)
    logits = extract(model, named, "output")["output"]
    assert logits.shape == (7, 2)
    tokens = extract(model, named, "embeddings", pool="token")["embeddings"]
    torch.testing.assert_close(tokens, model.embeddings(ids[:, 0]).detach())


def test_batches_from_a_loader(tmp_path):
    model, ids = Language(), words(n=7)
    labels = torch.zeros(7)
    expected = extract(model, ids)
    pairs = DataLoader(TensorDataset(ids, labels), batch_size=3)
    alone = DataLoader(ids, batch_size=3)
    dicts = [{"input_ids": part} for part in ids.split(3)]
    nested = (((part, torch.ones_like(part)), None) for part in ids.split(3))  # can be read once only
    for source in (pairs, alone, dicts, nested):
        found = extract(model, source)
        for name, rows in expected.items():
            torch.testing.assert_close(found[name], rows)
    on_disk = extract(model, pairs, out=tmp_path)
    for name, rows in expected.items():
        np.testing.assert_allclose(on_disk[name], rows, rtol=1e-5, atol=1e-6)
        assert np.load(tmp_path / f"{name}.npy").shape == rows.shape
    assert len(os.listdir(tmp_path)) == len(expected)


@pytest.mark.parametrize(
    "x, error, message",
    [
        ((words(), words(n=3)), ValueError, "have 3 and 7"),
        ([], ValueError, "at least one batch"),
        ([(words(), words(), words())], ValueError, "but is 3 things"),
        (["text"], TypeError, "but is str"),
        (7, TypeError, "into a DataLoader first"),
        ({"input_ids": words()[:, :1] / 0}, ValueError, "finite"),
        ([words(length=4), words(length=5)], ValueError, "32 numbers per sample in one batch and 40"),
    ],
)
def test_bad_input_says_what_to_do(x, error, message):
    with pytest.raises(error, match=message):
        extract(Language(), x, ["encoder.layer.0"])


def test_a_model_without_parameters_and_one_wrapped_in_others():
    x = images()
    assert torch.equal(extract(nn.Flatten(), x)["output"], x.flatten(1))
    assert extract(nn.Flatten(), x.double())["output"].dtype == torch.float64
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    expected = extract(net, x)["1"]
    compiled = torch.compile(net, backend="eager")
    compiled(x)
    for wrapped in (nn.DataParallel(net), compiled, nn.DataParallel(compiled)):
        assert torch.equal(extract(wrapped, x)["1"], expected)
    inner = nn.Sequential(OrderedDict(body=torch.compile(nn.Sequential(net), backend="eager")))
    inner(x)
    assert torch.equal(extract(inner, x, "body._orig_mod.0.1")["body._orig_mod.0.1"], expected)


class Inferring(nn.Sequential):
    @torch.inference_mode()
    def forward(self, x):
        return super().forward(x)


def test_a_model_that_runs_in_inference_mode():
    net, x = Inferring(nn.Linear(3, 4), nn.ReLU()), torch.ones(2, 3)
    assert torch.equal(extract(net, x)["1"], net(x))


class OneByOne(nn.Module):
    """Its layer sees the samples one after the other, as often as there are samples."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return torch.stack([self.layer(row) for row in x])


def test_a_layer_that_runs_once_per_sample():
    net, x = OneByOne(), torch.ones(4, 3)
    assert list(extract(net, x)) == ["output"]
    with pytest.raises(ValueError, match="a row per sample, but does not"):
        extract(net, x, ["layer#1"])


def test_half_precision_stays_half_and_pools_without_overflow():
    net = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.ReLU()).half()
    net[0].weight.data.fill_(100.0)
    rows = extract(net, torch.full((2, 3, 16, 16), 100.0), pool="mean")["1"]
    assert rows.dtype == torch.float16
    torch.testing.assert_close(rows, torch.full((2, 4), 30000.0, dtype=torch.float16))


# Which layers.


class Unet(nn.Module):
    """Two levels down and up, with connections across and functional activations."""

    def __init__(self):
        super().__init__()
        self.down1, self.down2 = self.twice(3, 4), self.twice(4, 8)
        self.middle = self.twice(8, 16)
        self.up2, self.up1 = self.twice(24, 8), self.twice(12, 4)
        self.out = nn.Conv2d(4, 2, 1)

    @staticmethod
    def twice(a, b):
        block = nn.Module()
        block.convs = nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1))
        block.forward = lambda x: nn.functional.relu(block.convs(x))
        return block

    def forward(self, x):
        def up(t):
            return nn.functional.interpolate(t, scale_factor=2)

        a = self.down1(x)
        b = self.down2(nn.functional.max_pool2d(a, 2))
        c = self.middle(nn.functional.max_pool2d(b, 2))
        b = self.up2(torch.cat([up(c), b], 1))
        return self.out(self.up1(torch.cat([up(b), a], 1)))


class Plain(nn.Module):
    """Layers as attributes, all else by functions."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).mean((2, 3)))


class Speech(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.words = nn.Embedding(50, 5)
        self.lstm = nn.LSTM(5, 4, bidirectional=True, **options)
        self.first = options.get("batch_first", False)

    def forward(self, ids):
        x = self.words(ids)
        out, _ = self.lstm(x if self.first else x.transpose(0, 1))
        return out


def vit():
    """torchvision's vision transformer, small."""
    made = torchvision().models.VisionTransformer
    return made(image_size=32, patch_size=16, num_layers=2, num_heads=2, hidden_dim=12, mlp_dim=16)


def swin():
    """torchvision's Swin transformer, small."""
    sizes = dict(patch_size=[4, 4], embed_dim=24, depths=[2, 2], num_heads=[2, 2], window_size=[4, 4])
    return torchvision().models.SwinTransformer(**sizes)


def convnext():
    stages = torchvision().models.convnext.CNBlockConfig
    return torchvision().models.ConvNeXt([stages(12, 24, 2), stages(24, None, 2)])


RESNET = ["relu", *(f"layer{i}.{j}" for i in (1, 2, 3, 4) for j in (0, 1))]


@pytest.mark.parametrize(
    "make, x, expected",
    [
        (lambda: torchvision().models.resnet18(weights=None), images(2), RESNET),
        (vit, images(2), [*(f"encoder.layers.encoder_layer_{i}" for i in range(2)), "encoder"]),
        (swin, images(2), [f"features.{i}" for i in ("1.0", "1.1", "2", "3.0", "3.1")]),
        (convnext, images(2), [f"features.{i}" for i in ("0", "1.0", "1.1", "3.0", "3.1")]),
        (
            lambda: torchvision().models.mobilenet_v2(weights=None),
            images(2),
            [f"features.{i}" for i in range(19)],
        ),
        (
            lambda: torchvision().models.squeezenet1_1(weights=None),
            images(2),
            [*(f"features.{i}" for i in (1, 3, 4, 6, 7, 9, 10, 11, 12)), "classifier.2"],
        ),
        (Unet, images(2), ["down1", "down2", "middle", "up2", "up1"]),
        (Plain, images(2), ["conv", "fc"]),
        (Language, words(), ["encoder.layer.0", "encoder.layer.1"]),
        (Speech, words(), ["lstm"]),
        (
            lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
            normal((3, 5, 8), generator(0)),
            ["layers.0", "layers.1"],
        ),
    ],
)
def test_without_names_the_blocks_are_taken(make, x, expected):
    model = make()
    found = extract(model, x)
    assert list(found) == expected
    assert expected == [row.name for row in sorted(layers(model, x), key=order(expected)) if row.picked]
    last = hooked(model, expected[-1], x)
    last = last[0] if isinstance(last, tuple) else last
    if not isinstance(model, Speech):  # whose samples are on the second axis
        torch.testing.assert_close(found[expected[-1]], last.flatten(1), rtol=1e-4, atol=1e-5)


def order(names):
    return lambda row: names.index(row.name) if row.name in names else -1


def test_model_probed_comes_first():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    net.probed = ("2",)
    assert list(extract(net, torch.ones(2, 3))) == ["2"]
    assert [row.name for row in layers(net, torch.ones(2, 3)) if row.picked] == ["2"]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.act, self.idle = nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)

    def forward(self, x):
        for _ in range(3):
            x = self.act(self.cell(x))
        return x


def test_a_call_of_several_is_chosen_by_number_or_averaged(tmp_path):
    net, x = Recurrent(), normal((5, 3), generator(0))
    with torch.no_grad():
        steps = [torch.tanh(net.cell(x))]
        for _ in range(2):
            steps.append(torch.tanh(net.cell(steps[-1])))
    found = extract(net, x, ["act#3", "act#1", "act#mean"], batch_size=2)
    torch.testing.assert_close(found["act#3"], steps[2])
    torch.testing.assert_close(found["act#1"], steps[0])
    torch.testing.assert_close(found["act#mean"], torch.stack(steps).mean(0))
    assert list(extract(net, x)) == ["output"]  # nothing else runs once
    assert extract(net, x, "act#2", out=tmp_path)["act#2"].shape == (5, 3)


def test_the_list_of_layers():
    table = layers(Recurrent(), torch.ones(2, 3))
    assert {row.name: (row.calls, row.shape, row.picked) for row in table} == {
        "cell": (3, (3,), False),
        "act": (3, (3,), False),
        "idle": (0, None, False),
        "output": (1, (3,), True),
    }
    lines = str(table).splitlines()
    assert lines[0].split()[:3] == ["layer", "class", "calls"]
    assert lines[3].split() == ["idle", "Linear", "0", "-", "12"]
    assert lines[4].startswith("*  output")
    table = layers(swin(), images(1))
    assert {row.name: row for row in table}["features.1.0"].shape == (8, 8, 24)
    assert all(row.channels == "last" for row in table if row.picked)


# Which axis.


@pytest.mark.parametrize("batch_first", [True, False])
def test_recurrent_layers_give_a_row_per_sample(batch_first):
    net = Speech(batch_first=batch_first)
    for n in (6, 2, 1):  # as many samples as steps of time, and fewer
        ids = words(n=n)
        with torch.no_grad():
            out, _ = net.lstm(net.words(ids) if batch_first else net.words(ids).transpose(0, 1))
        out = out if batch_first else out.transpose(0, 1)
        torch.testing.assert_close(extract(net, ids, batch_size=4)["lstm"], out.flatten(1))
        torch.testing.assert_close(extract(net, ids, pool="mean")["lstm"], out.mean(1))


def test_samples_taken_for_time_are_refused():
    x = normal((6, 4, 5), generator(0))
    refused = pytest.raises(ValueError, match="a row per sample, but does not")
    with pytest.warns(UserWarning, match="samples depend on each other"), refused:
        extract(nn.LSTM(5, 3), x, "output")
    right = nn.LSTM(5, 3, batch_first=True)
    torch.testing.assert_close(extract(right, x)["output"], right(x)[0].flatten(1).detach())


def test_padded_sequences_in_a_transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    x, padding = normal((5, 4, 8), generator(0)), torch.zeros(5, 4, dtype=torch.bool)
    padding[1, 2:] = True
    found = extract(model, {"src": x, "src_key_padding_mask": padding}, ["layers.0", "layers.1.linear1"])
    assert {name: rows.shape[1] for name, rows in found.items()} == {"layers.0": 32, "layers.1.linear1": 64}
    model.eval()
    with torch.no_grad():
        alone = model.layers[0](x[1:2, :2]).flatten(1)  # padding changes nothing before it
    torch.testing.assert_close(found["layers.0"][1:2, :16], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make, channels", [(swin, "last"), (convnext, "first")])
def test_maps_are_pooled_over_positions(make, channels):
    torch.manual_seed(0)
    model, x = make(), images(8)
    layer = "features.1.1"
    output = hooked(model, layer, x)
    expected = output.mean((1, 2) if channels == "last" else (2, 3))
    wrong = output.mean((2, 3) if channels == "last" else (1, 2))
    found = extract(model, x, [layer], pool="mean")[layer]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert float(cka(found, expected)) > 0.999
    assert float(cka(wrong, expected)) < 0.999
    told = extract(model, x, [layer], pool="max", channels={layer: channels})[layer]
    torch.testing.assert_close(told, output.amax((1, 2) if channels == "last" else (2, 3)))


@pytest.mark.parametrize("name", ["densenet121", "shufflenet_v2_x0_5", "mobilenet_v3_small"])
def test_every_block_of_a_convolutional_network_is_channels_first(name):
    model = getattr(torchvision().models, name)(weights=None)
    rows = [row for row in layers(model, images(1)) if row.shape and len(row.shape) == 3]
    assert rows
    assert {row.channels for row in rows} == {"first"}


def test_sequences_of_convolutions_are_not_tokens():
    net = nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU())
    x = normal((5, 3, 9), generator(0))
    torch.testing.assert_close(extract(net, x, pool="mean")["1"], net(x).mean(2).detach())
    with pytest.raises(ValueError, match="channels first: use mean or max"):
        extract(net, x, pool="token")


class Mixed(nn.Module):
    """A convolution, then functions: nothing tells where the channels are in the end."""

    def __init__(self, turn):
        super().__init__()
        self.conv, self.linear, self.turn = nn.Conv2d(3, 8, 1), nn.Linear(8, 8), turn
        self.same = nn.Identity()

    def forward(self, x):
        x = self.linear(self.conv(x).permute(0, 2, 3, 1))
        return self.same((x.permute(0, 3, 1, 2) if self.turn else x) * 1).sum()


@pytest.mark.parametrize("turn", [True, False])
def test_where_nothing_tells_the_user_must(turn):
    net, x = Mixed(turn), images(4, size=8)
    with pytest.raises(ValueError, match=r"'same' gives \(8, 8, 8\) .* pass channels='first' or 'last'"):
        extract(net, x, ["same"], pool="mean")
    net.eval()
    with torch.no_grad():
        expected = net.linear(net.conv(x).permute(0, 2, 3, 1)).mean((1, 2))
    where = "first" if turn else "last"
    torch.testing.assert_close(extract(net, x, ["same"], pool="mean", channels=where)["same"], expected)
    with pytest.raises(ValueError, match="'first' or 'last', but is 'middle'"):
        extract(net, x, ["same"], channels="middle")
    with pytest.raises(ValueError, match="layers that are taken, but names other"):
        extract(net, x, ["same"], channels={"other": "last"})


class Patches(nn.Module):
    """A convolution cuts patches; nothing after it is a module of torch."""

    def __init__(self):
        super().__init__()
        self.cut, self.same = nn.Conv2d(3, 4, 4, stride=4), nn.Identity()

    def forward(self, x):
        return self.same(self.cut(x).flatten(2).mT * 2)


def test_maps_say_nothing_about_tokens():
    with pytest.raises(ValueError, match=r"'same' gives \(4, 4\) .* pass channels"):
        extract(Patches(), images(2, size=8), ["same"], pool="mean")


def test_the_class_token():
    model = vit()
    layer, x = "encoder.layers.encoder_layer_0", images(3)
    expected = hooked(model, layer, x)[:, 0]
    torch.testing.assert_close(extract(model, x, [layer], pool="token")[layer], expected)


# How often units are active.


def test_activation_rates_are_those_of_the_activations():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3600, 6), nn.ReLU())
    x = images(7)
    active = (extract(net, x, ["1"])["1"] > 0).double().reshape(7, 4, -1)
    rates = activation_rates(net, x, batch_size=3)
    assert list(rates) == ["1", "4"]
    torch.testing.assert_close(rates["1"], active.mean(0).flatten())
    assert rates["4"].shape == (6,)
    channel = activation_rates(net, DataLoader(x, batch_size=2), ["1"], pool="mean")["1"]
    torch.testing.assert_close(channel, active.mean((0, 2)), rtol=1e-6, atol=0)
    anywhere = activation_rates(net, x.numpy(), ["1"], pool="max", batch_size=2)["1"]
    np.testing.assert_array_equal(anywhere, active.amax(2).mean(0))
    high = activation_rates(net, x, ["1"], above=0.5)["1"]
    torch.testing.assert_close(high, (extract(net, x, ["1"])["1"] > 0.5).double().mean(0))


def test_activation_rates_keep_no_activations():
    net, outputs = nn.Sequential(nn.Linear(3, 5), nn.ReLU()), []
    net[1].register_forward_hook(lambda _m, _i, output: outputs.append(weakref.ref(output)))

    def batches():
        for _ in range(4):
            assert not any(output() is not None for output in outputs)
            yield torch.ones(2, 3)

    activation_rates(net, batches())
    assert len(outputs) == 6  # two passes to look, four to count


PHI, CLASSES = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize(
    "measure",
    [
        lambda y: spectrum(PHI, y),
        lambda y: spectrum([(PHI[:6], y[:6]), (PHI[6:], y[6:])]),
        lambda y: alignment_curve(PHI.numpy(), y.numpy()),
        lambda y: cumulative_power(PHI, y),
        lambda y: kernel_spectrum(PHI @ PHI.mT, y),
        lambda y: squared_descent(PHI, y, PHI, y, eta=0.1, steps=torch.tensor([0, 1])),
    ],
)
def test_class_numbers_in_place_of_targets_are_told(measure, kind):
    with pytest.warns(UserWarning, match=r"count as numbers.*one_hot"):
        measure(CLASSES.to(kind))
    measure((2 * (CLASSES > 0) - 1).to(torch.int64))  # ±1 are targets, whatever their kind
    measure(CLASSES.float())


@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        (CLASSES.numpy(), TypeError, "are ndarray: pass torch.as_tensor"),
        ([0, 1], TypeError, "are list: pass torch.as_tensor"),
        (CLASSES.int(), ValueError, r"torch\.int32 of shape \(12,\).*y\.long\(\)"),
    ],
)
def test_labels_of_another_kind(y, error, message):
    with pytest.raises(error, match=message):
        data.one_hot(y)


class Logits(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x):
        return {"logits": self.inner(x)}


@pytest.mark.parametrize(
    ("model", "x", "y", "message"),
    [
        (nn.Linear(4, 3), PHI.tolist(), CLASSES.numpy(), r"a list and a Tensor.*torch\.from_numpy"),
        (nn.Linear(4, 3), PHI.numpy(), np.array(["cat"] * 12), r"y should hold numbers.*numpy\.unique"),
        (nn.Linear(4, 3), TensorDataset(PHI, CLASSES), CLASSES, "a TensorDataset and a Tensor"),
        (nn.Linear(4, 3), DataLoader(TensorDataset(PHI)), CLASSES, "a DataLoader and a Tensor"),
        (nn.Linear(4, 3), PHI.to(torch.uint8), CLASSES, r"bytes.*x\.float\(\) / 255"),
        (Logits(), PHI, CLASSES, "returned a dict"),
    ],
)
def test_what_cannot_be_trained_is_told(model, x, y, message):
    with pytest.raises(TypeError, match=message):
        train.fit(model, x, y, epochs=1)


def test_arrays_for_predictions_are_told():
    with pytest.raises(TypeError, match="x should be a tensor, but is a ndarray"):
        train.accuracy(nn.Linear(4, 3), PHI.numpy(), CLASSES)


def test_a_dict_of_representations_is_told():
    with pytest.raises(TypeError, match=r"list\(reps\.values\(\)\)"):
        cka_grid({"a": PHI, "b": PHI})


# In which order, with which labels.


@pytest.mark.parametrize(
    "options",
    [
        dict(shuffle=True),
        dict(sampler=WeightedRandomSampler([1.0] * 12, 12)),
        dict(batch_sampler=BatchSampler(SubsetRandomSampler(range(12)), 5, drop_last=False)),
    ],
)
def test_a_random_order_is_told_unless_labels_come_along(options):
    torch.manual_seed(0)
    net, pairs = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), TensorDataset(PHI, torch.arange(12))
    size = {} if "batch_sampler" in options else dict(batch_size=5)
    with pytest.warns(UserWarning, match="random order.*shuffle=False, or return_labels=True"):
        extract(net, DataLoader(pairs, **size, **options))
    found, labels = extract(net, DataLoader(pairs, **size, **options), return_labels=True)
    assert labels.tolist() != list(range(12))
    torch.testing.assert_close(found["1"], net(PHI[labels]).detach())
    activation_rates(net, DataLoader(pairs, **size, **options))  # which has no order


def test_labels_come_in_the_order_of_the_rows():
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    loader = DataLoader(TensorDataset(PHI, CLASSES), batch_size=5)
    found, labels = extract(net, loader, return_labels=True)
    assert torch.equal(labels, CLASSES)
    assert len(found["1"]) == 12
    words_of = [(PHI[:6], ["cat"] * 6), (PHI[6:], ["dog"] * 6)]
    assert extract(net, words_of, return_labels=True)[1] == ["cat"] * 6 + ["dog"] * 6
    arrays = [(PHI[:6].numpy(), CLASSES[:6].numpy()), (PHI[6:].numpy(), CLASSES[6:].numpy())]
    np.testing.assert_array_equal(extract(net, arrays, return_labels=True)[1], CLASSES.numpy())
    dicts = [{"input_ids": words(), "label": CLASSES[:7]}]

    class Labeled(Language):
        def forward(self, input_ids, label=None):
            return super().forward(input_ids)

    assert torch.equal(extract(Labeled(), dicts, return_labels=True)[1], CLASSES[:7])
    with pytest.raises(ValueError, match="labels in every batch"):
        extract(net, [PHI], return_labels=True)
    with pytest.raises(ValueError, match="all samples at once"):
        extract(net, PHI, return_labels=True)


# Samples that are not alone, and random numbers.


class BatchStatistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)

    def forward(self, x):
        return self.norm(x)


class AlwaysDropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(nn.functional.dropout(x + 10, 0.5, training=True))


class Neighbors(nn.Module):
    """Each sample takes the mean of its nearest other one and itself."""

    def __init__(self):
        super().__init__()
        self.same = nn.Linear(4, 4)

    def forward(self, x):
        near = torch.cdist(x, x).topk(2, largest=False).indices
        return self.same(x[near].mean(1))


@pytest.mark.parametrize("n", [2, 12])
@pytest.mark.parametrize(
    "model, message",
    [
        (BatchStatistics, "layer 'norm' depends on the other samples"),
        (AlwaysDropping, "layer 'act' draws random numbers"),
        (Neighbors, "layer 'same' depends on the other samples"),
    ],
)
def test_rows_that_depend_on_their_batch_are_told(model, message, n):
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match=message):
        extract(model(), PHI[:n])


@pytest.mark.parametrize("precision", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [1, 2, 12])
def test_rounding_is_no_company(precision, n):
    torch.manual_seed(0)
    deep = [part for _ in range(20) for part in (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())]
    net = nn.Sequential(nn.Linear(4, 64), *deep, nn.Dropout(0.5)).to(precision)
    assert len(extract(net, PHI[:n])) == 20  # no warning, which would be an error


# Padding.


class Means(nn.Module):
    """Tokens of one feature, their own number; a layer of one position fewer; channels first."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding.from_pretrained(torch.arange(50.0)[:, None])
        self.shorter, self.turned = nn.LayerNorm(1), nn.Conv1d(1, 1, 1)
        nn.init.ones_(self.turned.weight)
        nn.init.zeros_(self.turned.bias)

    def forward(self, ids, attention_mask=None, key_padding_mask=None):
        x = self.words(ids)
        self.shorter(x[:, 1:])
        return self.turned(x.mT)


IDS = torch.tensor([[5, 7, 49, 49], [1, 2, 3, 9]])
MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])


@pytest.mark.parametrize(
    "pool, expected",
    [("mean", [6.0, 3.75]), ("max", [7.0, 9.0]), ("token", [5.0, 1.0]), ("last", [7.0, 9.0])],
)
def test_padding_is_not_pooled(pool, expected):
    net, layers_of = Means(), ["words"] if pool in ("token", "last") else ["words", "turned"]
    for x in (
        {"ids": IDS, "attention_mask": MASK},
        {"ids": IDS, "key_padding_mask": MASK == 0},
        (IDS, MASK),
        [((IDS[:1], MASK[:1]), None), ((IDS[1:], MASK[1:]), None)],
        {"ids": IDS.numpy(), "attention_mask": MASK.numpy()},
    ):
        for rows in extract(net, x, layers_of, pool=pool).values():
            assert rows.flatten().tolist() == expected
    # On the left as well: the first real token is not the first.
    left = extract(net, {"ids": IDS.flip(1), "attention_mask": MASK.flip(1)}, "words", pool=pool)
    swapped = {"token": [7.0, 9.0], "last": [5.0, 1.0]}
    assert left["words"].flatten().tolist() == swapped.get(pool, expected)
    everything = extract(net, IDS, "words", pool=pool)["words"].flatten()
    assert everything[1] == expected[1]
    assert pool == "token" or everything[0] != expected[0]


def test_where_padding_is_not_known_it_is_told():
    net = Means()
    with pytest.warns(UserWarning, match="'shorter' gives .* not known which positions are padding"):
        extract(net, (IDS, MASK), "shorter", pool="mean")
    extract(net, (IDS, torch.ones_like(MASK)), "shorter", pool="mean")  # nothing is padded
    extract(net, (IDS, MASK), "shorter")
    with pytest.warns(UserWarning, match="attention_mask should be"):
        extract(net, (IDS, MASK[:, None]), "words", pool="mean")
    with pytest.raises(ValueError, match="should have a token to pool"):
        extract(net, (IDS, 0 * MASK), "words", pool="mean")


def test_a_mean_over_real_tokens_does_not_overflow_in_half_precision():
    net = nn.Sequential(nn.Embedding.from_pretrained(torch.full((3, 2), 30000.0).half()))
    real = torch.arange(512)[None] < torch.tensor([[400], [512]])

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, ids, attention_mask):
            return self.net(ids)

    ids = torch.zeros(2, 512, dtype=torch.long)
    rows = extract(Wrapped(), (ids, real), "net.0", pool="mean")["net.0"]
    torch.testing.assert_close(rows, torch.full((2, 2), 30000.0).half(), rtol=2e-3, atol=0)


def test_a_loader_of_ids_and_masks_does_not_lose_the_mask():
    net = Means()
    pairs, triples = TensorDataset(IDS, MASK), TensorDataset(IDS, MASK, torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="Say inputs=2 for the mask, inputs=1 for labels"):
        extract(net, DataLoader(pairs, batch_size=2), "words", pool="mean")
    for data_set in (pairs, triples):
        loader = DataLoader(data_set, batch_size=2)
        found = extract(net, loader, "words", pool="mean", inputs=2)["words"]
        assert found.flatten().tolist() == [6.0, 3.75]
        assert layers(net, loader, inputs=2)[0].shape == (4, 1)
    _, labels = extract(net, DataLoader(triples), "words", inputs=2, return_labels=True)
    assert labels.tolist() == [1, 0]
    _, labels = extract(net, DataLoader(pairs), "words", inputs=1, return_labels=True)
    assert torch.equal(labels, MASK)
    with pytest.raises(ValueError, match="from 1 to 2, the things of a batch, but is 3"):
        extract(net, DataLoader(pairs), inputs=3)


# Layers by number, and large ones.


def test_layers_by_number():
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    expected = extract(net, PHI, ["1"])
    for asked in (1, [1], ["1"], "1"):
        found = extract(net, PHI, asked)
        assert list(found) == ["1"]
        assert torch.equal(found["1"], expected["1"])
    with pytest.raises(ValueError, match="no layer '7'"):
        extract(net, PHI, [7])
    with pytest.raises(TypeError, match="names of modules, or their numbers, but one is a ReLU"):
        extract(net, PHI, [net[1]])


def test_whole_maps_that_fill_the_memory_are_told(tmp_path):
    net, x = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU()), images(2, size=224)
    with pytest.warns(UserWarning, match=r"6 MB for a sample, 0\.0 GB for 2 samples: pool='mean'"):
        extract(net, x)
    assert extract(net, x, pool="mean")["1"].shape == (2, 32)
    assert extract(net, x, out=tmp_path)["1"].shape[0] == 2


def test_arrays_train_like_tensors():
    torch.manual_seed(0)
    ours, theirs = nn.Linear(4, 3), nn.Linear(4, 3)
    ours.load_state_dict(theirs.state_dict())
    how = dict(epochs=2, test=(PHI, CLASSES))
    expected = train.fit(theirs, PHI, CLASSES, **how)
    doubles, numbers = PHI.double().numpy(), CLASSES.numpy()
    numbers.flags.writeable = False
    found = train.fit(ours, doubles, numbers, epochs=2, test=(doubles, numbers))
    assert torch.equal(ours.weight, theirs.weight)
    assert found.test_loss == expected.test_loss


@pytest.mark.parametrize(
    "measure",
    [
        lambda y: spectrum(PHI.numpy(), y),
        lambda y: spectrum(PHI, y.tolist()),
        lambda y: cka(PHI.numpy(), y[:, None]),
        lambda y: cumulative_power(PHI, y),
    ],
)
def test_words_for_labels_are_told(measure):
    with pytest.raises(TypeError, match=r"holds words.*numpy\.unique"):
        measure(np.array(["cat", "dog"] * 6))
