"""The tangent kernel through training, against Jacobians and centering matrices written out."""

import io
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex
from torch import func

from repalign import data, train
from repalign.papers import canatar
from repalign.papers.canatar.tangent_kernel import multilayer_network

SIZES = dict(n=60, n_test=40, n_kernel=20, n_operator=6, epochs=30, batch=20, looks=4, width=12, depth=2)


def images(split, n, seed):
    """Small images whose class is the brightest of ten pixels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 100, (n, 1, 4, 4), generator=generator, dtype=torch.uint8)
    y = torch.arange(n) % 10
    x.view(n, 16)[torch.arange(n), y] = 250
    return data.Dataset(x, y, tuple("0123456789"), "pixels", split, "drawn")


SETS = images("train", 80, seed=0), images("test", 50, seed=1)


def evolution(rate, seed=0, **changes):
    frame = pd.DataFrame(
        canatar.tangent_evolution(SETS, rate=rate, seed=seed, device="cpu", **{**SIZES, **changes})
    )
    return frame.assign(rate=rate, seed=seed)


@pytest.fixture(scope="module")
def runs():
    """Two networks that learn and one that a huge rate kills, as a sweep gives them."""
    parts = [evolution(0.01, seed=0), evolution(0.01, seed=1), evolution(30.0, seed=0, epochs=2)]
    return pd.concat([part.assign(cell=cell) for cell, part in enumerate(parts)], ignore_index=True)


def value(frame, **wanted):
    for column, which in wanted.items():
        frame = frame[frame[column] == which]
    assert len(frame) == 1, f"{len(frame)} rows for {wanted}"
    return float(frame["value"].iloc[0])


def drawn(figure):
    figure.savefig(io.BytesIO(), format="svg")
    plt.close(figure)
    return figure


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [0.5, 2.0, -1.0, 3.0]])
def test_the_share_of_a_unit_in_a_chain_falls_with_the_square_of_its_weight(weights):
    frame = canatar.chain_shares(weights)
    assert frame["measured"].tolist() == pytest.approx(frame["known"].tolist(), abs=1e-6)
    assert frame["measured"].sum() == pytest.approx(1)


@pytest.mark.parametrize("seed", range(3))
def test_equations_5_to_8_hold_to_rounding(seed):
    rows = pd.DataFrame(canatar.tangent_identities(seed))
    assert set(rows["claim"]) == {"eq5", "eq7"}
    assert (rows["deviation"] < 1e-10).all()


def dense(seed):
    """Outputs, Jacobian (images, outputs, parameters) by layer, and targets, at the first weights."""
    chosen = data.subset(SETS[0], SIZES["n"], seed=seed)
    x = (chosen.x[: SIZES["n_kernel"]] / 255).double()
    target = data.one_hot(chosen.y[: SIZES["n_kernel"]], 10).double()
    net = multilayer_network(16, width=SIZES["width"], depth=SIZES["depth"], seed=seed).double()
    theta = {name: value.detach() for name, value in net.named_parameters()}
    jacobian = func.jacrev(lambda at: func.functional_call(net, at, (x,)))(theta)
    layers = {}
    for name, part in jacobian.items():
        layers.setdefault(name.split(".")[0], []).append(part.flatten(2))
    return net(x).detach(), {name: torch.cat(parts, 2) for name, parts in layers.items()}, target


def cosine(a, b):
    return float((a * b).sum() / (a.norm() * b.norm()))


def test_alignments_and_shares_are_those_of_the_definitions(runs):
    outputs, layers, target = dense(seed=0)
    n = len(outputs)
    H = torch.eye(n, dtype=torch.float64) - torch.ones(n, n, dtype=torch.float64) / n
    parts = {name: torch.einsum("aip,bip->ab", part, part) / 10 for name, part in layers.items()}
    ntk = sum(parts.values())
    kernels = {"NTK": ntk, "target": target @ target.T, "network": outputs @ outputs.T}
    start = runs[(runs["cell"] == 0) & (runs["images"] == "training") & (runs["epoch"] == 0)]
    for pair in canatar.TANGENT_PAIRS:
        a, b = (kernels[name] for name in pair.split("–"))
        assert value(start, what="KTA", of=pair) == pytest.approx(cosine(a, b), rel=1e-4)
        assert value(start, what="CKA", of=pair) == pytest.approx(cosine(H @ a @ H, H @ b @ H), rel=1e-4)
    flat = H @ ntk @ H
    share = float((H @ parts["head"] @ H * flat).sum() / flat.square().sum())
    assert value(start, what="share", of=canatar.PENULTIMATE) == pytest.approx(share, rel=1e-4)
    eigenvalues = torch.linalg.eigvalsh(flat).clamp(min=1e-300)
    p = eigenvalues / eigenvalues.sum()
    rank = float((-p * p.log()).sum().exp())
    assert value(start, what="rank", of="NTK") == pytest.approx(rank, rel=1e-4)
    octaves = canatar.octaves_from_nine(pd.DataFrame({"start": [rank, 18.0]}))["start"]
    assert octaves.tolist() == pytest.approx([math.log(rank / 9) / math.log(2), 1.0])
    terms = {
        canatar.PENULTIMATE: parts["head"],
        canatar.GRADIENT: sum(part for name, part in parts.items() if name != "head"),
    }
    for (name, kernel), pair in zip(terms.items(), canatar.TERM_PAIRS, strict=True):
        wanted = cosine(H @ kernel @ H, H @ kernels["target"] @ H)
        assert value(start, what="CKA", of=pair) == pytest.approx(wanted, rel=1e-4)
        p = torch.linalg.eigvalsh(H @ kernel @ H).clamp(min=1e-300)
        p = p / p.sum()
        wanted = float((-p * p.log()).sum().exp())
        assert value(start, what="rank", of=name) == pytest.approx(wanted, rel=1e-4)


def test_the_operator_alignment_is_that_of_all_outputs_in_one_column(runs):
    _, layers, target = dense(seed=0)
    few = SIZES["n_operator"]
    whole = torch.cat(list(layers.values()), 2)[:few]
    start = runs[(runs["cell"] == 0) & (runs["images"] == "training") & (runs["epoch"] == 0)]
    for what, features, labels in (
        ("KTA", whole, target[:few]),
        ("CKA", whole - whole.mean(0), target[:few] - target[:few].mean(0)),
    ):
        features, y = features.flatten(0, 1), labels.flatten()
        wanted = cosine(features @ features.T, torch.outer(y, y))
        assert value(start, what=what, of=canatar.OPERATOR) == pytest.approx(wanted, rel=1e-4)


def test_no_share_is_negative_and_all_sum_to_one(runs):
    for what in ("share", "share of trace"):
        shares = runs[(runs["what"] == what) & (runs["ended"] == "trained")]
        assert (shares["value"] >= 0).all()
        sums = shares.groupby(["cell", "images", "epoch"])["value"].sum()
        assert len(sums)
        assert sums.to_numpy() == pytest.approx(1)


def test_cumulative_power_is_that_of_eigenvectors_at_start_middle_and_end(runs):
    _, layers, target = dense(seed=0)
    features = torch.cat(list(layers.values()), 2).flatten(1)
    first = torch.linalg.eigh(features @ features.T).eigenvectors.flip(1)[:, :10]
    wanted = float((first.T @ target).square().sum() / target.square().sum())
    start = runs[(runs["cell"] == 0) & (runs["images"] == "training") & (runs["stage"] == "start")]
    assert value(start, what="power", of="NTK") == pytest.approx(wanted, rel=1e-4)
    curves = runs[(runs["what"] == "cumulative power") & (runs["cell"] == 0)]
    assert set(curves["stage"]) == {"start", "middle", "end"}
    for _, curve in curves.groupby(["images", "stage"]):
        values = curve.sort_values("mode")["value"].to_numpy()
        assert (np.diff(values) >= -1e-9).all()
        assert values[-1] <= 1 + 1e-9


def test_a_dead_network_has_no_alignment_and_says_why(runs):
    dead = runs[runs["cell"] == 2]
    assert set(dead["ended"]) == {"dead"}
    last = dead[dead["epoch"] == 2]
    cka = last[(last["what"] == "CKA") & last["of"].isin(canatar.TANGENT_PAIRS)]
    assert len(cka) == 6
    assert cka["value"].isna().all()
    assert cka["reason"].str.contains("the same for all images").all()
    assert last[(last["what"] == "live units") & (last["of"] == "layer 2")]["value"].max() < 0.5


def test_a_network_that_diverges_keeps_its_looks_and_says_so(monkeypatch):
    def fit(net, x, y, *, measure, **options):
        measure(net, 0)
        raise train.DivergedError("the loss became nan at step 1")

    monkeypatch.setattr(train, "fit", fit)
    rows = evolution(0.01)
    assert set(rows["epoch"]) == {0}
    assert set(rows["ended"]) == {"diverged: the loss became nan at step 1"}


def test_weights_that_are_not_finite_are_divergence_too(monkeypatch):
    def fit(net, x, y, *, measure, **options):
        measure(net, 0)
        with torch.no_grad():
            next(iter(net.parameters())).fill_(math.inf)
        measure(net, 30)

    monkeypatch.setattr(train, "fit", fit)
    rows = evolution(0.01)
    assert rows["ended"].str.startswith("diverged").all()


def test_training_of_the_same_seed_gives_the_same_rows_and_another_seed_others(runs):
    again = evolution(0.01, seed=0)
    pd.testing.assert_series_equal(
        again["value"], runs.loc[runs["cell"] == 0, "value"].reset_index(drop=True)
    )
    ends = canatar.tangent_ends(runs)
    assert ends["test"].iloc[0] > 0.5  # chance is 0.1
    start = runs[(runs["what"] == "CKA") & (runs["of"] == "NTK–target") & (runs["epoch"] == 0)]
    first, second = (start[start["cell"] == cell]["value"].to_numpy() for cell in (0, 1))
    assert not np.allclose(first, second)


def test_stages_have_a_row_for_each_network_that_trained(runs):
    found = list(canatar.tangent_stages(runs, "CKA", "NTK–target"))
    assert [(images, rate) for images, rate, _ in found] == [("training", 0.01), ("test", 0.01)]
    for _, _, values in found:
        assert list(values.index) == [0, 1]
        assert set(values) == {"start", "middle", "end"}
        assert values.notna().all(axis=None)
    with pytest.raises(ValueError, match=r"1 ended dead.*lower the learning rates"):
        list(canatar.tangent_stages(runs[runs["cell"] == 2], "CKA", "NTK–target"))


def test_changes_are_taken_network_by_network(runs):
    changes = dict(canatar.tangent_changes(runs, "share", canatar.PENULTIMATE))
    end, start = (
        value(runs, what="share", of=canatar.PENULTIMATE, images="test", cell=1, stage=stage)
        for stage in ("end", "start")
    )
    found = changes["penultimate, test, rate 0.01: end − start"]
    assert found[1] == pytest.approx(end - start)
    assert len(found) == 2


def test_the_table_of_alignments_has_their_means_over_networks(runs):
    table = canatar.tangent_start_and_end(runs)
    both = runs[(runs["what"] == "KTA") & (runs["of"] == canatar.OPERATOR) & (runs["stage"] == "end")]
    wanted = both[(both["ended"] == "trained") & (both["images"] == "test")]["value"].mean()
    assert table.loc[(canatar.OPERATOR, "test", "0.01"), "KTA, end"] == pytest.approx(wanted)


def test_the_table_of_shares_has_both_measures_by_images_and_rate(runs):
    table = canatar.penultimate_shares(runs)
    assert list(table.index) == [("training", "0.01"), ("test", "0.01")]
    for what in ("share", "share of trace"):
        ((_, _, values), _) = canatar.tangent_stages(runs, what, canatar.PENULTIMATE)
        assert table.loc[("training", "0.01"), f"{what}, end"] == pytest.approx(values["end"].mean())


def test_fates_count_what_became_of_networks_at_each_rate(runs):
    found = canatar.tangent_fates(runs)
    assert found["networks"].tolist() == [2, 1]
    assert found["alive at the end"].tolist() == [2, 0]
    assert found["epochs"].tolist() == [30, 2]


def test_figures_draw_the_means_in_one_color_for_each_pair(runs):
    learned = runs[runs["ended"] == "trained"]
    figure = drawn(canatar.alignments_through_training(learned))
    right = figure.axes[1]
    wanted = learned[
        (learned["what"] == "CKA") & (learned["of"] == "NTK–target") & (learned["images"] == "training")
    ]
    wanted = wanted.groupby("epoch")["value"].mean()
    line = right.get_lines()[0]
    assert to_hex(line.get_color()) == to_hex("C0")
    assert line.get_ydata() == pytest.approx(wanted.to_numpy())
    colors = [to_hex(line.get_color()) for line in right.get_lines()]
    assert [colors.count(to_hex(f"C{k}")) for k in range(3)] == [2, 2, 2]  # training and test
    for draw, panels in ((canatar.tangent_spectra, 2), (canatar.tangent_shares, 1)):
        assert len(drawn(draw(learned)).axes) == panels


def test_a_dead_network_leaves_a_gap_in_the_figure(runs):
    figure = drawn(canatar.alignments_through_training(runs))
    (alive, dead) = figure.axes[1], figure.axes[3]
    assert max(line.get_xdata().max() for line in alive.get_lines()) == 30
    for line in dead.get_lines():
        assert len(line.get_xdata()) < 3
        assert np.isfinite(line.get_ydata()).all()
