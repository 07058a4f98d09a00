"""Layers through training: kept kernels, and errors with both statistics of batch norm."""

import copy

import pytest
import torch
from torch import nn

from repalign import kernels, models, train
from repalign.features import extract
from repalign.models.initialization import generator, normal
from repalign.papers.sharon import evolution


@pytest.fixture
def images():
    draw = generator(0)
    return (
        normal((40, 3, 8, 8), draw),
        torch.arange(40) % 4,
        normal((24, 3, 8, 8), draw),
        torch.arange(24) % 4,
    )


def trained(images, net, **options):
    x, y, new_x, new_y = images
    look = evolution.Evolution(new_x, (x, y), (new_x, new_y), **options)
    nets = []

    def measure(net, epoch):
        nets.append(copy.deepcopy(net))
        return look(net, epoch)

    history = train.fit(net, x, y, epochs=6, batch_size=10, lr=0.01, at=(0, 1, 2, 6), measure=measure)
    return look, nets, history


@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize("batch_size", [None, 12])
def test_maps_are_those_of_the_networks_at_their_time(images, debiased, batch_size):
    keep = ("training", "recomputed")
    look, nets, _ = trained(images, models.preact_resnet18(k=2), keep=keep, batch_size=batch_size)
    assert look.epochs == [0, 1, 2, 6]
    fresh = [evolution.recomputed(net, images[0]) for net in nets]
    for statistics, those in (("training", nets), ("recomputed", fresh)):
        maps = look.cka(debiased, statistics)
        assert list(maps) == ["stem", "stage1", "stage2", "stage3", "stage4", "head"]
        for layer, of in maps.items():
            reps = [extract(net, images[2], layer)[layer] for net in those]
            expected = kernels.cka_grid(reps, debiased=debiased, batch_size=batch_size, side="gram")
            assert torch.allclose(of.float(), expected, atol=1e-5)


def test_errors_are_measured_with_both_statistics(images):
    x, y, new_x, new_y = images
    net = models.preact_resnet18(k=2)
    look, nets, history = trained(images, net)
    assert [row for rows in history.measured.values() for row in rows] == look.errors
    for net, (stale, fresh) in zip(nets, history.measured.values(), strict=True):
        assert (stale["statistics"], fresh["statistics"]) == ("training", "recomputed")
        other = evolution.recomputed(net, x)
        for row, model in ((stale, net), (fresh, other)):
            assert row["train"] == 1 - train.accuracy(model, x, y)
            assert row["test"] == 1 - train.accuracy(model, new_x, new_y)


def test_recomputed_statistics_are_those_of_the_images(images):
    x = images[0]
    net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout(0.5)).eval()
    before = copy.deepcopy(net.state_dict())
    new = evolution.recomputed(net, x)
    with torch.no_grad():
        h = net[0](x)
    assert torch.allclose(new[1].running_mean, h.mean((0, 2, 3)), atol=1e-6)
    assert torch.allclose(new[1].running_var, h.var((0, 2, 3)), rtol=1e-4)
    assert new is not net
    assert not new.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_network_without_batch_norm_is_not_copied(images):
    net = models.SimpleCNN((3, 8, 8), 4, convs=1, filters=4, units=8)
    assert evolution.recomputed(net, images[0]) is net
    look, _, _ = trained(images, net)
    for stale, fresh in zip(look.errors[::2], look.errors[1::2], strict=True):
        assert stale == {**fresh, "statistics": "training"}


def test_measuring_changes_no_weight(images):
    x, y, *_ = images
    plain, seen = (models.preact_resnet18(k=2) for _ in range(2))
    train.fit(plain, x, y, epochs=6, batch_size=10, lr=0.01)
    trained(images, seen)
    for a, b in zip(plain.state_dict().values(), seen.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_kept_kernels_take_the_bytes_that_are_told():
    found = {"wide": normal((32, 500), generator(0)), "narrow": normal((32, 2), generator(1))}
    kept = evolution.Kernels(batch_size=16, debiased=(False,))
    for _ in range(3):
        kept.keep(found)
    assert kept.bytes == 3 * 2 * 2 * (5 * 16 * 16 // 8) * 4
    for of in kept.cka().values():
        assert torch.allclose(of, torch.ones(3, 3, dtype=of.dtype), atol=1e-6)


def test_watched_is_a_fit_with_an_evolution(images):
    x, y, new_x, new_y = images
    how = dict(epochs=6, batch_size=10, lr=0.01, looks=4)
    found = evolution.watched(models.preact_resnet18(k=2), (x, y), (new_x, new_y), probes=20, part=10, **how)
    assert [row["epoch"] for row in found.errors[::2]] == train.log_epochs(6, 4)
    assert list(found.maps) == ["plain", "debiased", "statistics of training"]
    look = evolution.Evolution(new_x[:20], (x, y), (new_x, new_y), batch_size=10)
    how["at"] = train.log_epochs(6, how.pop("looks"))
    train.fit(models.preact_resnet18(k=2), x, y, measure=look, **how)
    for layer, of in look.cka().items():
        assert torch.equal(found.maps["plain"][layer], of.float())
    assert min(found.cost.values()) > 0
    assert found.cost["kept kernels, MB"] == look.kernels["recomputed"].bytes / 2e6


def test_without_batch_norm_there_are_two_kinds_of_maps_and_maybe_all_epochs(images):
    x, y, new_x, new_y = images
    net = models.SimpleCNN((3, 8, 8), 4, convs=1, filters=4, units=8)
    how = dict(probes=20, part=20, epochs=3, looks=4, batch_size=10, names=("first", "second"))
    found = evolution.watched(net, (x, y), (new_x, new_y), **how)
    assert list(found.maps) == ["plain", "debiased"]
    assert found.maps["plain"]["first"].shape == (4, 4)
