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
# # Spectra of the last layers
#
# *Section V of {cite:t}`canatar2022`, second half: figures 3, 4 and 5.*
#
# ```{note}
# The data are the paper's: CIFAR-10. In all profiles but `paper` images are
# smaller, fewer and not shifted, networks narrower, epochs fewer.
# ```
#
# In the paper, of networks that fit their images one generalizes badly, one
# well, and one badly although its last layers are aligned with the classes.
# What do their kernels look like? Do they foretell how probes generalize?

# %% tags=["hide-cell"]
from functools import partial
from itertools import chain

import numpy as np
import pandas as pd
import torch
from torch.nn.functional import avg_pool2d
from torch.optim.swa_utils import update_bn

from repalign import data, features, models, plots, study, train
from repalign.alignment import kernel_spectrum, predicted_error
from repalign.kernels import center, cka, effective_rank, gram
from repalign.machine import devices

study.begin("canatar/03_spectra")

# %% [markdown]
# ## The idea
#
# A layer's kernel $K(x, x') = \psi(x)^\top \psi(x')$, with $\psi(x)$ all
# activations of the layer, is a sum of modes with eigenvalues $\eta_1 \ge
# \eta_2 \ge \dots$; the one-hot target has a power in each, and a share
# $C(\rho)$ of it in the first $\rho$ modes ([](01_metrics)). How many modes
# count is the *effective rank*,
#
# $$
# \mathrm{erank}(K) = \exp\Bigl(-\sum_\rho p_\rho \log p_\rho\Bigr), \qquad
# p_\rho = \eta_\rho \,/ \sum_\gamma \eta_\gamma ,
# $$
#
# which is $r$ for $r$ equal eigenvalues. Ten classes have a target kernel of
# rank 10, and of rank 9 when centered. Good layers, says the paper, come close
# to that: few modes, and the target in them. Effective ranks here are those of
# centered kernels; modes and power those of kernels as they are. $C(\rho)$ is
# a share of all power: layers that cannot reach every target end below 1.
#
# ## A toy whose answer is known
#
# A hundred samples of ten classes. If features are the classes, the centered
# kernel has nine equal eigenvalues: the effective rank is 9. Now each sample
# gets a feature of its own, too. The nine are 11, beside 90 of size 1. The
# target still lies in ten modes, and CKA is hardly lower. But the effective
# rank is 53.8: it sees many small eigenvalues, CKA does not.

# %%
y = torch.eye(10).repeat_interleave(10, 0).double()
toys = {"classes": y, "and one each": torch.cat([y, torch.eye(100)], 1)}
rows, n = {}, len(y)
for name, phi in toys.items():
    rows[name] = {"effective rank": effective_rank(center(gram(phi)))}
    rows[name] |= {"C(10)": kernel_spectrum(gram(phi), y).power[:10].sum() / n}
    rows[name] |= {"CKA with the target": cka(phi, y)}
study.table(pd.DataFrame(rows).T.astype(float), "Two representations.")

# %% [markdown]
# ## The claims of this page

# %% tags=["hide-input"]
study.claims()

# %% [markdown]
# ## Settings

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"runs": 2}: replaces values in the table below

# %% tags=["hide-input"]
small = dict(rates=(0.05, 0.2), output_scale=0.125, shift=0, middle=5, draws=8)
tiny = dict(small, pixels=8, width=4)
s = study.settings(
    profile, change,
    smoke=dict(tiny, n=60, n_test=100, epochs=3, batch=20, seen=60, pool=100,
               samples=10, runs=2, middle=1),
    laptop=dict(tiny, width=8, rates=(0.1, 0.2), n=300, n_test=1000, epochs=50,
                batch=32, seen=300, pool=500, samples=50, runs=2),
    desktop=dict(small, pixels=16, width=8, n=1000, n_test=2000, epochs=40,
                 batch=64, seen=1000, pool=1000, samples=100, runs=5),
    paper=dict(pixels=32, width=64, n=50_000, n_test=10_000, epochs=5000,
               middle=25, batch=512, rates=(0.05, 0.5), output_scale=0.2,
               shift=2, seen=5000, pool=2000, samples=200, draws=8, runs=5),
)  # fmt: skip
where = devices.device(device)
s

# %% [markdown]
# Momentum and SGD have the first of the `rates`, a second SGD the other.
# `output_scale` multiplies outputs, as in the recipe that the paper builds on
# (FFCV's). Augmentation mirrors half of the images and moves them by up to
# `shift` pixels. Kernels are those of `seen` training images. The paper's text
# gives none of these, nor probes (`pool`, `samples`, `draws`). It has one
# network of each kind at batch sizes of 512, 2048 and 4096.
#
# ## Data
#
# Pixels are from $-1$ to 1, small images averages. Each run draws its images.

# %%
seeds, kind = study.seeds(s.runs), dict(shrink=True, dtype=torch.uint8)
sets = {
    seed: [
        data.load("cifar10", "train", s.n, seed=seed, **kind),
        data.load("cifar10", "test", s.n_test, seed=seed, **kind),
    ]
    for seed in seeds
}
for one in sets[seeds[0]]:
    study.uses(one)

# %% [markdown]
# ## Run
#
# A cell of the sweep trains one network: squared error on one-hot labels, a
# rate that falls linearly to 0, batch norm. It looks at layers 9 and 10 on
# training images at the start (with batch statistics of training images),
# after `middle` epochs and at the end. At the end every layer gets ridge
# probes: regression with its kernel on `samples` of a `pool` of test images,
# tested on the rest of it, mean of `draws` splits; the ridge is the mean of
# $K(x, x)$. To predict, the pool is taken for all inputs, samples included.


# %%
def last_layers(net, x, y):
    """Rows for layers 9 and 10: rank, power, CKA; then modes."""
    rows, found = [], features.extract(net, x, net.probed[-2:])
    for layer, phi in zip((9, 10), found.values()):
        K, at = gram(phi.double()), plots.spread(min(phi.shape), 50)
        spec, rank = kernel_spectrum(K, y), float(effective_rank(center(K)))
        eta, power = spec.eigenvalues.tolist(), spec.power.sum(1).cumsum(0)
        c = (power / y.square().sum()).tolist()
        found = dict(rank=rank, ten=c[9], cka=float(cka(phi, y)))
        rows.append(dict(layer=layer, **found))
        for k in at.tolist():
            found = dict(mode=k, eigenvalue=eta[k - 1] / len(x))
            rows.append(dict(layer=layer, power=c[k - 1], **found))
    return rows


def probes(net, x, y, samples, draws):
    """Test error of ridge probes on every layer, measured and predicted."""
    n, y, eye = len(x), y.double(), torch.eye(samples).double()
    for layer, phi in enumerate(features.extract(net, x).values(), start=1):
        K, error = gram(phi.double()), 0.0
        ridge, spec = float(K.diagonal().mean()), kernel_spectrum(K, y)
        parts = spec.eigenvalues / n, spec.power / n
        how = dict(ridge=ridge, outside=spec.residual / n)
        told = float(predicted_error(*parts, samples, **how).sum())
        for k in range(draws):
            sizes = samples, n - samples
            a, b = data.disjoint(torch.arange(n), *sizes, seed=k)
            w = torch.linalg.solve(K[a][:, a] + ridge * eye, y[a])
            error += float((K[b][:, a] @ w - y[b]).square().sum(1).mean())
        yield dict(probed=layer, predicted=told, measured=error / draws)


def one_network(seed, skips, augment, rule, images, p, device):
    """Accuracies of a network, its last layers at three times, its probes."""
    hot, block = [data.one_hot(i.y) for i in images], 32 // p["pixels"]
    x, new_x = (avg_pool2d(i.x.to(device) / 127.5 - 1, block) for i in images)
    y, new_y = (i.y.to(device) for i in images)
    how = dict(width=p["width"], output_scale=p["output_scale"])
    net = models.ResNet11(skips=skips, **how, seed=seed).to(device)
    update_bn([x[:2000]], net)
    moved, seen = partial(train.crop_and_flip, pad=p["shift"]), p["seen"]
    try:
        history = train.fit(
            net, x, y, loss="squared", optimizer=rule[0], lr=rule[1],
            schedule="linear", epochs=p["epochs"], batch_size=p["batch"],
            augment=moved if augment else None, seed=seed, full_train=True,
            test=(new_x, new_y), at=(0, p["middle"], p["epochs"]),
            measure=lambda net, _: last_layers(net, x[:seen], hot[0][:seen]),
        )  # fmt: skip
    except train.DivergedError:
        return [dict(trained=0.0, tested=0.0)]
    fits, k = (history.train_accuracy, history.test_accuracy), p["pool"]
    times = zip(("start", "middle", "end"), history.measured.values())
    return [
        dict(trained=fits[0][-1], tested=fits[1][-1]),
        *(dict(row, stage=time) for time, rows in times for row in rows),
        *probes(net, new_x[:k], hot[1][:k], p["samples"], p["draws"]),
    ]


low, high = s.rates
rules = (("momentum", low), ("sgd", low), ("sgd", high))
grid = study.grid(skips=(0, 1), augment=(0, 1), rule=rules, seed=seeds)
names = "pixels width output_scale shift epochs middle batch seen pool samples"
p = {name: getattr(s, name) for name in (*names.split(), "draws")}
cells = [dict(one, images=sets[one["seed"]]) for one in grid]
runs = study.sweep(one_network, cells, p=p, device=str(where))
parts = runs[["seed", "skips", "augment", "rule"]].astype(str)
runs["network"] = parts.agg(" ".join, axis=1)

# %% [markdown]
# ## Figures 3 to 5
#
# Where three networks or more fit their images, the rule of the criteria picks
# three. Of an odd number the middle one belongs to the lower half.


# %%
def chosen(nets):
    """Three networks of a run and what they are; none if too few are kept."""
    bound = -1 if s.profile == "smoke" else 0.95
    nets = nets[nets["trained"] > bound].sort_values("tested")
    if len(nets) < 3:
        return {}
    poor = nets[1 : (len(nets) + 1) // 2]["cka"].idxmax()
    return {nets.index[0]: "worst", poor: POOR, nets.index[-1]: "best"}


POOR, role = "aligned but poor", {}
ends = runs[runs["stage"] == "end"].groupby("network")["cka"].mean()
nets = runs[runs["tested"].notna()].set_index("network").assign(cka=ends)
for _, part in nets.groupby("seed"):
    role |= chosen(part)
few = runs.assign(role=runs["network"].map(role)).dropna(subset="role")
means = nets.groupby(nets.index.map(role))[["trained", "tested", "cka"]].mean()
text = "Accuracy on training and test images, CKA of the last two layers with "
study.table(means, text + f"the target: means of {len(role) // 3} runs.")

# %% tags=["hide-input"]
by = dict(index="seed", columns=["role", "stage", "layer"])
wide = few.dropna(subset="rank").pivot(**by, values=["rank", "ten"])
wide = wide.sort_index(axis=1)
rank, ten, off = wide["rank"], wide["ten"], np.log(wide["rank"] / 9).abs()
rise = ten.xs("end", axis=1, level=1) - ten.xs("start", axis=1, level=1)
poor = rank[POOR, "end"]
effects = {"fig3": {
    "layer 9, effective rank": study.above(rank["worst", "end", 9], 18),
    "layer 10, rise of power": study.above(rise["worst", 10]),
    "more than layer 9's": study.above(rise["worst", 10] - rise["worst", 9]),
}, "fig4": {}, "fig4.worst": {}, "fig5": {
    "effective rank, layer 9 less 10": study.above(poor[9] - poor[10]),
}}  # fmt: skip
for k in (9, 10):
    end, less = off["best", "end", k], ten[POOR, "end", k]
    name = f"layer {k}, |log(rank/9)|, "
    fallen = study.below(end - off["best", "start", k])
    lower = study.below(end - off["worst", "end", k])
    near = study.within(less - ten["best", "end", k], -0.1, 0.1)
    effects["fig4"][name + "end less start"] = fallen
    effects["fig4"][f"layer {k}, rise of power"] = study.above(rise["best", k])
    effects["fig4.worst"][name + "best less worst"] = lower
    effects["fig5"][f"layer {k}, power, less the best one's"] = near
size = f"{s.n} images of {s.pixels} pixels, width {s.width}, {s.epochs} epochs"
by = dict(stand_in="" if s.width > 63 else size, data=[*chain(*sets.values())])
kept = nets["trained"].gt(0.95).groupby(nets["seed"]).sum().tolist()
far = (poor[9] - rank["best", "end", 9]).tolist()
by["measured"] = {"above 95%": kept, "rank of 9, poor less best": far}
index = ["role", "seed", "stage", "layer", "mode"]
shown = few[few["mode"].notna()].melt(index, ["eigenvalue", "power"])
shown["panel"] = shown["variable"].replace("power", "cumulative power")
shown["panel"] += ", layer " + shown["layer"].astype(int).astype(str)
says = {
    "worst": "keep many modes; the target moves into ten modes of layer 10.",
    "best": "fall off behind about ten modes, and the target lies in those.",
    POOR: "of layer 9 fall off less than in figure 4, and power is as there.",
}
for id, (which, text) in zip(("fig3", "fig4", "fig5"), says.items()):
    part = shown[shown["role"] == which]
    fig = plots.modes(
        part, x="mode", y="value", hue="stage", col="panel", wrap=2,
        height=2.3, aspect=1.5, labels={"value": ""},
    )  # fmt: skip
    for ax, scale in zip(fig.axes, ("log", "log", "linear", "linear")):
        ax.axvline(10, color="0.5", ls=":")
        ax.set(yscale=scale)
    text = f"By the paper, eigenvalues {text} Dotted: ten modes. {size}."
    text = f"Figure {id[3]}, {which}, mean of {len(wide)} runs. {text}"
    study.show(fig, f"canatar.{id}", text, table=part)
    for claim in [k for k in effects if k.split(".")[0] == id]:
        study.claim(f"canatar.{claim}", effects=effects[claim], **by)

# %% [markdown]
# ## Does the kernel foretell the probe?
#
# A dot is a layer of a network, kept or not: measured and predicted error.

# %% tags=["hide-input"]
dots = runs[runs["probed"].notna()]
dots = dots.assign(layer=dots["probed"].astype(int))
draw = dict(hue="layer", diagonal=True)
fig = plots.scatter(dots, x="predicted", y="measured", **draw)
text = "Test error of ridge probes on test images, of a target whose power is "
text += f"1. Dashed: measured as predicted. {size}."
table = dots[["network", "layer", "predicted", "measured"]]
study.show(fig, "canatar.curve.layers", text, table=table)

# %% tags=["hide-input"]
logs = dots[["network"]].join(np.log(dots[["predicted", "measured"]]))
r = study.correlation(logs, "predicted", "measured", unit="network", above=0.8)
ratio = (dots["predicted"] / dots["measured"]).groupby(dots["layer"]).mean()
by["measured"] = {"predicted / measured, by layer": ratio.tolist()}
study.claim("canatar.curve.layers", effects={"correlation": r}, **by)

# %% [markdown]
# ## What differs from the paper, and why
#
# - All is smaller: see the settings. Each run picks its own three networks.
# - The paper's layer 9 has 512 numbers, one for each filter. Ours is the whole
#   map: all filters at all positions, as on the page before.
# - Effective rank puts a number to the paper's figures. 18 is twice the 9 of
#   the centered target. Layer 9 has more numbers than layer 10, so that its
#   rank can be higher whatever is learned: card 5 also compares networks.
#
# ## Try it
#
# 1. Set `change = {"epochs": 10}`. How many networks are left?
# 2. In `last_layers`, call `extract(..., pool="mean")`: a number for each
#    filter, as in the paper. Which of the claims change?

# %% tags=["hide-input"]
study.stamp()
