"""What random labels on a source do to the tasks that come after it (Imani et al. §7.3).

Where the layer cannot learn, as here, the areas are those of the images: of three classes of two points, each
on one direction, and of points that have a direction each.

>>> from torch import nn
>>> y = torch.tensor([0, 0, 1, 1, 2, 2])
>>> seen = {"together": (100 * torch.eye(6)[y], y), "one by one": (100 * torch.eye(6), y)}
>>> net, how = nn.Sequential(nn.Identity(), nn.Linear(6, 3)), {"epochs": 1}
>>> rows = transfers(net, "0", seen, seen, classes=3, source=how, target=how, seed=0, labels_seed=0)
>>> [(row["source"], row["target"], round(row["area"], 3)) for row in rows if "area" in row]
[('None', 'together', 0.707), ('None', 'one by one', 0.5), ('together', 'one by one', 0.5), \
('one by one', 'together', 0.707)]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from repalign.alignment import unit_rows
from repalign.data import random_labels
from repalign.features.hooks import extract
from repalign.models import replace_head
from repalign.papers.imani.pairs import class_pairs
from repalign.probes import fit_probes
from repalign.train import accuracy, fit
from repalign.train.recipes import Augment

if TYPE_CHECKING:
    import pandas as pd

Pair = tuple[Tensor, Tensor]
NONE = "None"  # the source of a network that has learned none


def transfers(
    base: nn.Module, layer: str, seen: Mapping[str, Pair], test: Mapping[str, Pair], *, classes: int,
    source: Mapping[str, Any], target: Mapping[str, Any], seed: int, labels_seed: int,
    augment: Augment | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Alignment with each target, and accuracy on it after fine-tuning, after each source and after none.

    ``seen`` and ``test`` have the images and class numbers of each domain. A copy of ``base`` learns random
    labels on the ``seen`` images of a source; then ``layer`` is measured on those of every other domain, with
    a constant appended and rows of length one, and a copy of that network learns their true labels. Both
    tasks begin with the same fresh last layer. ``source`` and ``target`` are options of ``fit`` for each,
    ``seed`` is that of last layers and order, and random labels have ``labels_seed``, the next domain's one
    more.

    Rows have one of three forms. ``source``, ``learned``: share of its random labels that a network knows.
    ``source``, ``target``, ``area``, ``probe``, ``accuracy``: the area under the curve of alignment as a
    share of the largest possible, a mean over all pairs of classes; the accuracy on ``test`` of a linear
    probe on ``layer`` as it is; and that after fine-tuning. The source is "None" for ``base`` itself.
    ``source``, ``target``, ``tau``, ``alignment``: a point of the mean of these curves.
    """
    if set(seen) != set(test) or len(seen) < 2 or NONE in seen:
        raise ValueError(
            f"seen and test should have the same domains, two or more, none with the name {NONE!r}, but have "
            f"{', '.join(seen) or 'none'} and {', '.join(test) or 'none'}: give each domain's images to both."
        )
    shares = torch.linspace(0, 1, 101).double()

    def trained(model: nn.Module, x: Tensor, y: Tensor, how: Mapping[str, Any]) -> nn.Module:
        copy = replace_head(model, classes, seed=seed)
        fit(copy, x, y, **how, augment=augment, seed=seed)
        return copy

    rows: list[dict[str, Any]] = []
    for k, before in enumerate((NONE, *seen), labels_seed - 1):
        model = base
        if before != NONE:
            x = seen[before][0]
            y = random_labels(len(x), classes, seed=k).to(x.device)
            model = trained(base, x, y, source)
            rows.append({"source": before, "learned": accuracy(model, x, y)})
        for after in [name for name in seen if name != before]:
            x, y = seen[after]
            phi = extract(model, x, [layer])[layer].double()
            tasks = class_pairs(unit_rows(phi, constant=True), y, shares)
            probe = fit_probes({layer: phi}, y)[layer]
            right = accuracy(trained(model, x, y, target), *test[after])
            unseen, truth = test[after]
            read = probe.predict(extract(model, unseen, [layer])[layer])
            known = float((read == truth.to(read.device)).double().mean())
            pair = {"source": before, "target": after}
            rows.append({**pair, "area": float(tasks.area.mean()), "probe": known, "accuracy": right})
            curve = zip(shares.tolist(), tasks.value.mean(0).tolist(), strict=True)
            rows += [{**pair, "tau": tau, "alignment": value} for tau, value in curve]
    return rows


def curves_lost(runs: pd.DataFrame, domains: Sequence[str]) -> pd.DataFrame:
    """The curve of alignment without a source minus that with it (figure 16).

    ``runs`` has the rows of :func:`transfers`, those of each run with its ``seed``.
    """
    curves = runs.dropna(subset="tau").pivot(
        index=["seed", "target", "tau"], columns="source", values="alignment"
    )
    lost = curves[[*domains]].rsub(curves[NONE], axis=0).stack().dropna()
    return lost.rename("alignment lost").reset_index()


def by_pair(values: pd.DataFrame, domains: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Values without and with the source: two tables with a column "source → target" for each pair.

    The columns of ``values`` are (source, target), its rows independent runs.

    >>> import pandas as pd
    >>> alone = {("None", "A"): [0.9], ("None", "B"): [0.8]}
    >>> right = pd.DataFrame({**alone, ("A", "B"): [0.5], ("B", "A"): [0.7]})
    >>> without, after = by_pair(right, ["A", "B"])
    >>> (without - after).round(1).to_dict("list")
    {'A → B': [0.3], 'B → A': [0.2]}
    """
    import pandas as pd

    pairs = {f"{a} → {b}": (a, b) for a, b in permutations(domains, 2)}
    without = {name: values[NONE, b] for name, (_, b) in pairs.items()}
    return pd.DataFrame(without), pd.DataFrame({name: values[pair] for name, pair in pairs.items()})


def in_order(values: pd.DataFrame, domains: Sequence[str]) -> pd.DataFrame:
    """Of each two sources, the first's mean over its targets minus the second's; columns "A above B".

    ``values`` has the columns of :func:`by_pair`.
    """
    import pandas as pd

    mean = {a: values[[f"{a} → {b}" for b in domains if b != a]].mean(axis=1) for a in domains}
    return pd.DataFrame({f"{a} above {b}": mean[a] - mean[b] for a, b in combinations(domains, 2)})


def rank_correlation(first: pd.DataFrame, second: pd.DataFrame) -> pd.Series:
    """Spearman's correlation of two tables within each row, over columns; 0 where a row has one value only.

    >>> import pandas as pd
    >>> fall = pd.DataFrame([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    >>> lost = pd.DataFrame([[1.0, 4.0, 9.0], [3.0, 2.0, 1.0], [5.0, 5.0, 5.0]])
    >>> rank_correlation(fall, lost).round(6).tolist()
    [1.0, -1.0, 0.0]
    """
    return first.rank(axis=1).corrwith(second.rank(axis=1), axis=1).fillna(0)
