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
# # Alignment in a variety of networks
#
# *Section 5 (first half) and appendix A of {cite:t}`imani2022`: figures 6,
# 17 and 18.*
#
# ```{note}
# The paper's regression task is the UCI CT position data. Where that set is
# not available, a body phantom with the same features replaces it,
# `ct_phantom`; captions and cards name what was used.
# ```
#
# Does training align the hidden representation with the labels only in some
# networks, or in all of them? This page varies one thing at a time: depth,
# width, activation, optimizer, batch size.

# %% tags=["hide-cell"]
import math

import matplotlib.pyplot as plt
import pandas as pd
import torch

from repalign import data, features, models, plots, study, train
from repalign.alignment import alignment_curve, spectrum, unit_rows
from repalign.machine import devices

study.begin("imani/04_variety")

# %% [markdown]
# ## The idea
#
# Let $\Phi$ be a representation of $n$ samples, one row each, with singular
# values $\sigma_i$ and left singular vectors $u_i$, and let $y$ be the
# vector of labels. $\mathrm{Alignment}(\Phi, y, \tau)$ is the sum of
# $(u_i^\top y)^2$ over the directions with $\sigma_i \ge \tau$. One number
# makes the curves of many networks comparable: the area under them. Direction
# $i$ counts for every threshold $\tau$ from 0 to $\sigma_i$, so
#
# $$
# \int_0^\infty \mathrm{Alignment}(\Phi, y, \tau)\, d\tau
# = \sum_i \sigma_i \, (u_i^\top y)^2 .
# $$
#
# The area is large when the labels lie along directions with large singular
# values. Rows of length one give $\sigma_1 \le \sqrt n$, so it is at most
# $\sqrt n\, \|y\|^2$, reached when the labels are the only direction there is.
# Areas below are shares of that.
#
# Before scaling, a constant feature is appended to every representation, as
# in the authors' demonstration code; rows then have length one. Fully
# connected networks start from PyTorch's initialization, as there.
#
# ## A toy whose answer is known
#
# Singular values 2 and 1 with powers 9 and 16: the curve is 25 up to 1 and 9
# up to 2, an area of $25 + 9 = 34$. The sum says $2 \cdot 9 + 1 \cdot 16$.

# %%
toy = torch.diag(torch.tensor([2.0, 1.0])), torch.tensor([3.0, 4.0])
curve = alignment_curve(*toy)
area = {
    "under the curve": (curve.tau.diff() * curve.value[1:]).sum().item(),
    "by the formula": spectrum(*toy).area().item(),
}
study.table(pd.DataFrame(area, index=["area"]), "The toy's area, twice.")

# %% [markdown]
# ## The claims of this page
#
# The *area* is that under the alignment curve, as a share of the largest
# possible. The *last hidden layer* is what the linear output layer sees.

# %% tags=["hide-input"]
study.claims(
    dict(
        id="imani.fig6.depth",
        paper="Training increases alignment at every depth (fig. 6).",
        criterion="on each data set, the area of the last hidden layer after "
        "training is above its area at initialization and above that of the "
        "input: of the differences at all depths the smallest is taken in "
        "each run, and the 95% interval of its mean over runs lies above zero",
    ),
    dict(
        id="imani.fig6.width",
        paper="Training increases alignment at every width (fig. 6).",
        criterion="on each data set, the area of the last hidden layer after "
        "training is above its area at initialization and above that of the "
        "input: of the differences at all widths the smallest is taken in "
        "each run, and the 95% interval of its mean over runs lies above zero",
    ),
    dict(
        id="imani.fig6.activation",
        paper="Training increases alignment for every activation, also for "
        "linear networks (fig. 6).",
        criterion="on each data set, the area of the last hidden layer after "
        "training is above its area at initialization and above that of the "
        "input: of the differences for all activations the smallest is taken "
        "in each run, and the 95% interval of its mean over runs lies above "
        "zero",
    ),
    dict(
        id="imani.fig17",
        paper="Training increases alignment with every optimizer and batch "
        "size (fig. 17).",
        criterion="on each data set, the area of the last hidden layer after "
        "training is above its area at initialization and above that of the "
        "input: of the differences for all optimizers and batch sizes the "
        "smallest is taken in each run, and the 95% interval of its mean "
        "over runs lies above zero",
    ),
    dict(
        id="imani.fig18",
        paper="The increase in alignment occurs on test data too (fig. 18).",
        criterion="on the test part of each data set, the area of the last "
        "hidden layer after training is above its area at initialization and "
        "above that of the input: of the differences for all networks of the "
        "five sweeps the smallest is taken in each run, and the 95% interval "
        "of its mean over runs lies above zero",
    ),
)

# %% [markdown]
# ## Settings

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"runs": 2}: replaces values in the table below

# %% tags=["hide-input"]
same = dict(n=1000, test_n=1000, depth=4, width=128, batch=64)
same |= dict(lr_adam=[0.001], lr_sgd=[0.001, 0.01, 0.1])
every = same | dict(
    depths=[1, 2, 4, 8],
    widths=[32, 64, 128, 256],
    activations=["relu", "tanh", "prelu", "leaky_relu", "linear"],
    optimizers=["sgd", "momentum", "adam"],
    batches=[32, 128, 256],
)
most = every | dict(depths=[1, 4, 8], widths=[32, 128])
some = dict(depths=[1, 4], widths=[32, 128], batches=[32, 128])
some |= dict(activations=["relu", "linear"], optimizers=["sgd", "adam"])
some |= same | dict(n=100, test_n=100)


def steps(regression, classes):
    """Updates of the weights on each task."""
    return dict(ct_position=regression, mnist=classes, cifar10=classes)


s = study.settings(
    profile,
    change,
    smoke=dict(runs=2, steps=steps(2, 2), **some),
    laptop=dict(runs=3, steps=steps(500, 150), **most),
    desktop=dict(runs=5, steps=steps(1600, 600), **every),
    paper=dict(runs=5, steps=steps(1600, 1600), **every),
)
where = devices.device(device)
s

# %% [markdown]
# `steps` are updates of the weights, the same for all batch sizes. The paper
# gives the base network (depth 4, width 128, Adam), the activations, the batch
# sizes and 5 runs. Its demonstration code has 1000 points, batches of 64, Adam
# with 0.001 and 100 epochs, which are 1600 steps. Nothing names the depths,
# widths, optimizers and their step sizes: those in the paper's column are
# ours.
#
# ## Data
#
# One regression and two classifications: the height of a CT slice, moved to
# $[-1, 1]$; zeros against ones; airplanes against automobiles. Training and
# test points have no sample in common. As in the demonstration code, pixels of
# the photographs run from −1 to 1; digits and slices stay as they are.
#
# Every run draws its own samples. Runs share few of their training points,
# and about half of the test points of the two classifications, whose test
# sets hold some 2000 samples of these classes.


# %%
def draw(name, seed):
    """Training and test samples of one run."""
    if name == "ct_position":  # it has no split of its own
        both = data.load(name, n=s.n + s.test_n, seed=seed, shrink=True)
        first = len(both) * s.n // (s.n + s.test_n)
        return data.disjoint(both, first, len(both) - first, seed=seed)
    wanted = dict(classes=(0, 1), seed=seed, shrink=True)
    return (
        data.load(name, n=s.n, **wanted),
        data.load(name, "test", n=s.test_n, **wanted),
    )


seeds = study.seeds(s.runs)
samples = {
    (name, seed): draw(name, seed) for name in s.steps for seed in seeds
}
shown = [samples[name, seeds[0]] for name in s.steps]
for train_part, test_part in shown:
    study.uses(train_part)
    if test_part.split == "test":
        study.uses(test_part)

# %% tags=["hide-input"]
fig, axes = plt.subplots(3, 8, figsize=(7.2, 2.8))
for line, (train_part, _) in zip(axes, shown):
    for ax, sample in zip(line, train_part.x):
        flat = sample.ndim == 1
        picture = sample.reshape(16, 24) if flat else sample.permute(1, 2, 0)
        gray = "viridis" if flat or len(sample) > 1 else "gray_r"
        ax.imshow(picture.squeeze(), cmap=gray)
        ax.axis("off")
study.show(
    fig,
    "imani.data3",
    "Eight training samples of each task. Top: the 384 features of a slice of "
    f"{shown[0][0].name}, sixteen rows of 24, which are "
    "histograms and not a picture.",
)

# %% [markdown]
# ## Run
#
# One run trains one network on its own samples, and looks at the last hidden
# layer before and after, on training and on test data. SGD and momentum try
# three step sizes; the one with the lowest training loss counts.


# %%
def as_task(data, test):
    """Inputs as rows, and labels moved to [−1, 1], of both parts."""
    low, high = float(data.y.min()), float(data.y.max())
    for part, of in (("train", data), ("test", test)):
        x, y = of.x.flatten(1), 2 * (of.y.float() - low) / (high - low) - 1
        yield part, 2 * x - 1 if of.name == "cifar10" else x, y


def look(phi, y):
    """The area, with and without the constant, and the curve."""
    phi, y = phi.double(), y.double()
    found = spectrum(unit_rows(phi, constant=True), y)
    curve = found.curve(plots.thresholds(len(y), points=100))
    full = len(y) ** 0.5 * float(y.square().sum())
    return dict(
        area=float(found.area()) / full,
        bare=float(spectrum(unit_rows(phi), y).area()) / full,
        length=float(phi.norm(dim=1).mean()),
        tau=curve.tau.tolist(),
        alignment=curve.value.tolist(),
    )


def of_input(data, test, seed):
    """What the labels have to do with the input of one run."""
    return [dict(part=p, **look(x, y)) for p, x, y in as_task(data, test)]


def one_run(
    data, test, seed, steps, depth, width, activation, optimizer, batch,
    lr, device,
):  # fmt: skip
    """The last hidden layer of one network, before and after training."""
    task = list(as_task(data, test))
    _, x, y = task[0]

    def new():
        net = dict(depth=depth, width=width, activation=activation)
        made = models.MLP(x.shape[1], 1, init="torch", seed=seed, **net)
        return made.to(device)

    loss, tried = "logistic" if data.classes else "squared", []
    how = dict(optimizer=optimizer, loss=loss, batch_size=batch, seed=seed)
    how |= dict(epochs=math.ceil(steps / math.ceil(len(y) / batch)), at=[])
    for rate in lr["adam" if optimizer == "adam" else "sgd"]:
        net = new()
        try:
            tried.append((train.fit(net, x, y, lr=rate, **how).loss[-1], net))
        except train.DivergedError:  # too large a step size
            continue
    final, trained = min(tried, key=lambda one: one[0])
    rows, last = [], f"act{depth}"
    for stage, net in (("initial", new()), ("trained", trained)):
        for part, x_, y_ in task:
            phi = features.extract(net, x_, last)[last]
            rows += [dict(stage=stage, part=part, loss=final, **look(phi, y_))]
    return rows


base = dict(depth=s.depth, width=s.width, activation="relu")
base |= dict(optimizer="adam", batch=s.batch)
sweeps = dict(depth=s.depths, width=s.widths, activation=s.activations)
sweeps |= dict(optimizer=s.optimizers, batch=s.batches)
changed = [base | {k: v} for k, values in sweeps.items() for v in values]
networks = [net for i, net in enumerate(changed) if net not in changed[:i]]
parts = [
    dict(data=train_part, test=test_part, seed=seed)
    for (_, seed), (train_part, test_part) in samples.items()
]
tasks = [dict(p, steps=s.steps[n]) for p, (n, _) in zip(parts, samples)]
inputs = study.sweep(of_input, parts)
runs = study.sweep(
    one_run,
    [task | net for task in tasks for net in networks],
    lr=dict(adam=s.lr_adam, sgd=s.lr_sgd),
    device=str(where),
)
