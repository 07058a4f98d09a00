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
# # Specialization of the upper layers
#
# *Appendices A.11 and F of {cite:t}`maennel2020`: figures 7, 10, 11 and 24.*
#
# ```{note}
# Figures 7, 10 and 11 of the paper look into VGG16, and so does the `paper`
# profile. In the others a plain network of three convolutions and a dense
# layer takes its place, the networks of figure 24 have fewer filters, and
# images are few and small: averages over blocks of pixels.
# ```
#
# Random labels have to be learned image by image. This may turn units into
# specialists, which few images activate, and of little use in a second task.

# %% tags=["hide-cell"]
import copy
import dataclasses
import math

import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch.nn.functional import adaptive_avg_pool2d

from repalign import data, features, models, plots, study, train
from repalign.machine import devices
from repalign.papers import maennel

study.begin("maennel/07_specialisation")

# %% [markdown]
# ## The idea
#
# Let $h_{ij} \ge 0$ be the output of unit $j$ of a layer, after the ReLU, for
# image $i$. There are $n$ images, which the network has not been trained on,
# and $m$ units; in a convolutional layer each filter at each position is a
# unit. Image $i$ *activates* unit $j$ if $h_{ij} > 0$. Then
#
# $$
# p_j = \frac1n \sum_i \mathbf 1[h_{ij} > 0] , \quad
# q_i = \frac1m \sum_j \mathbf 1[h_{ij} > 0] , \quad
# A = \frac1m \sum_j p_j = \frac1n \sum_i q_i
# $$
#
# are the share of images that activate a unit, the share of units that an
# image activates, and the *activation* of the layer: the share of pairs of
# image and unit in which the output is above zero. A unit with small $p_j$ is
# a specialist. The *upper half* of $L$ layers are the $\lfloor L/2 \rfloor$
# next to the output, the *lower half* as many next to the input.
#
# ## A toy whose answer is known
#
# A unit that adds a bias $b$ to a standard normal input is active with
# probability $\Phi(b)$, the normal distribution function.

# %%
layer, b = torch.nn.Linear(1, 3), torch.tensor([-1.0, 0.0, 1.0])
layer.weight.data, layer.bias.data = torch.ones(3, 1), b
inputs = torch.randn(20_000, 1, generator=torch.Generator().manual_seed(0))
net = torch.nn.Sequential(layer, torch.nn.ReLU())
toy = {"measured": features.activation_rates(net, inputs)["1"]}
toy["exact"] = torch.special.ndtr(b)
toy = pd.DataFrame({k: v.tolist() for k, v in toy.items()}, b.tolist())
study.table(toy.rename_axis("b"), "Share of inputs that activate a unit.")

# %% [markdown]
# ## The claims of this page

# %% tags=["hide-input"]
study.claims()

# %% [markdown]
# ## Settings

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"filters": 64}: replaces values in the table below


# %% tags=["hide-input"]
def size(*numbers):
    return dict(zip(("n_up", "epochs_up", "n_down", "epochs_down"), numbers))


small = dict(name="simple_cnn", convs=3, filters=16, units=64)
s = study.settings(
    profile, change,
    smoke=dict(
        chain=small, side=8, batch=32, pool=1000, held_out=50, runs=2,
        positive=size(64, 2, 64, 1), negative=size(64, 1, 64, 1),
        switch=size(64, 2, 64, 2), filters=8, units=16),
    laptop=dict(
        chain=small, side=8, batch=64, pool=50_000, held_out=300, runs=3,
        positive=size(512, 25, 512, 12), negative=size(512, 16, 512, 12),
        switch=size(512, 16, 512, 16), filters=32, units=64),
    desktop=dict(
        chain=small, side=16, batch=256, pool=50_000, held_out=1000, runs=6,
        positive=size(1280, 60, 1280, 30), negative=size(1280, 40, 1280, 30),
        switch=size(1280, 40, 1280, 40), filters=32, units=64),
    paper=dict(
        chain=dict(name="vgg16", width=64), side=32, batch=256, pool=50_000,
        positive=size(20_000, 120, 25_000, 200), held_out=5000, runs=12,
        negative=size(20_000, 80, 25_000, 200), filters=256, units=64,
        switch=size(25_000, 40, 25_000, 40)),
)  # fmt: skip
where = devices.device(device)
s

# %% [markdown]
# `positive` and `negative`, named by what the paper found in VGG16, are the
# settings of experiments 1 and 2, and 3 and 4, of figure 1. Scales of
# initialization, learning rates and numbers of random classes are the paper's
# in all profiles: those of A.11, whose learning rate in the negative setting
# is not A.5's 0.009. Of figure 24 the paper gives the networks alone; the rest
# is that of its figure 2 (A.6), half of the images for each task.

# %%
HYPER = dict(positive=dict(init_scale=0.526, lr=0.01, classes=5),
             negative=dict(init_scale=0.612, lr=0.01, classes=50))  # fmt: skip
SWITCH = dict(init_scale=1.0, lr=0.01, classes=10)

# %% [markdown]
# ## Data
#
# CIFAR-10, other images for each task; activation is measured on test images.

# %% tags=["hide-input"]
sets = []
for split, n in (("train", s.pool), ("test", s.held_out)):
    one = data.load("cifar10", split, n=n, shrink=True)
    if s.side < 32:
        how = f"{one.source}, averaged to {s.side} × {s.side} pixels"
        x = adaptive_avg_pool2d(one.x, s.side)
        one = dataclasses.replace(one, x=x, source=how)
    sets.append(one)
    study.uses(one)
fig = plots.strips({"": sets[1].x[:10]})
study.show(fig, "maennel.images_units", "Ten test images, as used here.")

# %% [markdown]
# ## Run
#
# One kind of run trains a network on random labels and then, with its layers
# scaled back to their first norms, on real and on random labels of other
# images. It counts who activates whom at four moments.


# %%
def tasks(sets, o, seed, device):
    """Two tasks on different images, and images to measure on."""
    parts = data.disjoint(sets[0], o["n_up"], o["n_down"], seed=seed)
    up, down, held = (2 * one.x.to(device) - 1 for one in (*parts, sets[1]))
    noise = data.random_labels(len(up), o["classes"], seed=seed).to(device)
    return up, noise, down, parts[1].y.to(device), held


def shares(net, x, **what):
    """Rows: for each layer, distributions of p over units, q over images."""
    units, images = features.activation_rates(net, x), {}
    for part in x.split(200):
        for layer, phi in features.extract(net, part).items():
            images.setdefault(layer, []).append((phi > 0).double().mean(1))
    for i, (layer, p) in enumerate(units.items(), 1):
        q = torch.cat(images[layer]).cpu()
        what |= dict(layer=i, activation=float(p.mean()))
        for of, values in (("units", p), ("images", q)):
            counts = torch.histc(values.float(), 20, 0, 1) / len(values)
            for k, part in enumerate(counts.tolist()):
                yield dict(what, of=of, share=(k + 0.5) / 20, part=part)


def one_network(setting, seed, sets, o, device):
    """Who activates whom, at four moments."""
    up, noise, down, y, held = tasks(sets, o, seed, device)
    fresh = dict(init_scale=o["init_scale"], seed=seed)
    shape = dict(image=tuple(up[0].shape), outputs=o["classes"])
    net = models.build(**o["network"], **shape, **fresh).to(device)
    rows = list(shares(net, held, stage="initialization"))
    how = dict(lr=o["lr"], batch_size=o["batch"], seed=seed, rescale=False)
    trained = maennel.pretrain(net, up, noise, epochs=o["epochs_up"], **how)
    rows += shares(trained, held, stage="random labels first")
    trained = maennel.rescale(trained, maennel.norms(net))
    trained = models.replace_head(trained, 10, **fresh)
    how |= dict(epochs=o["epochs_down"])
    noise = data.random_labels(len(down), 10, seed=10_000 + seed).to(device)
    for stage, labels in (("then real", y), ("then random", noise)):
        end = maennel.pretrain(trained, down, labels, **how)
        rows += shares(end, held, stage=stage)
    return rows


# %% [markdown]
# The other kind follows the activation of each layer through the switch from
# random labels to real ones, and in a network from scratch.


# %%
def follow(net, x, y, held, batch, epochs, **how):
    """Rows: activation after each epoch and some steps of the first."""
    last = math.ceil(len(x) / batch)
    at = {*range(0, epochs * last + 1, last)}
    at |= {*train.log_steps(len(x), batch, count=6)}

    def measure(net, epoch):
        rates = features.activation_rates(net, held)
        return {layer: float(p.mean()) for layer, p in rates.items()}

    past = train.fit(
        net, x, y, epochs=epochs, batch_size=batch, optimizer="momentum",
        schedule="thirds", measure=measure, at=(), at_steps=at, **how,
    )  # fmt: skip
    return [dict(step=step, epoch=step / last, layer=layer, activation=value)
            for step, found in past.measured_steps.items()
            for layer, value in found.items()]  # fmt: skip


def one_switch(convs, seed, sets, o, device):
    """Activation across the switch of tasks, and from scratch."""
    up, noise, down, y, held = tasks(sets, o, seed, device)
    fresh = dict(init_scale=o["init_scale"], seed=seed)
    shape = dict(image=tuple(up[0].shape), outputs=o["classes"], convs=convs)
    shape |= dict(filters=o["filters"], units=o["units"])
    start = models.SimpleCNN(**shape, **fresh).to(device)
    how = dict(held=held, batch=o["batch"], lr=o["lr"], seed=seed)
    net = copy.deepcopy(start)
    past = follow(net, up, noise, epochs=o["epochs_up"], **how)
    rows = [dict(row, task="first", network="pre-trained") for row in past]
    net, turn = maennel.rescale(net, maennel.norms(start)), past[-1]["step"]
    for name, one in (("pre-trained", net), ("scratch", start)):
        one = models.replace_head(one, 10, **fresh)
        past = follow(one, down, y, epochs=o["epochs_down"], **how)
        what = dict(task="second", network=name)
        rows += [row | what | dict(step=turn + row["step"]) for row in past]
    return rows


seeds, fixed = study.seeds(s.runs), dict(sets=sets, device=str(where))
configs = []
for name, hyper in HYPER.items():
    o = dict(getattr(s, name), **hyper, network=s.chain, batch=s.batch)
    configs += [dict(setting=name, seed=seed, o=o) for seed in seeds]
runs = study.sweep(one_network, configs, **fixed).drop(columns="o")
o = dict(s.switch, **SWITCH, batch=s.batch, filters=s.filters, units=s.units)
grid = study.grid(convs=(1, 3), seed=seeds)
switch = study.sweep(one_switch, grid, o=o, **fixed)

# %% [markdown]
# ## Figures 7, 10 and 11
#
# The paper draws a histogram for each layer; here a layer is a line of a map,
# the first at the bottom, and color is the part of its units or images.

# %% tags=["hide-input"]
STAGES = runs.stage.drop_duplicates().tolist()
stand_in = f"{s.chain['name']} in place of VGG16; images of {s.side} pixels"
stand_in = "" if profile == "paper" else stand_in
note = f" ({stand_in})" if stand_in else ""
mean = runs.groupby(["setting", "of", "stage", "layer", "share"]).part.mean()
for number, setting in ((10, "negative"), (11, "positive")):
    fig, axes = plt.subplots(2, 4, figsize=(8.6, 4.4), sharey=True)
    for row, of in zip(axes, ("units", "images")):
        for ax, stage in zip(row, STAGES):
            part = mean[setting, of, stage].unstack()
            box = dict(extent=(0, 1, 0.5, len(part) + 0.5), vmin=0, vmax=0.5)
            drawn = ax.imshow(part, origin="lower", aspect="auto", **box)
            ax.set_title(stage if of == "units" else "", fontsize=9)
            other = "images" if of == "units" else "units"
            ax.set_xlabel(f"share of {other}", fontsize=9)
        row[0].set(ylabel=f"{of}: layer")
    fig.colorbar(drawn, ax=axes, label="part of units or images", extend="max")
    what = f"Figure {number}, the {setting} setting{note}. Above: units by "
    what += "the share of images that activate them. Below: images by the "
    what += "share of units that they activate. If the claim holds, upper "
    what += "layers have more units on the left after random labels."
    table = mean[setting].rename("part").reset_index()
    study.show(fig, f"maennel.fig{number}", what, table=table)

# %% tags=["hide-input"]
cell = ["setting", "seed", "stage", "layer"]
level = runs.drop_duplicates(cell)[[*cell, "activation"]]
fig = plots.curves(level, x="layer", y="activation", hue="stage", height=2.8,
                   col="setting", markers=True, sharey=True)  # fmt: skip
caption = f"Activation of each layer{note}, the first next to the input. If "
caption += "the claim holds, random labels lower it, mostly in the upper half."
study.show(fig, "maennel.fig7", caption, table=level)
wide = level.pivot(index=cell[:2], columns=cell[2:], values="activation")
fall = wide["initialization"] - wide["random labels first"]
half = len(fall.columns) // 2
upper = fall.iloc[:, -half:].mean(axis=1)
more, effects = upper - fall.iloc[:, :half].mean(axis=1), {}
for name in HYPER:
    effects[f"{name}: fall in the upper half"] = study.above(upper[name])
    effects[f"{name}: upper minus lower half"] = study.above(more[name])
study.claim("maennel.fig7", effects=effects, stand_in=stand_in, data=sets,
            size=("chain", "side", *HYPER, "runs"))  # fmt: skip

# %% [markdown]
# ## Figure 24
#
# Activation of every layer; the gray line marks the switch. The first point
# behind it is the network as it is handed over, with its layers scaled back.

# %% tags=["hide-input"]
NETWORKS = {1: "one convolution", 3: "three convolutions"}
switch["architecture"] = switch.convs.map(NETWORKS)
names = {f"relu{i}": f"convolution {i + 1}" for i in range(3)}
switch["layer"] = switch.layer.replace(names | {"dense_relu": "dense"})
drawn = switch.groupby(["architecture", "seed", "network", "layer", "step"])
drawn = drawn.activation.last().reset_index()  # at the switch: handed over
fig = plots.curves(
    drawn, x="step", y="activation", hue="layer", style="network", height=3,
    col="architecture", sharey=True, labels={"step": "training step"},
    order=dict(layer=[*names.values(), "dense"]),
)  # fmt: skip
turn = switch[switch.task == "first"].step.max()
for ax in fig.axes:
    ax.axvline(turn, color="0.5", lw=1)
swap = f"{s.filters} filters in place of 256; images of {s.side} pixels"
swap = "" if profile == "paper" else swap
caption = f"Figure 24{f' ({swap})' if swap else ''}. If the claims hold, the "
caption += "upper layers fall at the line, and stay below their dashed curves."
study.show(fig, "maennel.fig24", caption, table=drawn)

# %% tags=["hide-input"]
UPPER = [["dense"], ["convolution 3", "dense"]]
size = ("filters", "units", "side", "switch", "runs")
about = dict(stand_in=swap, data=sets, size=size)
drop, stays, measured = {}, {}, {}
for name, top in zip(NETWORKS.values(), UPPER):
    part = switch[(switch.architecture == name) & switch.layer.isin(top)]
    part = part[part.epoch % 1 == 0].astype({"epoch": int})
    part = part.groupby(["network", "task", "epoch", "seed"]).activation
    part = part.mean().unstack()
    first, second = (part.xs(("pre-trained", k)) for k in ("first", "second"))
    before, after = first.iloc[-1], second.loc[1]
    lost = 1 - after / before
    usual = 1 - (first / first.shift()).iloc[1:].mean()
    end, scratch = second.iloc[-1], part.xs(("scratch", "second"))
    drop[f"{name}: part lost in the first epoch"] = study.above(lost)
    drop[f"{name}: that minus the mean epoch"] = study.above(lost - usual)
    stays[f"{name}: end minus scratch"] = study.below(end - scratch.iloc[-1])
    stays[f"{name}: end / first epoch"] = study.below(end / after, 1.1)
    back, cold = second.loc[0] / before, scratch.loc[1] / scratch.loc[0]
    measured[f"{name}: part lost by scaling back"] = (1 - back).mean()
    measured[f"{name}: part lost from scratch"] = (1 - cold).mean()
study.claim("maennel.fig24.drop", effects=drop, measured=measured, **about)
study.claim("maennel.fig24.stays", effects=stays, **about)

# %% [markdown]
# ## What differs from the paper, and why
#
# - Why VGG16 is replaced: [](05_positive_and_negative). Histograms are maps.
# - A switch changes the task, the head, the norms of the layers and the
#   learning rate, which starts again. A network from scratch may lose activity
#   in its first epoch, too: the card of the drop gives that part, and what
#   scaling back alone takes away.
#
# ## Try it
#
# 1. Set `change = {"units": 512}`. Do more units make the drop smaller?
# 2. In `one_switch`, leave out `maennel.rescale`. Is there still a drop?
# 3. Give the positive setting 50 `classes` in `HYPER`. Which layers change?

# %% tags=["hide-input"]
study.stamp()
