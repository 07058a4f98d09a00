# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Peaks: transfer, positive and negative
#
# *Section 7.1 of {cite:t}`imani2022`: figures 10, 11 and 12.*
#
# A representation learned for one task can help another, or harm it. The
# peaks functions of {cite:t}`caruana1997` are a family of tasks of which we
# know which are related, so alignment can be checked against the truth.
#
# ```{note}
# Nothing stands in here: the inputs are drawn as the paper describes, and the
# networks are its own. It trains them "until convergence"; the number of
# epochs is ours.
# ```

# %% tags=["hide-cell"]
import copy
from itertools import combinations, permutations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from repalign import data, linear, models, plots, study, train
from repalign.alignment import alignment, spectrum, unit_rows
from repalign.features import extract
from repalign.machine import devices

study.begin("imani/07_peaks")

# %% [markdown]
# ## The idea
#
# A peaks function looks at three of six variables $A$ to $F$, each uniform on
# $[0, 1)$. For any three of them, called $X$, $Y$ and $Z$,
#
# $$
# P_{X,Y,Z} = \begin{cases} Y & \text{if } X > 0.5 \\ Z & \text{else.}
# \end{cases}
# $$
#
# A network learns one such function, the *source*. The *related* task takes
# the same three variables in another order, the *unrelated* one the other
# three. A network that learns the source makes its variables large in the
# hidden representation. Rows have length one, so what it makes larger
# for some variables it takes from the others: training should raise alignment
# with the source and the related task, and lower it with the unrelated one.
#
# ## A toy whose answer is known
#
# Two features $\pm 1$ that do not mix, four points. In rows of length one each
# has $\sigma = \sqrt 2$, and a label equal to either feature has all its
# power, 4, there. Make the first feature three times larger: now $\sigma_1
# = \sqrt{3.6}$ and $\sigma_2 = \sqrt{0.4}$. At $\tau = 1$ the first label
# keeps its 4, the second drops to 0.

# %%
toy = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
scales = {"before": (1.0, 1.0), "first feature times 3": (3.0, 1.0)}
study.table(
    pd.DataFrame(
        {
            name: alignment(unit_rows(toy * torch.tensor(scale)), toy, tau=1.0)
            for name, scale in scales.items()
        },
        index=["label = first feature", "label = second feature"],
    ),
    "Alignment at τ = 1.",
)

# %% [markdown]
# ## The claims of this page
#
# A representation $\Phi$ with $n$ rows, singular values $\sigma_i$ and left
# singular vectors $u_i$ has with labels $y$ the *area* $\sum_i \sigma_i
# (u_i^\top y)^2 / (\sqrt n\, \lVert y \rVert^2)$: that under its alignment
# curve, as a share of the largest possible one. A difference *clears zero*
# when its 95% interval over the runs, paired by run, lies on the claimed side.

# %% tags=["hide-input"]
study.claims(
    dict(
        id="imani.fig10",
        paper="Training on a source task raises alignment with the source "
        "and with a related task, and lowers it with an unrelated one, "
        "beyond the original features (fig. 10).",
        criterion="area of transfer above that of original and of init on "
        "source and related, below both on unrelated: each of the six "
        "differences clears zero",
    ),
    dict(
        id="imani.fig11",
        paper="With 100 points of the target task, the test errors of "
        "linear models mirror the alignment of their features "
        "(fig. 11 a, b).",
        criterion="test error is the mean over log-spaced steps 1 to 10,000, "
        "area that of the same target points; on the related and on the "
        "unrelated task, of each of the three pairs of representations the "
        "one with the larger area in a run has the lower test error in it; "
        "and transfer's test error is below both others on related, above "
        "both on unrelated: each of the ten differences clears zero",
    ),
    dict(
        id="imani.fig11.weights",
        paper="The aligned representation removes loss with small weights, "
        "the badly aligned one has to grow them (fig. 11 c, d).",
        criterion="on the related and on the unrelated task, all three "
        "representations remove half of the training loss within 10,000 "
        "steps in more than half of the runs; in those runs, when half is "
        "removed, the norm of transfer's weights is below both others on "
        "related, above both on unrelated: each difference of logarithms "
        "clears zero",
    ),
    dict(
        id="imani.fig12",
        paper="With three hidden layers, later layers are ever better "
        "aligned with the source task, but not with a related one "
        "(fig. 12).",
        criterion="area rises on the source from layer 1 to 2 and from 2 to "
        "3; at each of these steps it rises more on the source than on the "
        "related task; on the related task the smaller of a run's two rises "
        "is below zero: each of the five means clears zero",
    ),
)

# %% [markdown]
# ## Settings

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"runs": 2}: replaces values in the table below

# %% tags=["hide-input"]
same = dict(width=60, lr=0.001, batch=64, deep=3, target_n=100, test_n=1000)
s = study.settings(
    profile,
    change,
    smoke=dict(n=300, epochs=2, runs=2, **same),
    laptop=dict(n=4000, epochs=100, runs=10, **same),
    desktop=dict(n=10_000, epochs=400, runs=10, **same),
    paper=dict(n=10_000, epochs=1000, runs=10, **same),
)
where = devices.device(device)
s

# %% [markdown]
# ## Data
#
# Every variable is encoded by ten bumps, so an input has 60 features; a row
# has length one, and labels have mean zero. Each run draws its own
# inputs, its own three tasks and fresh points for the test.


# %%
def draw_tasks(seed):
    """Source, related and unrelated function of one run."""
    rng = np.random.default_rng(seed)
    source, others = np.split(rng.permutation(list("ABCDEF")), 2)
    related = list(permutations(source))[rng.integers(1, 6)]  # 0: the source
    return ["".join(letters) for letters in (source, related, others)]


def draw(seed):
    """Points to learn from and fresh ones to test on."""
    how = dict(classes=draw_tasks(seed), seed=seed)
    points = data.load("peaks", n=s.n, **how)
    fresh = data.load("peaks", "test", n=s.test_n, **how)
    return dict(points=points, fresh=fresh, seed=seed)


samples = [draw(seed) for seed in study.seeds(s.runs)]
first = samples[0]["points"]
study.uses(first)
study.uses(samples[0]["fresh"])

# %% [markdown]
# ## Run
#
# A network learns the source. Before scaling, a constant feature is appended
# to every representation, as in the authors' demonstration code; rows then
# have length one. Fully connected networks start from PyTorch's
# initialization, as there. The linear models of figure 11 learn by gradient
# descent, of which proposition 1 gives all steps at once; their step
# size is the best of three by final training loss.


# %%
TASKS = ("source", "related", "unrelated")
ETAS = (0.01, 0.1, 1.0)  # step sizes of the linear models
STEPS = torch.from_numpy(plots.spread(10_000, 120))
SHARES = np.arange(1, 50) / 50  # of the training loss


def rows(quantity, values, at=(0,), **which):
    """A row for each value, with its place on the horizontal axis."""
    which["quantity"], pairs = quantity, zip(at, np.atleast_1d(values))
    return [dict(**which, at=float(a), value=float(v)) for a, v in pairs]


def learn_source(points, depth, width, seed, device, **recipe):
    """A network before and after it learns the source, and its losses."""
    shape = dict(depth=depth, width=width)
    before = models.MLP(60, 1, init="torch", seed=seed, **shape).to(device)
    after = copy.deepcopy(before)
    x, y = points.x.to(device), points.y[:, :1].to(device)
    loss = train.fit(after, x, y, loss="squared", seed=seed, **recipe).loss
    return before, after, rows("loss", [loss[0], loss[-1]], (1, len(loss)))


def measure(phi, y, constant=True):
    """Spectrum, and area as a share of the largest possible one."""
    found = spectrum(unit_rows(phi.double(), constant=constant), y.double())
    return found, found.area() / (len(y) ** 0.5 * y.double().square().sum(0))


def aligned(features, y):
    """Areas and alignment curves of representations with each task."""
    tau, out = plots.thresholds(len(y), reach=0.5**0.5, points=200), []
    for name, phi in features.items():
        found, area = measure(phi, y)
        _, plain = measure(phi, y, constant=False)
        for k in range(y.shape[1]):
            which = dict(features=name, task=TASKS[k])
            curve = found.curve(tau).value[:, k]
            out += rows("alignment", curve, tau, **which)
            out += rows("area", area[k], **which)
            out += rows("area without constant", plain[k], **which)
    return out


def learned(known, new, y, test_y, task):
    """Learning curves of linear models on a few points of a target task."""
    out, y, test_y = [], y.double(), test_y.double()
    for name, few in known.items():
        which = dict(features=name, task=task)
        phi = unit_rows(few.double(), constant=True)
        test = unit_rows(new[name].double(), constant=True)
        fit = linear.squared_descent(
            phi, y, test, test_y, eta=ETAS, steps=STEPS
        )
        removed = np.append(0.0, 1 - fit.train / y.square().mean())
        reached = SHARES[removed[-1] >= SHARES]
        norm = np.interp(reached, removed, np.append(0.0, fit.norm))
        out += rows("train", fit.train, STEPS, **which)
        out += rows("test", fit.test, STEPS, **which)
        out += rows("norm", norm, reached, **which)
        out += rows("area of target points", measure(few, y)[1], **which)
    return out


def transfer(points, fresh, seed, target_n, **how):
    """Figures 10 and 11: three representations, one hidden layer."""
    before, after, out = learn_source(points, 1, seed=seed, **how)
    known, new = (
        {
            "original": x,
            "init": extract(before, x)["act1"],
            "transfer": extract(after, x)["act1"],
        }
        for x in (points.x, fresh.x)
    )
    rng = np.random.default_rng([seed, 1])
    few = torch.from_numpy(rng.permutation(len(points.x))[:target_n])
    some = {name: phi[few] for name, phi in known.items()}
    for k in (1, 2):
        y, test_y = points.y[few, k], fresh.y[:, k]
        out += learned(some, new, y, test_y, TASKS[k])
    return out + aligned(known, points.y)


def layers(points, seed, depth, **how):
    """Figure 12: the input and every hidden layer."""
    _, after, out = learn_source(points, depth, seed=seed, **how)
    found = enumerate([points.x, *extract(after, points.x).values()])
    named = {f"layer {k}" if k else "input": phi for k, phi in found}
    return out + aligned(named, points.y[:, :2])


how = dict(width=s.width, optimizer="adam", lr=s.lr, batch_size=s.batch)
how |= dict(epochs=s.epochs, device=str(where))
one = study.sweep(transfer, samples, target_n=s.target_n, **how)
inputs = [dict(points=run["points"], seed=run["seed"]) for run in samples]
deep = study.sweep(layers, inputs, depth=s.deep, **how)
one, deep = one.drop(columns=["points", "fresh"]), deep.drop(columns="points")
