"""What the papers do with training, each at the size of a test."""

import pytest
import torch
from torch import nn

from repalign import data, features, models, tangent, train
from repalign.kernels import cka_grid
from repalign.probes import fit_probes
from repalign.train import SeesModel, Snapshots, fit, log_epochs, log_steps
from test_train import weights


def images(n=48, classes=3, size=8, seed=0):
    """Noise around a pattern for each class."""
    g = torch.Generator().manual_seed(seed)
    patterns = torch.randn(10, 3, size, size, generator=torch.Generator().manual_seed(99))
    y = torch.arange(n) % classes
    return patterns[y] + 0.5 * torch.randn(n, 3, size, size, generator=g), y


def test_maennel_fine_tuning_curves_at_fractions_of_epochs():
    """Pre-train on random labels, fine-tune on others: accuracy on the whole training set."""
    x, _ = images()
    fresh, real = images(seed=1)
    net = models.SimpleCNN((3, 8, 8), 3, convs=1, filters=4, units=8, seed=0)
    how = dict(optimizer="momentum", lr=0.02, batch_size=12, schedule="thirds")
    fit(net, x, data.random_labels(len(x), 3, seed=0), epochs=4, **how)
    net = models.replace_head(net, 3, seed=0)
    seen = []
    history = fit(
        net, fresh, real, epochs=3, at=(), at_steps=range(13), full_train=True,
        measure=lambda m, epoch: seen.append((epoch, train.accuracy(m, fresh, real))), **how,
    )  # fmt: skip
    assert [(row["epoch"], row["train_accuracy"]) for row in history.rows()] == seen
    assert [epoch for epoch, _ in seen] == [step / 4 for step in range(13)]
    assert history.train_accuracy[-1] > history.train_accuracy[0]


def test_lou_alignment_is_measured_densely_in_the_first_epoch():
    x, y = images(size=4)
    x = x.flatten(1)
    net = models.MLP(48, 3, depth=3, width=8, seed=0)
    steps = log_steps(n=48, batch_size=4, count=6)
    history = fit(
        net, x, y, epochs=2, batch_size=4, lr=0.01, at=[0, 1, 2], at_steps=steps,
        measure=lambda m, epoch: tangent.label_alignment(m, x, nn.functional.one_hot(y, 3)), test=(x, y),
    )  # fmt: skip
    assert list(history.measured_steps) == steps
    assert steps[-1] == 12
    assert len([step for step in steps if 0 < step < 12]) >= 3
    assert history.measured[1] == history.measured_steps[12]
    layers = list(history.measured[0])
    assert all(float(history.measured[2][layer]) != float(history.measured[0][layer]) for layer in layers)


class LeakyNet(nn.Sequential):
    """Three layers whose inputs have length one."""

    def __init__(self):
        torch.manual_seed(0)
        parts = [nn.Sequential(nn.Linear(a, b), nn.LeakyReLU()) for a, b in ((48, 16), (16, 16))]
        super().__init__(*parts, nn.Linear(16, 3))

    def upto(self, x, layer):
        for part in list(self)[:layer]:
            x = part(nn.functional.normalize(x, dim=1))
        return x

    def forward(self, x):
        return self[2](nn.functional.normalize(self.upto(x, 2), dim=1))


def test_lou_layer_wise_maximization_of_features():
    """Algorithm 1: each layer by itself learns that pairs of a class have the product ½, other pairs 0."""
    x, y = (v[:32] for v in images(n=64, size=4))
    held, held_y = (v[32:] for v in images(n=64, size=4))
    x, held = x.flatten(1), held.flatten(1)
    net = LeakyNet()

    def pairs(layer):
        def loss(model, inputs, labels):
            phi = model.upto(inputs, layer)
            same = (labels[:, None] == labels).to(phi)
            return (phi @ phi.mT - 0.5 * same).square().mean(dim=1)

        return SeesModel(loss)

    for layer in (1, 2):
        for i, part in enumerate(net):
            part.requires_grad_(i == layer - 1)
        frozen = [p for p in net.parameters() if not p.requires_grad]
        before = [p.detach().clone() for p in frozen]
        history = fit(
            net, x, y, epochs=60, lr=0.01, batch_size=16, loss=pairs(layer), test=(held, held_y), patience=5
        )
        assert min(history.test_loss) < 0.7 * history.test_loss[0]
        assert history.loss[-1] < 0.5 * history.loss[0]
        assert all(torch.equal(a, b) for a, b in zip(before, frozen, strict=True))
    for i, part in enumerate(net):
        part.requires_grad_(i == 2)
    fit(net, x, y, epochs=30, lr=0.05)
    assert train.accuracy(net, held, held_y) > 0.9


def test_sharon_layers_at_log_spaced_epochs_under_label_noise(tmp_path):
    x, y = images(n=30)
    noisy = data.noisy(y, 0.2, seed=0)
    net = models.preact_resnet18(3, k=2, seed=0)
    epochs = log_epochs(6, 4)
    history = fit(
        net, x, noisy, epochs=6, lr=1e-3, batch_size=15, augment=train.crop_and_flip, at=epochs,
        test=(x, y), full_train=True, snapshots=tmp_path / "kept",
    )  # fmt: skip
    kept = Snapshots(tmp_path / "kept")
    assert kept.epochs == epochs == [row["epoch"] for row in history.rows()]
    assert len(net.probed) == 6
    for layer in net.probed:
        loads = kept.map(net, lambda m, layer=layer: features.extract(m, x, [layer])[layer])
        grid = cka_grid(loads)
        assert grid.shape == (len(epochs), len(epochs))
        torch.testing.assert_close(grid.diagonal(), torch.ones_like(grid.diagonal()))
        assert grid[0, -1] < 1
    probes = fit_probes(loads, y, method="ridge")
    assert probes.predict(loads).shape == (len(epochs), 30)
    paths = []
    for one, model in zip(kept, kept.models(net), strict=True):  # or all six layers in one pass, to files
        place = tmp_path / f"features-{one.step}"
        features.extract(model, x, out=place)
        paths.append(place / f"{layer}.npy")
    torch.testing.assert_close(cka_grid(paths), grid)


def test_canatar_mean_squared_error_with_linear_decay():
    x, y = images(n=36)
    nets = [models.ResNet11(3, width=2, skips=False, seed=0) for _ in range(2)]
    how = dict(loss="squared", optimizer="momentum", lr=0.02, schedule="linear", batch_size=12, epochs=12)
    first = fit(nets[0], x, y, test=images(seed=3), at=[0, 12], full_train=True, **how)
    fit(nets[1], x, data.one_hot(y, 3), **how)
    torch.testing.assert_close(weights(nets[0]), weights(nets[1]))
    assert first.train_accuracy[-1] > 0.9
    assert first.test_accuracy[-1] > first.test_accuracy[0]
    output = train.predict(nets[0], x)
    assert first.train_loss[-1] == pytest.approx((output - data.one_hot(y, 3)).square().sum(1).mean().item())
    assert first.lr == pytest.approx([0.02 * (1 - (3 * e + 2) / 36) for e in range(12)])
