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
# # Emergence of alignment in learned features
#
# *Section 4.2 of {cite:t}`imani2022`: figures 2 (c, d) and 5.*
#
# ```{note}
# Figure 5 uses 1000 points of the UCI CT position data in the paper. Where
# that set is not available, a body phantom with the same features replaces
# it, `ct_phantom`; figures and cards name what was used.
# ```
#
# The images of MNIST are aligned with their labels before anything is
# learned. So take that away: shuffle the labels. Does a network that learns
# them by heart make a representation that is aligned with them? And
# does every way of learning features do the same?

# %% tags=["hide-cell"]
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from repalign import data, features, linear, models, plots, study, train
from repalign.alignment import spectrum, unit_rows
from repalign.data import labels
from repalign.features.learned import KINDS as NAMES
from repalign.machine import devices

study.begin("imani/03_emergence")

# %% [markdown]
# ## The idea
#
# A representation $\Phi$ has a row for each of $n$ samples; its singular
# values are $\sigma_i$, its left singular vectors $u_i$. With $y$ the vector
# of labels, $\mathrm{Alignment}(\Phi, y, \tau)$ is the sum of
# $(u_i^\top y)^2$ over all $i$ with $\sigma_i \ge \tau$. On
# [the page before](02_alignment) the representation was given. Here it
# is learned: $\Phi_\theta$ is the last hidden layer of a network with the
# weights $\theta$ below it, and training changes $\theta$ along with the
# weights $w$ on top. Nothing in the loss $\ell$ that is minimized,
#
# $$
# \min_{\theta,\, w} \; \ell\bigl(\Phi_\theta\, w,\; y\bigr) ,
# $$
#
# asks for alignment: a wide random layer can fit the labels too, by large
# weights along small singular values. But small weights suffice once
# $\Phi_\theta$ is turned and stretched towards $y$, and that is nearer to
# where descent begins.
#
# Before scaling, a constant feature is appended to every representation, as
# in the authors' demonstration code; rows then have length one. Fully
# connected networks start from PyTorch's initialization, as there.
#
# ## A toy whose answer is known
#
# Eight samples, each with an input of its own, random labels, and a network
# with a single linear hidden unit. It can only fit if the unit becomes a
# multiple of the label. With rows of length one (and, in this toy, without a
# constant feature beside the unit), $\sigma_1 = \sqrt 8$ then holds all of
# $\|y\|^2 = 8$.

# %%
toy_y = torch.tensor([1.0, -1.0, -1.0, 1.0, -1.0, 1.0, 1.0, -1.0])
toy = models.MLP(
    8, 1, depth=1, width=1, activation="linear", bias=False, init="torch"
)
held = []
for epochs in (0, 300):
    if epochs:
        train.fit(
            toy, torch.eye(8), toy_y, loss="squared", lr=0.05, epochs=epochs
        )
    unit = features.extract(toy, torch.eye(8))["act1"]
    spec = spectrum(unit_rows(unit), toy_y)
    held.append([float(spec.sigma[0]) ** 2, float(spec.power[0])])
study.table(
    pd.DataFrame(held, ["before", "after"], ["σ₁²", "alignment up to σ₁"])
)

# %% [markdown]
# ## The claims of this page
#
# Each criterion was fixed before any recorded run. Logarithms are to base 10.

# %% tags=["hide-input"]
study.claims(
    dict(
        id="imani.fig2.emergence",
        paper="Trained on shuffled labels, the last hidden layer comes to "
        "have the labels along its top singular vectors (fig. 2 c, d).",
        criterion="the top 1% of directions hold at least 10 times more of "
        "‖y‖² after training than before (the logarithm of the ratio, mean "
        "over runs)",
    ),
    dict(
        id="imani.fig5",
        paper="The ReLU network's representation is better aligned than the "
        "RBF network's, and that better than sparse coding's (fig. 5).",
        criterion="for ReLU against RBF, and for RBF against dictionary, "
        "over the middle half of the thresholds between 0 and the largest at "
        "which one of the two still holds more than 10% of ‖y‖²: the mean "
        "difference of the two alignments is positive, and the first is the "
        "larger at more than 95% of these thresholds (means over runs)",
    ),
)

# %% [markdown]
# ## Settings

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"runs": 2}: replaces values in the table below

# %% tags=["hide-input"]
s = study.settings(
    profile,
    change,
    smoke=dict(
        mnist_n=120, depth=3, mnist_epochs=2, batch=64,
        n=80, units=96, epochs=3, passes=1, alpha=0.01, runs=2,
    ),
    laptop=dict(
        mnist_n=1000, depth=3, mnist_epochs=60, batch=64,
        n=500, units=512, epochs=60, passes=2, alpha=0.01, runs=3,
    ),
    desktop=dict(
        mnist_n=3000, depth=3, mnist_epochs=120, batch=64,
        n=1000, units=1024, epochs=200, passes=10, alpha=0.01, runs=5,
    ),
    paper=dict(
        mnist_n=10_000, depth=3, mnist_epochs=1000, batch=64,
        n=1000, units=1024, epochs=1000, passes=100, alpha=0.01, runs=5,
    ),
)  # fmt: skip
where = devices.device(device)
s

# %% [markdown]
# The first four settings are figure 2's; its hidden layers are as wide as the
# input, 784. The next five are figure 5's, of which the paper gives `n` and
# `units`; how long its representations were trained it does not say. It shows
# one run of each.
#
# ## Data
#
# For figure 2, zeros and ones of MNIST, as many of one as of the other,
# labels $\pm 1$ in shuffled order. For figure 5, CT slices, or the
# phantom's, and their height moved to $[-1, 1]$; those of
# [the first page](01_beyond_expressivity). Each run draws its own samples and
# has its own shuffle and training seed.

# %%
seeds = study.seeds(s.runs)
digits = {
    seed: data.load(
        "mnist", n=s.mnist_n, classes=("0", "1"), seed=seed, shrink=True
    )
    for seed in seeds
}
samples = {
    seed: data.load("ct_position", n=2 * s.n, seed=seed, shrink=True)
    for seed in seeds
}
images, slices = digits[seeds[0]], samples[seeds[0]]
m, n = len(images), len(slices) // 2
study.uses(images)
study.uses(slices)

# %% tags=["hide-input"]
mixed = labels.shuffled(images.y, seed=seeds[0])
fig, axes = plt.subplots(2, 10, figsize=(7.2, 1.6))
for row, label in zip(axes, (0, 1)):
    for ax, image in zip(row, images.x[mixed == label]):
        ax.imshow(image.squeeze(), cmap="gray_r")
        ax.axis("off")
study.show(
    fig,
    "imani.data_shuffled",
    "The first ten images of each class, as the network is told: every row "
    "has zeros and ones. There is nothing to learn but the list.",
)

# %% [markdown]
# ## Run
#
# First the shuffled labels: train, and decompose the last hidden layer
# before and after.


# %%
def by_heart(images, seed, depth, epochs, batch, device):
    """The first 60 directions before and after, with what the top 1% hold."""
    x = images.x.flatten(1).to(device)
    y = labels.shuffled(labels.signs(images.y), seed=seed)
    d = x.shape[1]
    net = models.MLP(d, 1, depth=depth, width=d, init="torch", seed=seed)
    net, specs = net.to(device), []

    def look(net, epoch):
        phi = features.extract(net, x)[net.probed[-1]].double()
        specs.append(spectrum(unit_rows(phi, constant=True), y.double()))

    train.fit(
        net, x, y, loss="logistic", epochs=epochs, batch_size=batch,
        seed=seed, measure=look, at=(0, epochs),
    )  # fmt: skip
    learned = train.accuracy(net, x, y)
    rows = []
    for stage, spec in zip(("before", "after"), specs):
        top = math.ceil(0.01 * len(spec.sigma))
        share = float(spec.power[:top].sum()) / len(y)
        about = dict(stage=stage, top=top, share=share, learned=learned)
        first = zip(range(1, 61), spec.sigma.tolist(), spec.power.tolist())
        rows += [
            about | dict(index=i, sigma=sigma, power=power)
            for i, sigma, power in first
        ]
    return rows


memorized = study.sweep(
    by_heart,
    [dict(images=digits[seed], seed=seed) for seed in seeds],
    depth=s.depth,
    epochs=s.mnist_epochs,
    batch=s.batch,
    device=str(where),
)

# %% [markdown]
# Then the three representations of
# [the first page](01_beyond_expressivity), by the same function: what was
# computed there comes from the store. Of its rows this page uses the
# alignment.

# %%
ETAS = (0.01, 0.1, 1.0, 10.0)


def one_run(
    slices, seed, kind, bandwidth, units, epochs, passes, alpha, steps, tau,
    device,
):  # fmt: skip
    """Errors after each of the steps, alignment at each threshold: rows."""
    x, half = unit_rows(slices.x), len(slices) // 2
    low, high = slices.y.min(), slices.y.max()
    y = 2 * (slices.y - low) / (high - low) - 1
    learned = features.learn(
        kind, x[:half], y[:half], units=units, epochs=epochs, passes=passes,
        bandwidth=bandwidth, alpha=alpha, seed=seed, device=device,
    )  # fmt: skip
    phi, y = unit_rows(learned(x).double(), constant=True), y.double()
    parts = phi[:half], y[:half], phi[half:], y[half:]
    spec, whole = spectrum(*parts[:2]), float(parts[1].square().sum())
    own = half / float(spec.sigma[0]) ** 2  # half of the largest stable step
    best = linear.squared_descent(*parts, eta=ETAS, steps=steps)
    alone = linear.squared_descent(*parts, eta=own, steps=steps)
    curves = {
        "training error": (steps, best.train),
        "test error": (steps, best.test),
        "training error, own step size": (steps, alone.train),
        "alignment": (tau, spec.alignment(tau)),
    }
    numbers = {
        "step size": best.eta,
        "own step size": own,
        "whole": whole,
        "share left": float(spec.residual) / whole,
        "area": float(spec.area()) / (math.sqrt(half) * whole),
    }
    return [
        dict(what=what, at=float(a), value=float(v))
        for what, (at, values) in curves.items()
        for a, v in zip(at, values)
    ] + [dict(what=k, at=math.nan, value=v) for k, v in numbers.items()]


WAYS = [(kind, 1.0) for kind in NAMES] + [("rbf", 0.5), ("rbf", 0.25)]
runs = study.sweep(
    one_run,
    [
        dict(slices=samples[seed], seed=seed, kind=kind, bandwidth=width)
        for kind, width in WAYS
        for seed in seeds
    ],
    units=s.units,
    epochs=s.epochs,
    passes=s.passes,
    alpha=s.alpha,
    steps=torch.tensor([0, *plots.spread(10_000, 300).tolist()]),
    tau=plots.thresholds(n, points=400),
    device=str(where),
)
