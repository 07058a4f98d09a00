"""Selections of the table of networks: the values that figures and claims of several pages look at."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pandas as pd

# What tells one configuration from another.
FACTORS = ["skip", "augment", "batch", "rate", "momentum"]
# How a network ended: a column of every row.
_ENDS = ["fitted", "tested", "loss", "loss_augmented", "loss_without_augmentation"]


def ends(networks: pd.DataFrame) -> pd.DataFrame:
    """A row for each network: configuration, seed, and how it ended."""
    found = networks.drop_duplicates("cell")
    kept = [column for column in ("ended", *_ENDS) if column in found]
    return found[[*FACTORS, "seed", *kept]].reset_index(drop=True)


def counting(networks: pd.DataFrame) -> pd.DataFrame:
    """The rows of configurations that count: all of their networks fit, and none has a layer that is dead.

    So all configurations of a batch size are means over the same seeds, and what a seed brings along (its
    images, its first weights) is the same for all of them.
    """
    fits = networks["ended"] == "fits"
    alive = networks["reason"].fillna("") == ""
    whole = (fits & alive).groupby([networks[name] for name in FACTORS]).transform("all")
    if not whole.any():
        said = ", ".join(f"{n} {why}" for why, n in ends(networks)["ended"].value_counts().items())
        raise ValueError(f"no configuration fits its training images ({said}): train longer.")
    return networks[whole]


def counted(networks: pd.DataFrame) -> tuple[int, int]:
    """How many configurations count, of how many."""
    all_of_them = networks[FACTORS].drop_duplicates()
    return len(counting(networks)[FACTORS].drop_duplicates()), len(all_of_them)


def layers(
    networks: pd.DataFrame,
    value: str,
    *,
    images: str = "training",
    time: str = "end",
    features: str = "means",
) -> pd.DataFrame:
    """``value`` of every layer (columns) of every configuration that counts, worst test accuracy first."""
    kept = _looked(counting(networks), images, time, features)
    wide = kept.pivot_table(index=FACTORS, columns="layer", values=value)
    wide.columns = wide.columns.astype(int)
    order = kept.groupby(FACTORS)["tested"].mean().sort_values(kind="stable").index
    return wide.reindex(order)


def _looked(networks: pd.DataFrame, images: str, time: str, features: str) -> pd.DataFrame:
    """The rows of one look at the layers."""
    return networks[
        (networks["kind"] == "layer")
        & (networks["images"] == images)
        & (networks["time"] == time)
        & (networks["features"] == features)
    ]


def by_seed(networks: pd.DataFrame, value: str, images: str = "training", layer: int = 0) -> pd.DataFrame:
    """``value`` of one layer at the end, by configuration and its first, second, … seed; layer 0: all."""
    kept = _looked(counting(networks), images, "end", "means")
    if layer:
        kept = kept[kept["layer"] == layer]
    return _in_turn(kept, value)


def _in_turn(table: pd.DataFrame, value: str) -> pd.DataFrame:
    """Means of ``value`` by configuration (rows) and, counted from 0, by its seeds in turn (columns)."""
    place = table.groupby(FACTORS)["seed"].rank("dense").astype(int) - 1
    return table.assign(place=place).pivot_table(index=FACTORS, columns="place", values=value)


def replicates(by_seed: pd.DataFrame) -> pd.DataFrame:
    """Of every configuration the first seed (column ``one``), and the mean of the others (``other``).

    The means over augmentation and batch size are taken off: one strong factor alone, or the images of a
    batch size, would make any quantity agree with itself.
    """
    left = by_seed - by_seed.groupby(["augment", "batch"]).transform("mean")
    first, others = left.iloc[:, 0], left.iloc[:, 1:].mean(axis=1)
    return pd.DataFrame({"one": first, "other": others}).reset_index(drop=True)


def accuracy_by_seed(networks: pd.DataFrame) -> pd.DataFrame:
    """Test accuracy of every configuration that counts (rows), by its first, second, … seed (columns)."""
    return _in_turn(ends(counting(networks)), "tested")


def paired(table: pd.DataFrame, factor: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows with ``factor`` and those without, where both are there: alike in all other factors."""
    others = [name for name in FACTORS if name != factor]
    flat = table.reset_index()
    with_it = flat[flat[factor]].drop(columns=factor).set_index(others)
    without = flat[~flat[factor]].drop(columns=factor).set_index(others)
    both = with_it.index.intersection(without.index)
    return with_it.loc[both], without.loc[both]


def momentum_by_rate(networks: pd.DataFrame) -> pd.DataFrame:
    """Target CKA on training images with plain descent and with momentum, by rate and augmentation."""
    rows = {}
    found = layers(networks, "target")
    momentum, plain = paired(found, "momentum")
    for name, table in {"plain": plain, "momentum": momentum}.items():
        means = table.groupby(["rate", "augment"])[[8, 9, 10]].mean()
        for layer in means:
            rows[f"layer {layer}, {name}"] = means[layer]
    ordered = [f"layer {layer}, {name}" for layer in (8, 9, 10) for name in ("plain", "momentum")]
    return pd.DataFrame(rows)[ordered]


# Rows of table I: what the paper calls a quantity, and our column of it.
QUANTITIES = {
    "Skip": "skip",
    "Aug.": "augment",
    "Batch Size": "batch",
    "LR": "rate",
    "Momentum": "momentum",
    "Loss": "loss",
    "Test Acc.": "tested",
    "CKA (Test)": "last_test",
    "CKA (Train)": "last_training",
    "Avg. CKA (Test)": "average_test",
    "Avg. CKA (Train)": "average_training",
}
# Columns of table I, and its printed correlations.
AGAINST = ["Loss", "Test Acc.", "CKA (Test)", "CKA (Train)"]
PRINTED = [
    [0.097, -0.024, -0.026, -0.024],
    [0.335, 0.806, 0.529, 0.162],
    [-0.039, -0.247, -0.181, -0.045],
    [-0.078, 0.163, -0.035, -0.263],
    [0.099, 0.448, 0.823, 0.936],
    [1.000, 0.384, 0.366, 0.253],
    [0.384, 1.000, 0.850, 0.528],
    [0.366, 0.850, 1.000, 0.870],
    [0.253, 0.528, 0.870, 1.000],
    [0.279, 0.920, 0.944, 0.747],
    [0.221, 0.828, 0.930, 0.837],
]


def table_one() -> pd.DataFrame:
    """Table I as printed."""
    return pd.DataFrame(PRINTED, list(QUANTITIES), AGAINST)


def configurations(networks: pd.DataFrame) -> pd.DataFrame:
    """A row for each configuration, worst test accuracy first: factors as numbers, accuracy, losses, CKA.

    ``last_test`` is the CKA of the last layer with the labels of test images, ``average_training`` the mean
    over layers on training images, and so on; ``…_debiased`` the same with debiased CKA.
    """
    kept = ends(counting(networks)).groupby(FACTORS)[_ENDS].mean()
    columns: dict[str, pd.Series] = {name: kept[name] for name in _ENDS}
    for ending in ("", "_debiased"):
        for images in ("training", "test"):
            found = layers(networks, f"target{ending}", images=images)
            columns[f"last_{images}{ending}"] = found.iloc[:, -1]
            columns[f"average_{images}{ending}"] = found.mean(axis=1)
    table = pd.DataFrame(columns).sort_values("tested", kind="stable").reset_index()
    return table.astype(float)


def within(table: pd.DataFrame) -> pd.DataFrame:
    """The same table with the means over augmentation and batch size taken off every other column."""
    means = table.groupby(["augment", "batch"]).transform("mean")
    return table[means.columns] - means


def lost_by_resemblance(networks: pd.DataFrame, images: str) -> pd.Series:
    """What choosing a configuration by its last layer's CKA loses against choosing it by test accuracy.

    Two of the seeds choose, and the test accuracy on the third counts: a mean over the choices of a third
    seed, one value for each batch size.
    """
    accuracy = accuracy_by_seed(networks)
    resemblance = by_seed(networks, "target", images, layer=10).reindex(accuracy.index)
    lost = {}
    for batch, tested in accuracy.groupby("batch"):
        aligned = resemblance.loc[tested.index]
        lost[batch] = sum(
            tested.loc[tested.drop(columns=third).mean(axis=1).idxmax(), third]
            - tested.loc[aligned.drop(columns=third).mean(axis=1).idxmax(), third]
            for third in tested
        ) / len(tested.columns)
    return pd.Series(lost)


def correlations(table: pd.DataFrame) -> pd.DataFrame:
    """Pearson's correlations of table I, of the columns of :func:`configurations`."""
    found = table[list(QUANTITIES.values())].corr()
    found = found.loc[list(QUANTITIES.values()), [QUANTITIES[name] for name in AGAINST]]
    return found.set_axis(list(QUANTITIES), axis=0).set_axis(AGAINST, axis=1)


# The three networks under the lens.
WORST, POOR, BEST = "worst", "aligned but poor", "best"
# A group with fewer networks has no lower half to choose from.
FEWEST = 6


def three(networks: pd.DataFrame) -> pd.DataFrame:
    """The rows of three networks of every group, with their ``role``.

    A group is the networks of one seed, and so of one batch size, that fit. Its worst and best are those with
    the lowest and highest test accuracy; aligned but poor is, among the half with the lower accuracy without
    the worst, the one whose last two layers have the highest mean CKA with the labels of training images.
    Groups with fewer than ``FEWEST`` such networks have none.
    """
    kept = networks[networks["ended"] == "fits"]
    parts = []
    for _, part in kept.groupby("seed"):
        roles = _roles(part)
        parts.append(part.assign(role=part["cell"].map(roles)).dropna(subset="role"))
    found = pd.concat(parts, ignore_index=True) if parts else kept
    if found.empty:
        raise ValueError(f"no group has {FEWEST} networks that fit: train longer.")
    return found


def _roles(group: pd.DataFrame) -> dict[int, str]:
    accuracy = group.drop_duplicates("cell").set_index("cell")["tested"].sort_values(kind="stable")
    if len(accuracy) < FEWEST:
        return {}
    lower = accuracy.index[1 : (len(accuracy) + 1) // 2]
    last = _looked(group, "training", "end", "means")
    last = last[last["layer"].isin([9, 10])]
    resemblance = last.groupby("cell")["target"].mean().reindex(lower)
    return {accuracy.index[0]: WORST, resemblance.idxmax(): POOR, accuracy.index[-1]: BEST}


def groups(three: pd.DataFrame) -> pd.DataFrame:
    """A row for each group: what its worst network is, and layer 9 of the worst and the best at the end."""
    factors = ["batch", "skip", "rate", "momentum"]
    worst = three[three["role"] == WORST].drop_duplicates("seed").set_index("seed")[factors]
    wider = spectra(three, "gap") - spectra(three, "gap", time="start")
    aligned = spectra(three, "target")
    for role in (WORST, BEST):
        worst[f"layer 9 of the {role}: gap, end − start"] = wider[role][9]
        worst[f"layer 9 of the {role}: target CKA"] = aligned[role][9]
    return worst


def accuracies(three: pd.DataFrame) -> pd.DataFrame:
    """Test accuracy by group (its seed; rows) and role (columns)."""
    return three.drop_duplicates("cell").pivot_table(index="seed", columns="role", values="tested")


def spectra(three: pd.DataFrame, value: str, time: str = "end", images: str = "training") -> pd.DataFrame:
    """``value`` of the last two layers by group (its seed; rows), role and layer (columns)."""
    kept = _looked(three, images, time, "means")
    kept = kept[kept["layer"].isin([9, 10])].astype({"layer": int})
    return kept.pivot_table(index="seed", columns=["role", "layer"], values=value)


def training_beside_test(networks: pd.DataFrame) -> pd.DataFrame:
    """A row for each layer of each configuration: target CKA on training and on test images."""
    both = {images: layers(networks, "target", images=images).stack() for images in ("training", "test")}
    table = pd.DataFrame(both).reset_index()
    table["configuration"] = table.groupby(FACTORS).ngroup()
    return table


def steps_of_depth(networks: pd.DataFrame, value: str) -> Iterator[tuple[str, pd.Series]]:
    """What each layer has more than the layer before it, by configuration, on training and on test images."""
    for images in ("training", "test"):
        found = layers(networks, value, images=images)
        for earlier, later in pairwise(found.columns):
            yield f"{images}: layer {later} − layer {earlier}", found[later] - found[earlier]


def probe_errors(networks: pd.DataFrame) -> pd.DataFrame:
    """A row for each layer of each network that has a probe: its measured and its predicted error."""
    rows = networks[networks["kind"] == "probe"]
    columns = ["cell", "seed", "layer", "measured", "uncertain", "predicted"]
    return rows[columns].dropna().reset_index(drop=True)
