"""What a reader of Imani et al. §7.3 relies on: rows of sources and targets, and what is made of them."""

import copy

import pandas as pd
import pytest
import torch
from torch import nn

from repalign import models
from repalign.alignment import unit_rows
from repalign.data import random_labels
from repalign.features import extract
from repalign.models import replace_head
from repalign.papers import imani
from repalign.probes import fit_probes
from repalign.train import accuracy, fit

DOMAINS = ["first", "second", "third"]
HOW = {
    "source": {"epochs": 3, "lr": 0.01, "batch_size": 8},
    "target": {"epochs": 2, "optimizer": "momentum", "lr": 0.01, "batch_size": 8},
}


def images(seed):
    g = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randn(n, 1, 6, 6, generator=g), torch.arange(n) % 3)
        for name, n in zip(DOMAINS, (24, 18, 12), strict=True)
    }


def network():
    return models.SimpleCNN((1, 6, 6), 3, convs=1, filters=4, units=8, seed=5)


def run(net=None, **change):
    options = {"classes": 3, "seed": 1, "labels_seed": 10, **HOW, **change}
    return imani.transfers(net or network(), "dense_relu", images(0), images(1), **options)


def of(rows, *sources):
    return [row for row in rows if row["source"] in sources]


def toy(source):
    """Points of a class together, or one by one; the layer is the points themselves, and cannot learn."""
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    far = 1e5 * torch.eye(6).double()  # beside it the constant does not count
    seen, how = {"together": (far[y], y), "one by one": (far, y)}, {"epochs": 1}
    net = nn.Sequential(nn.Identity(), nn.Linear(6, 3)).double()
    rows = imani.transfers(net, "0", seen, seen, classes=3, source=how, target=how, seed=0, labels_seed=0)
    return {row["target"]: row["area"] for row in of(rows, source) if "area" in row}


def test_areas_of_the_toy():
    assert toy("None") == pytest.approx({"together": 2**0.5 / 2, "one by one": 1 / 2})
    assert toy("one by one")["together"] == toy("None")["together"]
    assert toy("together")["one by one"] == toy("None")["one by one"]


def test_one_row_of_each_kind_for_each_source_and_target():
    rows = run()
    learned = [row["source"] for row in rows if "learned" in row]
    pairs = [(row["source"], row["target"]) for row in rows if "area" in row]
    assert learned == DOMAINS
    assert pairs == [(a, b) for a in ("None", *DOMAINS) for b in DOMAINS if a != b]
    assert len(rows) == 3 + 9 + 9 * 101
    for row in rows:
        numbers = [
            row[key] for key in ("learned", "area", "probe", "accuracy", "tau", "alignment") if key in row
        ]
        assert all(0 <= value <= 1 + 1e-9 for value in numbers)


def test_it_is_what_one_does_by_hand():
    seen, test = images(0), images(1)
    (x, _), (target, y) = seen["second"], seen["third"]
    labels = random_labels(len(x), 3, seed=11)  # that of the first domain is 10
    net = replace_head(network(), 3, seed=1)
    fit(net, x, labels, **HOW["source"], seed=1)
    tau = torch.linspace(0, 1, 101).double()
    phi = extract(net, target, ["dense_relu"])["dense_relu"].double()
    tasks = imani.class_pairs(unit_rows(phi, constant=True), y, tau)
    tuned = replace_head(net, 3, seed=1)
    fit(tuned, target, y, **HOW["target"], seed=1)
    rows = of(run(), "second")
    assert rows[0] == {"source": "second", "learned": accuracy(net, x, labels)}
    found = [row for row in rows if row.get("target") == "third"]
    assert found[0]["area"] == float(tasks.area.mean())
    assert found[0]["accuracy"] == accuracy(tuned, *test["third"])
    unseen = extract(net, test["third"][0], ["dense_relu"])["dense_relu"]
    read = fit_probes({"layer": phi}, y)["layer"].predict(unseen.double())
    assert found[0]["probe"] == float((read == test["third"][1]).double().mean())
    assert [row["alignment"] for row in found[1:]] == tasks.value.mean(0).tolist()


def test_seeds():
    rows = run()
    assert run() == rows
    assert run(seed=2) != rows
    # The next seed moves the labels on by a domain: each source has others, no source has none.
    other = run(labels_seed=11)
    assert of(other, "None") == of(rows, "None")
    for name in DOMAINS:
        assert [r for r in of(other, name) if "area" in r] != [r for r in of(rows, name) if "area" in r]


def test_the_network_stays_as_it_was():
    net = network()
    before = copy.deepcopy(net.state_dict())
    run(net)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_images_are_changed_for_training_alone():
    called = []

    def blank(x, random):
        called.append(len(x))
        return torch.zeros_like(x)

    rows, plain = run(augment=blank), run()
    areas = [[row["area"] for row in of(some, "None") if "area" in row] for some in (rows, plain)]
    assert called
    assert areas[0] == areas[1]
    assert of(rows, *DOMAINS) != of(plain, *DOMAINS)


@pytest.mark.parametrize(
    "change",
    [lambda x: {}, lambda x: {"first": x["first"]}, lambda x: {**x, "None": x["first"]}],
    ids=["no domain", "one domain", "a domain called None"],
)
def test_domains_that_tell_nothing_are_refused(change):
    seen, options = change(images(0)), {"classes": 3, "seed": 1, "labels_seed": 10, **HOW}
    with pytest.raises(ValueError, match="same domains, two or more, none with the name 'None'"):
        imani.transfers(network(), "dense_relu", seen, seen, **options)
    with pytest.raises(ValueError, match="but have first, second, third and first"):
        imani.transfers(network(), "dense_relu", images(0), {"first": images(0)["first"]}, **options)


def runs():
    return pd.DataFrame([{"seed": seed, **row} for seed in (1, 2) for row in run(seed=seed)])


def test_tables_are_differences_within_a_run():
    table = runs()
    area = table.dropna(subset="area").pivot(index="seed", columns=["source", "target"], values="area")
    without, after = imani.by_pair(area, DOMAINS)
    names = [f"{a} → {b}" for a in DOMAINS for b in DOMAINS if a != b]
    assert list(without) == list(after) == names
    assert list(after.index) == [1, 2]
    assert without["first → third"].equals(without["second → third"])
    assert after["first → third"].tolist() == area["first", "third"].tolist()
    lost = imani.curves_lost(table, DOMAINS)
    assert len(lost) == 2 * 6 * 101
    one = lost[(lost["seed"] == 2) & (lost["source"] == "first") & (lost["target"] == "third")]
    curves = table[(table["seed"] == 2) & (table["target"] == "third")].dropna(subset="tau")
    none, first = (curves[curves["source"] == name]["alignment"].to_numpy() for name in ("None", "first"))
    assert one["alignment lost"].to_numpy() == pytest.approx(none - first)


def test_order_of_sources_whose_names_are_parts_of_each_other():
    two = pd.DataFrame({"A → BA": [1.0], "A → C": [3.0], "BA → A": [4.0], "BA → C": [6.0]})
    values = two.assign(**{"C → A": [0.0], "C → BA": [1.0]})
    found = imani.in_order(values, ["A", "BA", "C"])
    assert found.iloc[0].to_dict() == {"A above BA": -3, "A above C": 1.5, "BA above C": 4.5}


def test_rank_correlation_is_spearmans():
    g = torch.Generator().manual_seed(0)
    first, second = (pd.DataFrame(torch.randn(4, 6, generator=g).round(decimals=0).numpy()) for _ in range(2))
    expected = [first.loc[k].corr(second.loc[k], method="spearman") for k in range(4)]
    assert imani.rank_correlation(first, second).tolist() == pytest.approx(expected)
    assert imani.rank_correlation(first, 0 * second).tolist() == [0] * 4
