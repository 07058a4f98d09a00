"""What layers resemble, which networks count, and what is picked out of their table."""

import io
import math

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch
from torch import nn

from repalign.kernels import cka, cka_floor, effective_rank, gram
from repalign.models.initialization import generator, normal
from repalign.papers import canatar
from repalign.press import style


@pytest.fixture(autouse=True)
def _style():
    style.use()
    yield
    plt.close("all")


def labels(n):
    return nn.functional.one_hot(torch.arange(n) % 3).float()


def test_rows_are_the_measures_of_each_layer():
    first, second, y = normal((12, 5), generator(0)), normal((12, 30), generator(1)), labels(12)
    rows = canatar.resemblance([first, second], {"input": first, "target": y})
    assert [row["layer"] for row in rows] == [1, 2]
    for row, phi in zip(rows, (first, second), strict=True):
        for name, other in (("target", y), ("input", first)):
            assert row[name] == pytest.approx(float(cka(phi, other)), abs=1e-5)
            assert row[f"{name}_debiased"] == pytest.approx(float(cka(phi, other, debiased=True)), abs=1e-5)
            assert row[f"{name}_floor"] == pytest.approx(cka_floor(phi, other, draws=0).mean, abs=1e-6)
        centered = (phi - phi.mean(0)).double()
        assert row["rank"] == pytest.approx(float(effective_rank(gram(centered))), rel=1e-4)
        assert row["reason"] == ""
    # Five features reach a part of the labels, thirty all of them; ten modes of those hold a share.
    u, _, _ = torch.linalg.svd(first.double(), full_matrices=False)
    assert rows[0]["ten"] == pytest.approx(float((u.T @ y.double()).square().sum()) / 12, rel=1e-4)
    u, _, _ = torch.linalg.svd(second.double(), full_matrices=False)
    assert rows[1]["ten"] == pytest.approx(float((u[:, :10].T @ y.double()).square().sum()) / 12, rel=1e-4)
    eigenvalues = torch.linalg.svdvals((first - first.mean(0)).double()).square() / 12
    assert rows[0]["size"] == pytest.approx(float(eigenvalues.log().mean().exp()), rel=1e-4)


def test_the_gap_says_how_far_nine_modes_stand_out_and_nothing_of_size():
    images, features = 60, 40
    u, _, _ = torch.linalg.svd(normal((images, features), generator(0)).double(), full_matrices=False)
    u, _ = torch.linalg.qr(u - u.mean(0))
    scale = torch.ones(features, dtype=torch.float64)
    scale[:9] = 10.0  # eigenvalues are squares
    y = labels(images)
    once, twice = canatar.resemblance([u * scale, 7 * u * scale], {"target": y})
    assert once["gap"] == pytest.approx(2)
    assert twice["gap"] == pytest.approx(2)
    assert twice["size"] == pytest.approx(49 * once["size"])


def test_a_dead_layer_resembles_nothing_and_says_why():
    alive, y = normal((12, 5), generator(0)), labels(12)
    dead, broken = torch.ones(12, 4), torch.full((12, 4), math.nan)
    rows = canatar.resemblance([dead, alive, broken], {"input": alive, "target": y})
    assert [row["reason"] for row in rows] == ["the same for all images", "", "not finite"]
    assert rows[1]["input"] == pytest.approx(1)
    for row in (rows[0], rows[2]):
        assert math.isnan(row["target"])
        assert math.isnan(row["rank"])
    assert all(row["reason"] for row in canatar.resemblance([dead], {"target": y}))


def network(cell, *, seed=0, skip=False, augment=False, batch=20, rate=0.1, momentum=False, **more):
    """Rows of a network as a sweep gives them: target CKA rises with depth, input CKA falls."""
    config = dict(cell=cell, seed=seed, skip=skip, augment=augment, batch=batch, rate=rate, momentum=momentum)
    strength = more.get("strength", 0.5)
    end = dict(ended=more.get("ended", "fits"), fitted=1.0, tested=more.get("tested", 0.4))
    end |= dict(loss=0.1, loss_augmented=0.1, loss_without_augmentation=0.05, reason="")
    rows = []
    for time in ("start", "early", "end"):
        for layer in range(1, 11):
            target = strength * layer / 10
            values = dict(target=target, target_debiased=target, target_floor=0.1)
            values |= dict(input=1 - layer / 20, input_debiased=0.5, input_floor=0.1)
            values |= dict(rank=30.0 - layer, size=float(layer), gap=0.1 * layer, ten=layer / 10)
            for images in ("training", "test"):
                rows.append(
                    dict(kind="layer", time=time, images=images, features="means", layer=layer) | values
                )
            if time == "end":
                rows.append(
                    dict(kind="layer", time=time, images="training", features="maps", layer=layer) | values
                )
        for layer in (9, 10):
            for mode in (1, 5, 10):
                rows.append(
                    dict(kind="mode", time=time, layer=layer, mode=mode, eigenvalue=1 / mode, power=0.1)
                )
    rows += [
        dict(kind="probe", layer=layer, measured=0.5, uncertain=0.1, predicted=0.6) for layer in range(1, 11)
    ]
    return [config | row | end for row in rows]


@pytest.fixture
def networks():
    """Eight configurations in two seeds; momentum aligns more, augmentation is more accurate."""
    rows, cell = [], 0
    for seed in (0, 1):
        for augment in (False, True):
            for momentum in (False, True):
                for rate in (0.1, 0.2):
                    rows += network(
                        cell,
                        seed=seed,
                        augment=augment,
                        momentum=momentum,
                        rate=rate,
                        strength=0.4 + 0.3 * momentum + rate,
                        tested=0.3 + 0.1 * augment + 0.01 * momentum + 0.02 * rate + 0.001 * seed,
                    )
                    cell += 1
    return pd.DataFrame(rows)


def test_networks_that_do_not_fit_or_diverged_do_not_count(networks):
    more = network(100, skip=True, momentum=True, ended="does not fit", strength=9.0)
    lost = dict(cell=101, seed=0, skip=True, augment=False, batch=20, rate=0.1, momentum=False)
    lost |= dict(kind="ended", ended="diverged: the loss is inf")
    table = pd.concat([networks, pd.DataFrame([*more, lost])])
    assert canatar.counted(table) == (8, 10)
    pd.testing.assert_frame_equal(canatar.layers(table, "target"), canatar.layers(networks, "target"))
    with pytest.raises(ValueError, match=r"no configuration fits .*1 does not fit"):
        canatar.layers(pd.DataFrame(more), "target")


def test_layers_are_means_over_seeds_in_the_order_of_accuracy(networks):
    found = canatar.layers(networks, "target")
    assert list(found.columns) == list(range(1, 11))
    assert len(found) == 8
    accuracy = canatar.accuracy_by_seed(networks).mean(axis=1).reindex(found.index)
    assert accuracy.is_monotonic_increasing
    assert found.iloc[0, 9] == pytest.approx(0.4 + 0.1)


def test_a_configuration_counts_when_all_of_its_networks_fit_and_live(networks):
    broken = networks.copy()
    broken.loc[(broken["cell"] == 0) & (broken["layer"] == 3), "reason"] = "the same for all images"
    broken.loc[broken["cell"] == 9, "ended"] = "does not fit"
    assert canatar.counted(broken) == (6, 8)
    # Both seeds of a configuration leave together: every mean is over the same seeds.
    assert set(canatar.counting(broken)["cell"]) == set(range(16)) - {0, 8, 1, 9}


def test_pairs_differ_in_one_factor_alone(networks):
    momentum, plain = canatar.paired(canatar.layers(networks, "target"), "momentum")
    assert len(momentum) == len(plain) == 4
    assert (momentum[10] - plain[10]).tolist() == pytest.approx(4 * [0.3])


def test_replicates_are_the_two_seeds_of_a_configuration(networks):
    pairs = canatar.replicates(canatar.accuracy_by_seed(networks))
    # Seeds, augmentation and batch size are taken off: what is left is momentum and rate.
    left = [0.01 * (momentum - 0.5) + 0.02 * (rate - 0.15) for rate in (0.1, 0.2) for momentum in (0, 1)]
    assert pairs["one"].tolist() == pytest.approx(2 * left)
    assert pairs["other"].tolist() == pytest.approx(2 * left)
    last = canatar.by_seed(networks, "target", layer=10)
    assert list(last.columns) == [0, 1]
    pd.testing.assert_series_equal(
        last.mean(axis=1), canatar.layers(networks, "target")[10].reindex(last.index), check_names=False
    )
    average = canatar.by_seed(networks, "target")
    assert average.iloc[0, 0] == pytest.approx(0.55 * last.iloc[0, 0])


def test_without_the_means_of_augmentation_only_what_is_within_is_left(networks):
    table = canatar.within(canatar.configurations(networks))
    assert table["tested"].sum() == pytest.approx(0)
    assert table["tested"].max() < 0.02  # augmentation itself is worth 0.1


def test_table_one_has_the_rows_of_the_paper(networks):
    table = canatar.configurations(networks)
    assert table["average_test"].tolist() == pytest.approx((table["last_test"] * 0.55).tolist())
    found, printed = canatar.correlations(table), canatar.table_one()
    assert list(found.index) == list(printed.index)
    assert list(found.columns) == list(printed.columns)
    assert found.loc["Test Acc.", "Test Acc."] == pytest.approx(1)
    assert found.loc["Aug.", "Test Acc."] > 0.9
    assert found.loc["Momentum", "CKA (Train)"] > 0.9


def test_choosing_by_resemblance_loses_what_another_seed_says(networks):
    # The most aligned configuration has momentum, the higher rate, and here no augmentation.
    rows = networks.copy()
    rows.loc[rows["augment"], "target"] /= 2
    lost = canatar.lost_by_resemblance(rows, "training")
    assert lost.to_dict() == pytest.approx({20: 0.1})
    aligned = canatar.lost_by_resemblance(networks, "test")
    assert aligned.to_dict() == pytest.approx({20: 0.1})  # the first of two alike has no augmentation


def test_three_networks_of_each_group(networks):
    three = canatar.three(networks)
    picked = three.drop_duplicates("cell").set_index(["seed", "role"])
    for seed, of_group in networks.groupby("seed"):
        assert picked.loc[(seed, canatar.BEST), "tested"] == of_group["tested"].max()
        assert picked.loc[(seed, canatar.WORST), "tested"] == of_group["tested"].min()
        # In the lower half, without augmentation, the most aligned has momentum and the higher rate.
        poor = picked.loc[(seed, canatar.POOR)]
        assert (bool(poor["momentum"]), bool(poor["augment"]), poor["rate"]) == (True, False, 0.2)
    assert canatar.accuracies(three).loc[0, canatar.BEST] == networks["tested"][networks["seed"] == 0].max()
    rank = canatar.spectra(three, "rank")
    assert rank[canatar.BEST].to_numpy().ravel().tolist() == pytest.approx([21.0, 20.0, 21.0, 20.0])
    with pytest.raises(ValueError, match="no group has 6 networks"):
        canatar.three(networks[networks["cell"] == 0])


def test_every_figure_draws_what_the_table_has(networks):
    three, table = canatar.three(networks), canatar.configurations(networks)
    figures = [
        canatar.every_layer(networks),
        canatar.training_and_test(networks),
        canatar.means_and_maps(networks),
        canatar.accuracy_and_average(table),
        canatar.loss_and_accuracy(table),
        canatar.ours_and_printed(canatar.correlations(table), canatar.table_one()),
        canatar.lens(three, canatar.BEST),
        canatar.through_time(three),
        canatar.through_training(networks),
        canatar.probes(networks),
    ]
    for figure in figures:
        figure.savefig(io.BytesIO(), format="svg")
        assert any(line.get_xdata().size for ax in figure.axes for line in ax.get_lines())
    lines = figures[0].axes[0].get_lines()
    assert len(lines) == 10  # a line for each layer, and a band of floors
    (band,) = figures[0].axes[0].collections
    floors = canatar.layers(networks, "target_floor").to_numpy()
    assert band.get_paths()[0].get_extents().intervaly == pytest.approx([floors.min(), floors.max()])
    assert lines[9].get_ydata()[0] == pytest.approx(canatar.layers(networks, "target").iloc[0, 9])
