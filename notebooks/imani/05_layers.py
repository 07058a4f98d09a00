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
# # Alignment, layer by layer
#
# *Section 5, second half, of {cite:t}`imani2022`: figure 7.*
#
# ```{note}
# One panel of figure 7 uses the UCI CT position data in the paper. Where that
# set cannot be had, as here unless the caption says otherwise, a body
# phantom of the same kind stands in: `ct_phantom`.
# ```
#
# A network is a chain of representations. Which of them is best aligned with
# the labels? This page looks at every hidden layer, before training and
# after.

# %% tags=["hide-cell"]
import math

import matplotlib.pyplot as plt
import numpy as np
import torch

from repalign import data, features, models, study, train
from repalign.alignment import spectrum, unit_rows
from repalign.machine import devices

study.begin("imani/05_layers")

# %% [markdown]
# ## The claims of this page
#
# Each criterion was fixed before the first run. "Area" is the area under
# the alignment curve.

# %% tags=["hide-input"]
study.claims(
    dict(
        id="imani.fig7.after",
        paper="After training, layers closer to the output are monotonically "
        "better aligned, on MNIST and on CT (fig. 7, solid).",
        criterion="in every run on both data sets: area of layer 1 < area of "
        "layer 2 < area of layer 3",
    ),
    dict(
        id="imani.fig7.before",
        paper="Before training the ordering is completely reversed (fig. 7, "
        "dashed).",
        criterion="in every run on both data sets: area of layer 1 > area of "
        "layer 2 > area of layer 3",
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
    smoke=dict(n=200, width=32, depth=3, epochs=3, batch=64, runs=2),
    laptop=dict(n=2000, width=128, depth=3, epochs=100, batch=64, runs=5),
    desktop=dict(n=10_000, width=128, depth=3, epochs=300, batch=64, runs=5),
    paper=dict(n=10_000, width=128, depth=3, epochs=1000, batch=64, runs=5),
)
where = devices.device(device)
s

# %% [markdown]
# The paper trains "until convergence" and gives no number of epochs. Here
# training ends when the mean loss of an epoch falls below $10^{-4}$, or
# after `epochs` epochs; the 1000 in the paper's column are those of its
# figure 2.
#
# ## The idea
#
# With $\Phi_\ell$ the activations of layer $\ell$, one row per sample, all
# rows of length one, each layer has its own alignment curve
#
# $$
# \mathrm{Alignment}(\Phi_\ell, y, \tau)
# = \sum_{i\,:\,\sigma_i \ge \tau} \bigl(u_i^\top y\bigr)^2 .
# $$
#
# To order curves we need a number. The area under the curve is one that needs
# no choice of threshold, and it is a plain sum: the power
# $(u_i^\top y)^2$ counts for all thresholds from 0 to $\sigma_i$, so
#
# $$
# \int_0^\infty \mathrm{Alignment}(\Phi, y, \tau)\, d\tau
# = \sum_i \sigma_i\, (u_i^\top y)^2 \;\le\; \sqrt{n}\, \|y\|^2 .
# $$
#
# The bound is met when all rows are $\pm$ one and the same vector, with the
# labels as signs: divided by it, an area of 1 is perfect alignment.


# %%
def area(spec, n):
    """Area under the alignment curve, as a share of the largest possible."""
    whole = float(spec.power.sum() + spec.residual)
    return float(spec.area()) / (math.sqrt(n) * whole)


# %% [markdown]
# ## A toy whose answer is known
#
# Four samples of two classes, three representations of each. When the feature
# *is* the label, $\sigma_1 = \sqrt 4$ holds everything and the area is 1. When
# every sample has a feature of its own, all four singular values are 1 and
# it is $1/\sqrt 4$. When all samples look the same, no threshold has anything.

# %%
labels = torch.tensor([1.0, 1.0, -1.0, -1.0])
toys = {
    "the label itself": labels[:, None],
    "a feature per sample": torch.eye(4),
    "all the same": torch.ones(4, 1),
}
for name, toy in toys.items():
    print(f"{name}: {area(spectrum(toy, labels), 4):.2f}")

# %% [markdown]
# ## Data
#
# Zeros and ones of MNIST with labels $\pm 1$, learned with the logistic loss,
# and CT slices (or the phantom's) with the height of the slice as target,
# moved to $[-1, 1]$, learned with the squared loss. Every run draws its
# own sample.

# %%
SETS = {
    "MNIST": dict(name="mnist", classes=["0", "1"], loss="logistic"),
    "CT position": dict(name="ct_position", classes=None, loss="squared"),
}
samples = {
    title: [
        data.load(
            one["name"], n=s.n, classes=one["classes"], seed=seed, shrink=True
        )
        for seed in range(s.runs)
    ]
    for title, one in SETS.items()
}
for title in SETS:
    study.uses(samples[title][0])

# %% tags=["hide-input"]
digits, slices = (samples[title][0] for title in SETS)
rows = [digits.x[digits.y == label][:4].squeeze(1) for label in (0, 1)]
fig, (a, b) = plt.subplots(1, 2, figsize=(7.4, 2.6), width_ratios=(1, 1.3))
a.imshow(torch.cat([torch.cat([*row], 1) for row in rows]), cmap="gray_r")
a.set(title=digits.name)
a.axis("off")
order = slices.y.argsort()
b.imshow(slices.x[order].mT, aspect="auto", interpolation="nearest")
b.set(title=slices.name, xlabel="samples, by height", ylabel="feature")
study.show(
    fig,
    "imani.data_layers",
    f"Left: eight images. Right: the {slices.x.shape[1]} features of every "
    f"slice of {slices.name}, from the head to the hips: shares of bone "
    "above, of air below.",
)

# %% [markdown]
# ## Run
#
# Train one network, and take apart its activations on the training data
# before and after. What is kept of a layer is its singular values and the
# power of the labels along them.


# %%
def layer_spectra(net, x, y):
    """(σ, power, area) of the input and of every hidden layer."""
    found = []
    for phi in features.extract(net, x, ("flatten", *net.probed)).values():
        spec = spectrum(unit_rows(phi.double()), y.double().cpu())
        found.append((spec.sigma, spec.power, area(spec, len(x))))
    return found


def one_run(name, classes, loss, n, seed, width, depth, epochs, batch, **key):
    """Every layer before and after training on one sample."""
    sample = data.load(name, n=n, classes=classes, seed=seed, shrink=True)
    x = sample.x.to(key["device"])
    y = sample.y.to(x)
    y = 2 * (y - y.min()) / (y.max() - y.min()) - 1
    net = models.MLP(x[0].numel(), 1, depth=depth, width=width, seed=seed).to(
        x.device
    )
    before = layer_spectra(net, x, y)
    history = train.fit(
        net,
        x,
        y,
        loss=loss,
        epochs=epochs,
        batch_size=batch,
        stop_loss=1e-4,
        seed=seed,
    )
    after = layer_spectra(net, x, y)
    return dict(before=before, after=after, loss=history.loss)


# %% [markdown]
# All runs on both sets. What is done already comes from the store.

# %%
configs = [
    dict(
        **one,
        n=s.n,
        seed=seed,
        width=s.width,
        depth=s.depth,
        epochs=s.epochs,
        batch=s.batch,
        device=str(where),
        fingerprint=samples[title][seed].fingerprint,
    )
    for title, one in SETS.items()
    for seed in range(s.runs)
]
cells = iter(study.sweep(one_run, configs))
runs = {title: [next(cells) for _ in range(s.runs)] for title in SETS}
for title, found in runs.items():
    epochs = [len(r["loss"]) for r in found]
    last = max(r["loss"][-1] for r in found)
    print(f"{title}: {min(epochs)} to {max(epochs)} epochs, ", end="")
    print(f"largest final loss {last:.1e}")

# %% [markdown]
# The areas, mean over the runs. Before training they should fall from left
# to right, after training they should rise.

# %%
names = ("input", *(f"layer {i + 1}" for i in range(s.depth)))
areas = {
    (title, stage): np.array([[v[2] for v in r[stage]] for r in found])
    for title, found in runs.items()
    for stage in ("before", "after")
}
print(f"{'':20}", *(f"{name:>8}" for name in names))
for (title, stage), values in areas.items():
    row = (f"{value:8.3f}" for value in values.mean(0))
    print(f"{title + ', ' + stage:20}", *row)

# %% [markdown]
# ## Figure 7
#
# The paper's panels: one for each data set, with the threshold on the
# horizontal axis; dashed before training, solid after.


# %% tags=["hide-input"]
def on_grid(sigma, power, grid):
    """The alignment at every threshold of a grid."""
    reached = sigma[None, :] >= grid[:, None]
    return (reached * power[None, :]).sum(1)


colours = (study.PALETTE[4], *(study.PALETTE[i] for i in (0, 2, 1)))
fig, axes = plt.subplots(1, 2, figsize=(7.8, 3.6))
for ax, (title, found) in zip(axes, runs.items()):
    end = max(float(v[0][0]) for r in found for v in r["before"] + r["after"])
    grid = torch.linspace(0, 1.02 * end, 600, dtype=torch.float64)
    last = 0.0  # where the last curve falls to 1% of its start
    for stage, style in (("before", "--"), ("after", "-")):
        for layer in range(s.depth + 1):
            if layer == 0 and stage == "before":
                continue  # the input does not change
            curves = torch.stack(
                [on_grid(*r[stage][layer][:2], grid) for r in found]
            )
            mean = curves.mean(0)
            last = max(last, float(grid[mean > 0.01 * mean[0]].max()))
            error = curves.std(0) / math.sqrt(s.runs) if s.runs > 1 else 0
            colour = colours[layer % len(colours)]
            ax.plot(grid, mean, style, color=colour)
            ax.fill_between(
                grid,
                mean - error,
                mean + error,
                color=colour,
                alpha=0.25,
                lw=0,
            )
    ax.set(xlim=(0, 1.15 * last), ylim=(0, None), xlabel="threshold $\\tau$")
    ax.set_title(samples[title][0].name)
axes[0].set_ylabel("alignment")
for layer, name in enumerate(names):
    axes[0].plot([], [], color=colours[layer % len(colours)], label=name)
axes[0].plot([], [], "--", color=study.PALETTE[5], label="before training")
axes[0].plot([], [], "-", color=study.PALETTE[5], label="after training")
axes[0].legend(loc="lower left")
study.show(
    fig,
    "imani.fig7",
    f"Figure 7 on {len(digits)} images of {digits.name} (left) and "
    f"{len(slices)} samples of {slices.name} (right), mean of {s.runs} runs, "
    "bands of one standard error. Dashed curves, before training: the "
    "deeper the layer, the lower, and all below the input. Solid curves, "
    "after training: all above the input, and the deeper layers keep their "
    "height to a larger threshold.",
)

# %% [markdown]
# The same as one number for each layer:

# %% tags=["hide-input"]
fig, axes = plt.subplots(1, 2, figsize=(8, 2.9), sharey=True)
for ax, title in zip(axes, runs):
    for stage, style in (("before", "o--"), ("after", "o-")):
        values = areas[title, stage]
        error = values.std(0, ddof=1) / math.sqrt(s.runs) if s.runs > 1 else 0
        ax.errorbar(
            range(s.depth + 1),
            values.mean(0),
            error,
            fmt=style,
            capsize=3,
            color=study.PALETTE[5 if stage == "before" else 0],
            label=f"{stage} training",
        )
    ax.set(title=samples[title][0].name, ylim=(0, 1))
    ax.set_xticks(range(s.depth + 1), names)
axes[0].set_ylabel("area / largest possible")
axes[0].legend(loc="lower left")
study.show(
    fig,
    "imani.fig7.area",
    "Area under each curve of figure 7 as a share of the largest possible. "
    "Training turns a descending line into an ascending one.",
)

# %% [markdown]
# ## Verdicts

# %% tags=["hide-input"]
seeds = list(range(s.runs))
for stage, sign in (("after", 1), ("before", -1)):
    measured, ordered, steps = {}, [], []
    for title in runs:
        hidden = areas[title, stage][:, 1:]
        step = sign * np.diff(hidden, axis=1)
        ordered.extend((step > 0).all(1))
        steps.append(step.min(1))
        name = samples[title][0].name
        measured[f"{name}, runs in order"] = int((step > 0).all(1).sum())
        measured[f"{name}, layers"] = [
            round(float(v), 3) for v in hidden.mean(0)
        ]
        measured[f"{name}, input"] = round(
            float(areas[title, stage][:, 0].mean()), 3
        )
        measured[f"{name}, smallest step"] = float(step.min())
    study.claim(
        f"imani.fig7.{stage}",
        measured=measured,
        interval=study.interval(np.minimum(*steps)) if s.runs > 1 else None,
        holds=ordered,
        seeds=seeds,
    )

# %% [markdown]
# The interval is that of the smallest step between neighbouring layers, in
# the direction claimed, the smaller of both data sets.
#
# ### Where a run is out of order
#
# The paper averages over five runs, and these averages have its order in both
# panels; the criterion asks it of every single run. At `laptop` size
# two things stand against it:
#
# - *After training, CT.* In some runs layer 3 is not above layer 2 yet. The
#   last layer rises last. We followed the run of seed 1 on the phantom
#   further. With 2000 samples layer 3 is behind by 0.024 after 100 and
#   after 200 epochs and by 0.006 after 400. With the paper's 10,000 samples
#   it is behind by 0.010 after 20 epochs, ahead by 0.006 after 50 and by 0.030
#   after 100. So it is a matter of training to convergence, as the paper
#   does.
# - *Before training, MNIST.* Layers 2 and 3 of one random network are equal
#   up to 0.001. With 128 units the fall from layer to layer is a
#   tendency of random networks, and a single one may be level.
#
# ## What differs from the paper, and why
#
# - The CT panel runs on the phantom where the CT position data cannot be had
#   (see the note at the top).
# - The paper compares curves by eye; here they are ordered by their area,
#   which needs no threshold.
# - "Until convergence" is made precise as above, and the learning rate, which
#   is not given, is Adam's default, 0.001.
# - The first weights are normal with variance 2 / fan-in and no bias at the
#   start; the paper names none.
# - Rows are scaled to length one without a constant feature appended, as on
#   the other pages of this chapter.

# %% [markdown]
# ## Try it
#
# 1. Set `change = {"depth": 6}`. Is the order still monotone after training,
#    and where does most of the increase happen?
# 2. Set `change = {"epochs": 1}`. Which layers have turned their order
#    already?
# 3. In `one_run`, shuffle the labels with `y[torch.randperm(len(y))]`. The
#    input is not aligned now. Are the layers, and in which order?

# %% tags=["hide-input"]
study.stamp()
