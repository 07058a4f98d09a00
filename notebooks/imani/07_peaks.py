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
# Nothing stands in. The paper trains "until convergence": `epochs` is ours.
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
# P_{X,Y,Z} = Y \;\text{ if }\; X > 0.5, \quad\text{else}\quad Z .
# $$
#
# A network learns one of these, the *source*. The *related* task has the same
# three variables in another order, the *unrelated* one the other three. To
# learn the source, a network makes its variables large in the hidden
# representation. Rows have length one, so what it adds to some variables it
# takes from others: the related task should gain, the unrelated one lose.
#
# ## A toy whose answer is known
#
# Two features $\pm 1$ that do not mix, four points. In rows of length one each
# has $\sigma = \sqrt 2$, and a label equal to either lies there with all its
# $\|y\|^2 = 4$. Make the first feature three times larger: now $\sigma_1 =
# \sqrt{3.6}$, $\sigma_2 = \sqrt{0.4}$. The alignment at $\tau = 1$, what lies
# along $\sigma \ge 1$, stays 4 for the first label and is 0 for the second.

# %%
toy = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
found = {}
for k in (1.0, 3.0):
    phi = unit_rows(toy * torch.tensor([k, 1.0]))
    found[f"first feature × {k:.0f}"] = alignment(phi, toy, tau=1.0)
study.table(pd.DataFrame(found, ["first label", "second label"]), "At τ = 1.")

# %% [markdown]
# ## The claims of this page
#
# With labels $y$, a representation of $n$ rows, singular values $\sigma_i$ and
# left singular vectors $u_i$ has the *area* $\sum_i \sigma_i (u_i^\top y)^2 /
# (\sqrt n \lVert y \rVert^2)$: that under its alignment curve, as a share of
# the largest possible. A difference *clears zero* when the 95% interval of
# its mean over runs, paired by run, lies on the claimed side.

# %% tags=["hide-input"]
study.claims()

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
    laptop=dict(n=2000, epochs=80, runs=10, **same),
    desktop=dict(n=10_000, epochs=400, runs=10, **same),
    paper=dict(n=10_000, epochs=1000, runs=10, **same),
)
s

# %% [markdown]
# ## Data
#
# Ten bumps encode every variable, so an input has 60 features; a row has
# length one, and labels have mean zero. The runs share nothing: each draws its
# inputs, its three tasks and fresh points for the test.

# %%
samples = []
for seed in study.seeds(s.runs):
    rng = np.random.default_rng(seed)
    source, others = np.split(rng.permutation(list("ABCDEF")), 2)
    related = list(permutations(source))[rng.integers(1, 6)]  # 0: the source
    tasks = ["".join(letters) for letters in (source, related, others)]
    points = data.load("peaks", n=s.n, classes=tasks, seed=seed)
    fresh = data.load("peaks", "test", n=s.test_n, classes=tasks, seed=seed)
    samples.append(dict(points=points, fresh=fresh, seed=seed))
points, fresh = ([run[k] for run in samples] for k in ("points", "fresh"))
study.uses(points[0])

# %% tags=["hide-input"]
fig, (a, b) = plt.subplots(1, 2, figsize=(7.4, 2.6), width_ratios=[2, 1])
a.imshow(points[0].x[:12], aspect="auto", cmap="viridis")
a.vlines(np.arange(10, 60, 10) - 0.5, -0.5, 11.5, color="white", lw=0.8)
a.set(xlabel="feature: ten for each of A to F", ylabel="sample")
b.hist(points[0].y[:, 0], bins=30, density=True)
b.set(xlabel=f"label of $P_{{{points[0].classes[0]}}}$", ylabel="density")
seen = """Left: the 60 features of twelve samples; the bright bumps of a block
say where its variable is. Right: labels of the first run's source."""
study.show(fig, "imani.peaks", seen)

# %% [markdown]
# ## Run
#
# Before scaling, a constant feature is appended to every representation, as in
# the authors' demonstration code; rows then have length one. Fully connected
# networks start from PyTorch's initialization, as there. Linear models learn a
# target task by gradient descent (proposition 1 gives all steps at once); of
# three step sizes, not the paper's, the lowest last training loss decides.


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
        {"original": x, "init": extract(before, x)["act1"],
         "transfer": extract(after, x)["act1"]}
        for x in (points.x, fresh.x)
    )  # fmt: skip
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
how |= dict(epochs=s.epochs, device=str(devices.device(device)))
one = study.sweep(transfer, samples, target_n=s.target_n, **how)
inputs = [dict(points=run["points"], seed=run["seed"]) for run in samples]
deep = study.sweep(layers, inputs, depth=s.deep, **how)

# %% [markdown]
# ## Figure 10: related and unrelated tasks
#
# The features as they came (original), the hidden layer before training (init)
# and after it (transfer). The table also has areas without the constant.

# %% tags=["hide-input"]
names = ["original", "init", "transfer"]
look = dict(tau="at", y="value", hue="features", col="task", sharey=True)
curves, order = one[one.quantity == "alignment"], dict(features=names)
fig = plots.alignment(curves, aspect=0.85, order=order, **look)
plt.setp(fig.axes, xlim=(0, max(ax.get_xlim()[1] for ax in fig.axes)))
seen = f"""Figure 10: {s.n} points, {s.runs} runs; bands are standard errors.
If the claim holds, transfer has the largest area under its curve on source and
related, and the smallest on unrelated."""
drawn = plots.averaged(curves, ["task", "features", "at"], "value", "seed")
study.show(fig, "imani.fig10", seen, table=drawn)
values = one.pivot_table("value", "seed", ["quantity", "task", "features"])
areas = values[["area", "area without constant"]].mean().unstack("features")
study.table(areas[names], "Areas, means over runs.")

# %% tags=["hide-input"]
effects = {}
for task, side in zip(TASKS, (study.above, study.above, study.below)):
    for other in names[:2]:
        gap = values["area", task, "transfer"] - values["area", task, other]
        effects[f"{task}: transfer {side.__name__} {other}"] = side(gap)
loss = one[one.quantity == "loss"].groupby("at").value.mean().tolist()
measured = {"error on the source, first and last epoch": loss}
study.claim("imani.fig10", effects=effects, measured=measured, data=points)

# %% [markdown]
# ## Figure 11: few points of a new task
#
# A linear model learns from few points of the target, on each representation.

# %% tags=["hide-input"]
by = ["quantity", "task", "features", "at"]
panels = dict(train="error", test="error", norm="norm of the weights")
kept = one.assign(panel=one.quantity.map(panels)).dropna()
kept = kept[kept.groupby(by).value.transform("size") == s.runs]
facets = dict(hue="features", style="quantity", row="panel", col="task")
facets |= dict(sharey="row", height=2.7, labels=dict(value=""))
order["quantity"] = ["test", "train", "norm"]
fig = plots.curves(kept, x="at", y="value", order=order, **facets)
plt.setp(fig.axes[:2], xscale="log", xlabel="step")
plt.setp(fig.axes[2:], yscale="log", xlabel="share of training loss removed")
fig.subplots_adjust(hspace=0.45)
seen = f"""Figure 11: {s.target_n} points of the target, {s.runs} runs, bands
are standard errors. Above (a, b): mean squared errors. Below (c, d): weights
that remove a share of training loss, as far as all runs do in 10,000 steps."""
drawn = plots.averaged(kept, by, "value", "seed")
study.show(fig, "imani.fig11", seen, table=drawn)
error, area = values["test"], values["area of target points"]
half = one[one["at"] == 0.5].pivot_table("value", "seed", by[:3])
half = half.reindex(columns=values.columns)["norm"]
columns = {"area of the points": area.mean(), "test error": error.mean()}
columns["runs that remove half"] = half.count()
columns["norm there (geometric mean)"] = np.exp(np.log(half).mean())
study.table(pd.DataFrame(columns), "Means over runs.")

# %% tags=["hide-input"]
mirror, weights = {}, {}
for task, side in (("related", study.below), ("unrelated", study.above)):
    logs = np.log(half[task].dropna())
    weights[f"{task}: all three remove half"] = study.share(len(logs), s.runs)
    for a, b in combinations(names, 2):
        gap = error[task, b] - error[task, a]
        lead = study.above(np.sign(area[task, a] - area[task, b]) * gap)
        mirror[f"{task}: {a} and {b} mirrored"] = lead
        if b == "transfer":
            word = f"of transfer {side.__name__} {a}"
            mirror[f"{task}: error {word}"] = side(gap)
            if len(logs) > 1:
                weights[f"{task}: norm {word}"] = side(logs[b] - logs[a])
study.claim("imani.fig11", effects=mirror)
study.claim("imani.fig11.weights", effects=weights, data=points)

# %% [markdown]
# ## Figure 12: later layers specialize

# %% tags=["hide-input"]
curves = deep[deep.quantity == "alignment"]
fig = plots.alignment(curves, **look)
seen = f"""Figure 12: the {s.deep} hidden layers of a network trained on the
source. If the claim holds, each layer is better aligned with the source than
the one before (left), but not with the related task (right)."""
drawn = plots.averaged(curves, ["task", "features", "at"], "value", "seed")
study.show(fig, "imani.fig12", seen, table=drawn)
values = deep.pivot_table("value", "seed", ["quantity", "task", "features"])
study.table(values["area"].mean().unstack("features"), "Areas, means of runs.")

# %% tags=["hide-input"]
hidden = values["area"].drop(columns="input", level="features")
source, related = (hidden[k].diff(axis=1).iloc[:, 1:] for k in TASKS[:2])
more = (source - related).add_suffix(": source above related")
rises = source.add_suffix(" on source").join(more).add_prefix("rise to ")
effects = {name: study.above(rises[name]) for name in rises}
least = related.min(axis=1)
effects["related: smaller rise of a run below 0"] = study.below(least)
measured = {"related: runs in which a layer falls": int((least < 0).sum())}
study.claim("imani.fig12", effects=effects, measured=measured, data=points)

# %% [markdown]
# ## What differs from the paper, and why
#
# - The paper compares curves by eye; here we compare areas and mean errors. In
#   the authors' demonstration code hidden layers have no biases; ours have.
# - `imani.fig11.weights` compares norms in the runs in which all three
#   representations remove half of the loss. How many do is an effect of its
#   own; with fewer than two such runs there is nothing to compare.
#
# ## Try it
#
# 1. Set `change = {"epochs": 10}`. Do later layers specialize already?
# 2. Set `change = {"target_n": 1000}`. Does negative transfer survive?
# 3. Give the related task only two of the source's variables.

# %% tags=["hide-input"]
study.stamp()
