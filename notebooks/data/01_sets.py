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
# # The data sets, looked at
#
# *The data of all five papers: {cite:t}`lecun1998`, {cite:t}`xiao2017`,
# {cite:t}`krizhevsky2009`, {cite:t}`graf2011`, and what is drawn.*
#
# Before anything is measured on a data set it should be seen, counted and
# compared with what its authors say of it. [](../../book/data) says where the
# bytes come from and under which license.

# %% tags=["hide-cell"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from repalign import data, study
from repalign.alignment import spectrum, unit_rows
from repalign.data import ct_phantom

study.begin("data/01_sets")

# %% [markdown]
# ## The idea
#
# A set is asked for by name and comes with a *fingerprint*: a hash of the
# chosen images themselves, their labels and their names,
#
# $$
# \mathrm{fingerprint} = H\bigl(\text{images}, \text{labels},
# \text{classes}, \text{name}, \text{split}\bigr) ,
# $$
#
# so that the same images from two sources are the same to every result that
# rests on them.
#
# ## A toy whose answer is known
#
# Asking twice gives the same samples; asking with another seed does not. As
# many samples come from each class.

# %%
draws = [data.load("mnist", n=20, seed=seed) for seed in (0, 0, 1)]
toy = pd.DataFrame(
    {
        "seed": (0, 0, 1),
        "fingerprint": [d.fingerprint for d in draws],
        "as the first": [torch.equal(draws[0].x, d.x) for d in draws],
        "of each class": [d.y.bincount().unique().tolist() for d in draws],
    },
    index=["first", "again", "another seed"],
)
study.table(toy, "Twenty digits, asked for three times.")

# %% [markdown]
# ## The claims of this page
#
# Published mean and standard deviation of the pixels, and the number of
# images in each class, of the whole training split. Where only a part of a set
# is on the machine, its claim is untested: a subset says nothing of the whole.

# %% tags=["hide-input"]
study.claims()

# %% [markdown]
# ## Settings

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # the page only looks: it runs on the CPU
change = {}  # for example {"n": 500}: replaces values in the table below

# %% tags=["hide-input"]
s = study.settings(
    profile,
    change,
    smoke=dict(n=1000, slices=1000, runs=2),
    laptop=dict(n=60_000, slices=8000, runs=3),
    desktop=dict(n=60_000, slices=8000, runs=10),
    paper=dict(n=60_000, slices=53_500, runs=10),
)
s

# %% [markdown]
# ## Data

# %%
sets = {
    name: data.load(name, n=s.n, seed=0, shrink=True, dtype=torch.uint8)
    for name in ("mnist", "fashion_mnist", "cifar10")
}
for images in sets.values():
    study.uses(images)

# %% [markdown]
# Eight images of each class, as they come.


# %% tags=["hide-input"]
def sheet(dataset, id):
    """Eight images of each class, a class in a column."""
    columns = len(dataset.classes)
    fig, axes = plt.subplots(8, columns, figsize=(7.4, 6.1))
    for c in range(columns):
        images = dataset.x[dataset.y == c][:8]
        axes[0, c].set_title(
            dataset.classes[c].split("/")[0][:10], fontsize=7.5, loc="center"
        )
        for ax, image in zip(axes[:, c], images):
            ax.imshow(image.permute(1, 2, 0).squeeze(), cmap="gray_r")
    for ax in axes.flat:
        ax.axis("off")
    study.show(fig, id, f"{dataset.name}: {dataset.source}.")


for name in sets:
    sheet(data.load(name, n=80, seed=0), f"data.{name}.sheet")

# %% [markdown]
# ## Counted and measured
#
# Mean and deviation over every pixel of the split, from a count of its bytes.


# %%
def moments(x):
    """Mean and deviation of each channel of images in bytes, as shares."""
    channels = x.transpose(0, 1).flatten(1)
    bins = torch.stack([c.int().bincount(minlength=256) for c in channels])
    share = bins.double() / channels.shape[1]
    level = torch.arange(256, dtype=torch.float64) / 255
    mean = share @ level
    return mean, (share @ level.square() - mean.square()).sqrt()


published = {
    "mnist": (60_000, None, [0.1307], [0.3081]),
    "fashion_mnist": (60_000, 6000, [0.2860], [0.3530]),
    "cifar10": (
        50_000,
        5000,
        [0.4914, 0.4822, 0.4465],
        [0.2470, 0.2435, 0.2616],
    ),
}
for name, (count, each, means, deviations) in published.items():
    images = sets[name]
    mean, deviation = moments(images.x)
    agrees = (
        (each is None or images.y.bincount().unique().tolist() == [each])
        and np.allclose(mean, means, rtol=0, atol=1e-4)
        and np.allclose(deviation, deviations, rtol=0, atol=1e-4)
    )
    study.claim(
        f"data.{name}",
        measured={"images": len(images), "mean": mean, "deviation": deviation},
        holds=agrees if len(images) == count else None,
        data=[images],
        size=("n",),
    )

# %% [markdown]
# ## The CT data, and a phantom in its place
#
# The regression task of the first paper has 53,500 axial CT slices from 74
# patients. Each is described by a polar histogram of bone (240 bins) and one
# of air inside the body (144 bins); the target is the height of the slice.
# Where that set is not on the machine, a body phantom of the same kind takes
# its place, under its own name.
#
# Two things make the CT task what it is. The singular values of its features
# span decades. And height is not a linear function of the features: the best
# linear model does worse than the nearest neighbor, on slices that neither
# has seen. Does the phantom have both?

# %%
ct = data.load("ct_position", n=s.slices, seed=0, shrink=True)
study.uses(ct)


def errors(x, y):
    """Root mean squared errors on the second half, learned from the first."""
    half = len(x) // 2
    x = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    (a, b), (ya, yb) = x.split(half)[:2], y.double().split(half)[:2]
    w = torch.linalg.lstsq(a, ya[:, None], driver="gelsd").solution
    nearest = ya[torch.cdist(b, a).argmin(1)]
    return [
        float((guess - yb).square().mean().sqrt())
        for guess in ((b @ w)[:, 0], nearest)
    ]


def one_draw(phantom, seed):
    """Singular values and errors of one draw of the phantom's slices."""
    target = phantom.y.double() - phantom.y.double().mean()
    sigma = spectrum(
        unit_rows(phantom.x.double(), constant=True), target
    ).sigma
    linear, nearest = errors(phantom.x, phantom.y)
    return [
        dict(
            index=i + 1,
            sigma=value,
            linear_error=linear,
            nearest_error=nearest,
        )
        for i, value in enumerate(sigma[sigma > 1e-9 * sigma[0]].tolist())
    ]


parts = {
    seed: data.load("ct_phantom", n=s.slices, seed=seed, shrink=True)
    for seed in study.seeds(s.runs)
}
draws = study.sweep(
    one_draw,
    [dict(phantom=part, seed=seed) for seed, part in parts.items()],
)

# %% tags=["hide-input"]
phantom = next(iter(parts.values()))
fig, axes = plt.subplots(2, 4, figsize=(7.6, 3.8))
for ax, height in zip(axes[0], (8.0, 40.0, 60.0, 92.0)):
    ax.imshow(ct_phantom.image(height), cmap="gray")
    ax.set_title(f"height {height:.0f}", fontsize=9)
    ax.axis("off")
    row = phantom.x[(phantom.y - height).abs().argmin()]
    below = axes[1, list(axes[0]).index(ax)]
    below.imshow(row[:240].reshape(24, 10).T, cmap="viridis", aspect="auto")
    below.set(xticks=[], yticks=[])
axes[1, 0].set_ylabel("bone by ring\nand sector", fontsize=9)
study.show(
    fig,
    "data.ct_phantom.slices",
    "The body phantom at four heights (head, shoulders and lungs, belly, "
    "hips) and, below, the polar histogram of bone of a slice near there: "
    "sectors from left to right, rings from top to bottom.",
)

# %% tags=["hide-input"]
fig, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3))
first = draws[draws.seed == draws.seed.min()]
left.semilogy(first["index"], first.sigma)
left.set(xlabel="index", ylabel="singular value")
left.set_title("ct_phantom, rows of length one")
few = slice(None, None, max(1, len(phantom) // 1500))
right.plot(
    phantom.y[few], phantom.x[:, :240].sum(1)[few], ".", ms=2, alpha=0.5
)
right.set(xlabel="height", ylabel="bone in the slice")
right.set_title("bone against height")
study.show(
    fig,
    "data.ct_phantom.spectrum",
    "Left: the singular values of the phantom's features, one draw. Right: "
    "the amount of bone against height, a point for a slice: skull, neck, "
    "shoulders and ribs, waist, pelvis.",
    table=first,
)

# %% tags=["hide-input"]
by_draw = draws.groupby("seed")
reach = np.log10(by_draw.sigma.max() / by_draw.sigma.min())
each = by_draw[["linear_error", "nearest_error"]].first()
study.claim(
    "data.ct_phantom",
    effects={
        "decades of singular values": study.above(reach, 3),
        "linear error / nearest neighbor's": study.above(
            each.linear_error / each.nearest_error, 2
        ),
    },
    measured={
        "slices in all": len(data.load("ct_phantom")),
        "features": phantom.x.shape[1],
        **each.mean().to_dict(),
    },
    data=parts.values(),
    size=("slices", "runs"),
)

# %% [markdown]
# ## What is drawn
#
# Two sets have no file: the peaks functions of the first paper's §7.1 (six
# variables, ten bumps each) and the Gaussian inputs of the second's
# appendix E.

# %%
peaks = data.load("peaks", n=1000, classes=("ABC", "BAC", "DEF"), seed=0)
gaussian = data.load("gaussian", seed=0)
pd.DataFrame(
    {
        "shape": [tuple(d.x.shape) for d in (peaks, gaussian)],
        "source": [d.source for d in (peaks, gaussian)],
    },
    index=["peaks", "gaussian"],
).pipe(study.table, "The two sets that are drawn.")

# %% tags=["hide-input"]
fig, (left, right) = plt.subplots(1, 2, figsize=(7.4, 2.8))
left.imshow(peaks.x[:40], cmap="viridis", aspect="auto")
left.set(xlabel="feature", ylabel="sample", title="peaks: 6 × 10 bumps")
right.plot(np.arange(1, 31), gaussian.x.var(0), "o", label="measured")
right.plot(np.arange(1, 31), np.arange(1, 31) / 10, label="drawn with")
right.set(xlabel="input", title="gaussian: variance")
right.legend()
study.show(
    fig,
    "data.drawn",
    "Left: forty samples of the peaks inputs. Right: the variances of the "
    "Gaussian inputs, measured and as drawn.",
)

# %% [markdown]
# ## What differs from the paper, and why
#
# - Without the UCI file, the CT task runs on a phantom. Its slices end at the
#   hips, its patients are made of ellipses, and no bed or arm is in the
#   picture. Draws share most of their slices: the intervals say how much the
#   choice of slices matters.
# - ImageNet, Tiny ImageNet and Office-31 are read from a folder of yours
#   (`REPALIGN_DATA`), and pages that need them say what they use instead.

# %% [markdown]
# ## Try it
#
# 1. Set `change = {"n": 500}`. Why do the first three claims become untested,
#    and not refuted?
# 2. `data.load("cifar10", n=200, classes=("cat", "dog"))`: look at the sheet
#    of two classes by calling `sheet` on it.
# 3. Point `REPALIGN_DATA` to a folder with torchvision's `MNIST/raw` and load
#    it again: the source changes, the fingerprint does not.

# %% tags=["hide-input"]
study.stamp()
