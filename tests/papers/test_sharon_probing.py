"""Probes of a network through its training, and the numbers of what they say."""

import math

import pytest
import torch

from repalign import models
from repalign.features import extract
from repalign.papers.sharon.probing import probed, told_by_probes
from repalign.probes import decision_region_similarity, fit_probes, planes
from repalign.train import fit

KINDS = {"few": {"epochs": 2, "lr": 0.01, "batch_size": 8}, "ridge": {"method": "ridge"}}


@pytest.fixture(scope="module")
def sets():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, 1, 8, 8, generator=g), torch.arange(50) % 3
    return (x[:30], y[:30]), (x[30:], y[30:])


def run(sets, **more):
    net = models.preact_resnet18(3, k=2, channels=1, seed=1)
    how = {
        "at": (0, 1, 3),
        "epochs": 3,
        "triplets": 3,
        "resolution": 4,
        "cka": 20,
        "part": 20,
        "batch_size": 10,
    }
    return probed(net, *sets, names=["first", "second"], kinds=KINDS, **{**how, **more})


def test_groups_of_epochs_change_nothing(sets):
    alone, all_at_once = run(sets, together=1), run(sets, together=9)
    for kind in KINDS:
        assert alone.wrong[kind] == all_at_once.wrong[kind]
        for layer in ("first", "second"):
            assert torch.equal(alone.maps[kind][layer], all_at_once.maps[kind][layer])


def test_it_is_what_one_does_by_hand(sets):
    (x, y), (_, truth) = sets
    found, net = run(sets), models.preact_resnet18(3, k=2, channels=1, seed=1)
    g, nets = torch.Generator().manual_seed(0), []
    triplets = torch.stack([torch.randperm(30, generator=g)[:3] for _ in range(3)])
    points = planes(x, triplets, resolution=4).reshape(-1, 1, 8, 8)

    def look(now, epoch):
        nets.append(_layer(now, sets, points))

    fit(net, x, y, epochs=3, at=(0, 1, 3), batch_size=10, measure=look)
    probes = [fit_probes(a[None], y, method="ridge").one(0) for a, _, _ in nets]
    told = torch.stack([probe.predict(c) for probe, (_, _, c) in zip(probes, nets, strict=True)])
    assert torch.equal(found.maps["ridge"]["first"], decision_region_similarity(told))
    wrong = [
        float((p.predict(b) != truth).double().mean()) for p, (_, b, _) in zip(probes, nets, strict=True)
    ]
    assert found.wrong["ridge"]["first"] == pytest.approx(wrong)


def _layer(net, sets, points):
    """The first layer has no batch norm before it."""
    return [extract(net, x, "stem")["stem"] for x in (sets[0][0], sets[1][0], points)]


def errors(train, test):
    at = [0, 1, 2, 4, 8]
    rows = zip(at, train, test, strict=True)
    return [{"epoch": e, "statistics": "recomputed", "train": a, "test": b} for e, a, b in rows]


def test_numbers_of_a_made_up_training():
    of = torch.eye(5, dtype=torch.float64)
    of[:, 0] = of[0] = torch.tensor([1.0, 0.5, 0.8, 0.6, 0.1])
    cka = torch.full((5, 5), 0.9)
    found = {
        "errors": errors([0.9, 0.4, 0.0, 0.0, 0.0], [0.9, 0.2, 0.3, 0.3, 0.3]),
        "maps": {"some": {"layer": of}}, "wrong": {"some": {"layer": [0.9, 0.2, 0.3, 0.5, 0.1]}}, "cka": cka,
    }  # fmt: skip
    (row,) = told_by_probes(found)
    assert row["start"] == 2
    assert row["near"] == pytest.approx(0.7 - 0.5)  # epochs 2 and 4, less the best, 1
    assert row["gone"] == pytest.approx(0.7 - 0.1)
    assert row["wider"] == pytest.approx(0.8)
    assert row["descent"] == pytest.approx(0.3)  # it rises from 0.2 to 0.5, and falls to 0.1
    assert row["own_descent"] == 0  # that of the network rises and stays
    assert row["change"] == pytest.approx(1 - 2.0 / 10)
    found["errors"] = errors([0.9, 0.4, 0.2, 0.0, 0.0], [0.9, 0.2, 0.3, 0.3, 0.3])
    (row,) = told_by_probes(found)
    assert math.isnan(row["gone"])  # the last epoch is one of those from the start to twice as long


def test_without_a_perfect_fit_some_are_unknown():
    of = torch.eye(5)
    found = {
        "errors": errors([0.9] * 5, [0.9, 0.2, 0.3, 0.3, 0.3]), "cka": of,
        "maps": {"some": {"layer": of}}, "wrong": {"some": {"layer": [0.9, 0.2, 0.3, 0.5, 0.1]}},
    }  # fmt: skip
    (row,) = told_by_probes(found)
    assert all(math.isnan(row[key]) for key in ("start", "near", "gone", "descent"))
    assert row["wider"] == 0
