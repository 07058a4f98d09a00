"""Layers through training: kept kernels, errors with both statistics, and numbers for what a map shows."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from repalign import kernels, models, train
from repalign.features import evolution, extract
from repalign.models.initialization import generator, normal

EPOCHS = [0, *np.unique(np.geomspace(1, 1000, 40).round()).tolist()]
LOG = np.log(np.maximum(EPOCHS, 0.5))


def drift(speed=0.1):
    """CKA that depends on the ratio of two epochs alone."""
    return np.exp(-speed * np.abs(LOG[:, None] - LOG))


def blocks(border, low=0.3):
    """Two blocks of similar epochs: before ``border``, and from it on."""
    side = np.asarray(EPOCHS) >= border
    return np.where(side[:, None] == side, 1.0, low)


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


def test_identical_epochs_never_change():
    same = np.ones((len(EPOCHS), len(EPOCHS)))
    assert evolution.change(same) == evolution.change(same, EPOCHS, ratio=1.5) == 0
    assert evolution.returned(same, 3, [5, 6]) == evolution.set_apart(same, [5, 6]) == 0
    new = evolution.novelty(same, EPOCHS)
    assert np.nanmax(np.abs(new)) == 0


def test_novelty_peaks_at_the_border_of_two_blocks():
    border = EPOCHS[25]
    new = evolution.novelty(blocks(border), EPOCHS)
    assert np.nanargmax(new) == 25
    assert new[25] == pytest.approx(0.7)
    # Where the window has one block alone there is nothing new.
    assert new[EPOCHS.index(4)] == pytest.approx(0, abs=1e-12)


def test_novelty_of_a_drift_is_the_same_everywhere():
    new = evolution.novelty(drift(), EPOCHS)
    late = new[np.isfinite(new) & (np.asarray(EPOCHS) > 30)]  # rounded epochs are uneven before
    assert len(late) > 5
    assert late.min() > 0
    assert late.max() / np.median(late) < 1.1


def test_novelty_needs_its_whole_window():
    new = dict(zip(EPOCHS, np.isfinite(evolution.novelty(drift(), EPOCHS)).tolist(), strict=True))
    assert {epoch for epoch, there in new.items() if there} == {e for e in EPOCHS if 3 <= e <= 1000 / 3}


def test_change_grows_with_speed_and_is_smaller_nearby():
    slow, fast = (evolution.change(drift(speed)) for speed in (0.05, 0.1))
    assert 0 < slow < fast
    assert 0 < evolution.change(drift(), EPOCHS, ratio=1.5) < fast
    assert evolution.change(drift(), EPOCHS, ratio=1e9) < fast  # without epoch 0
    assert math.isnan(evolution.change(np.ones((2, 2)), [0, 1], ratio=1.5))


def test_nearby_pairs_are_counted_by_their_ratio():
    at = [0, 2, 3, 6]
    far = 1 - np.array([[0, 9, 9, 9], [9, 0, 0.5, 9], [9, 0.5, 0, 9], [9, 9, 9, 0]])
    assert evolution.change(far, at, ratio=1.5) == 0.5


def test_a_layer_that_comes_back_has_returned():
    away = np.ones((4, 4))
    away[1] = away[:, 1] = 0.5
    np.fill_diagonal(away, 1)
    assert evolution.returned(away, 1, [2, 3]) == pytest.approx(0.5)
    assert evolution.returned(drift(), 20, [34, 35]) < 0


def test_a_late_block_is_set_apart():
    assert evolution.set_apart(blocks(EPOCHS[30]), range(30, len(EPOCHS))) == pytest.approx(0.7)
    assert math.isnan(evolution.set_apart(np.ones((3, 3)), [2]))


def test_milestones():
    found = evolution.milestones([0, 1, 10, 75, 100], [0.9, 0.4, 0.005, 0.1, 0], [0.9, 0.3, 0.2, 0.1, 0.1])
    assert found == (2, 1, [3, 4])
    never = evolution.milestones([0, 1, 10], [0.9, 0.4, 0.3], [0.9, 0.1, 0.2])
    assert never == (None, 1, [2])
