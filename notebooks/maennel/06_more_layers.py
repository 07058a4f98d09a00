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
# # Transferring more layers
#
# *Section 2.5 and appendix A.10 of {cite:t}`maennel2020`: figures 6 and 9.*
#
# ```{note}
# The data are the paper's: CIFAR-10. In all profiles but `paper` the images
# are reduced in size, and narrower networks with the same layers take the
# place of Simple CNN, VGG16 and ResNet18.
# ```
#
# Train a network on random labels, keep its first layers, start the others
# afresh, and train on new images. Earlier pages give the paper's reason why
# the first layer should help: its filters are aligned with the data. Does it
# help more to keep two layers, or all of them?

# %% tags=["hide-cell"]
import numpy as np
import pandas as pd
import torch

from repalign import data, models, plots, study, train
from repalign.machine import devices
from repalign.papers import maennel

study.begin("maennel/06_more_layers")

# %% [markdown]
# ## The idea
#
# Let a network have $L$ layers below its head. Pre-training on random labels
# turns its first weights $W^0_1, \dots, W^0_L$ into $\hat W_1, \dots,
# \hat W_L$. Training on the second task starts from
#
# $$
# \bigl(\hat W_1, \dots, \hat W_k,\; W'_{k+1}, \dots, W'_L,\;
# \text{head}'\bigr), \qquad 0 \le k \le L,
# $$
#
# where a prime marks fresh random weights. With $k = 0$ this is training from
# scratch; with $k = L$ everything but the head is transferred. Within a run
# the fresh weights are the same for every $k$, so only the transferred layers
# differ.
#
# The speed of learning is summarized by the area under the curve of training
# accuracy $a_k(t)$ over $T$ epochs, divided by $T$: the mean height
# $A_k = \frac1T \int_0^T a_k(t)\,dt$. More layers help if $A_k$ rises with
# $k$. Its *slope* is that of the line through the points $(k/L, A_k)$ fitted
# by least squares: what all layers would add if every layer added the same.
#
# Alignment may pass upward: once the first layer is aligned with the images,
# its outputs are the data of the second layer, which can align with those. But
# a top layer that served the random labels may have to be unlearned. So the
# answer is not clear beforehand.
#
# ## A toy whose answer is known
#
# Two classes of points, far apart, and a network with two hidden layers that
# has learned them. Here the second task is the first one again, and we count
# the head as a layer. Moving no layer leaves the fresh network as it is;
# moving all three gives the trained network, which makes no mistake.

# %%
y = torch.arange(200) % 2
noise = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
x = 8 * torch.eye(2)[y] + noise
toy = [models.MLP(2, 2, width=(16, 16), seed=seed) for seed in (0, 1)]
trained = maennel.pretrain(toy[0], x, y, rescale=False, epochs=50, lr=0.01)
start = {
    k: train.accuracy(maennel.copy_layers(trained, toy[1], k), x, y)
    for k in range(4)
}
study.table(
    pd.DataFrame({"accuracy before the second task": start}).rename_axis("k"),
    "Three layers, moved one after the other. Only both ends are known.",
)

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
small = dict(classes=(25, 5, 50), lr=0.01, convs=3, groups=4, look=2)
less = dict(small, pixels=16, widths=(16, 8, 8), units=64,
            scales=(0.518, 1.1, 0.671))  # fmt: skip
s = study.settings(
    profile, change,
    smoke=dict(
        small, pixels=8, widths=(4, 4, 4), units=16, scales=(1, 1, 1),
        draw_from=400, n_up=(96, 96, 96), epochs_up=(2, 2, 2), n=96, epochs=2,
        batch=(48, 48, 48), values=5, runs=2),
    laptop=dict(
        less, draw_from=20_000, n_up=(192, 192, 192), epochs_up=(30, 30, 30),
        n=192, epochs=12, batch=(64, 32, 48), values=3, runs=3),
    desktop=dict(
        less, draw_from=50_000, n_up=(1024, 1024, 1024), n=1024, epochs=24,
        epochs_up=(50, 50, 50), batch=(128, 32, 64), values=5, runs=6),
    paper=dict(
        classes=(25, 5, 50), lr=0.01, convs=3, groups=32, look=1, pixels=32,
        widths=(16, 64, 64), units=1024, draw_from=50_000,
        scales=(0.518, 0.526, 0.671), n_up=(15_000, 20_000, 25_000),
        epochs_up=(40, 120, 80), n=25_000, epochs=200, batch=(256, 256, 256),
        values=None, runs=3),
)  # fmt: skip
where = devices.device(device)
s

# %% [markdown]
# Three values in brackets are for Simple CNN, VGG16 and ResNet18. `n_up`,
# `epochs_up` and `classes` belong to the task with random labels, `n` and
# `epochs` to the second task, which has 10 classes. `scales` multiply He's
# first weights. `widths` are filters of the first convolution; deeper ones of
# VGG16 and ResNet18 have up to 8 times as many. `units` are those of Simple
# CNN's dense layer, `groups` those of ResNet18's group normalization. Accuracy
# on the whole training set is taken every `look` epochs. The paper does not
# say for how long figure 9 trains on the second task; the 200 epochs are those
# of its appendix B.
#
# `values` is how many numbers of layers are tried. Three are none, one and all
# $L$; five add half of the layers and three quarters; `None` means every one.
# Simple CNN with three convolutions has $L = 4$, VGG16 has 13, and ResNet18
# has 9, as a residual block counts as one layer.
#
# ## Data
#
# Every run draws images for both tasks, without a common one. Pixels are
# moved to $[-1, 1]$. Where `pixels` is below 32, blocks of pixels are
# averaged. Labels of the first task are random. The second task is run twice:
# with the real labels and with 10 random ones.

# %%
images = data.load("cifar10", n=s.draw_from, dtype=torch.uint8, shrink=True)
study.uses(images)

# %% tags=["hide-input"]


def prepared(x, pixels):
    """Images from -1 to 1, brought to ``pixels`` a side by averaging."""
    x = x.float() / 127.5 - 1
    return torch.nn.functional.avg_pool2d(x, x.shape[-1] // pixels)


row = [images.x[images.y == k][:1] for k in range(10)]
shown = prepared(torch.cat(row), s.pixels)
fig = plots.strips({"": shown}, span=(-1, 1))
caption = f"An image of each class, of {s.pixels} pixels a side as used here."
study.show(fig, "maennel.images_layers", caption)

# %% [markdown]
# ## Run
#
# One cell of the sweep is one network and one run. It pre-trains once and
# trains on the second task for every $k$ and both kinds of labels. After
# pre-training, each layer of Simple CNN and VGG16 is scaled back to the norm
# that it had before; ResNet18 is left as it is (A.4).


# %%
def build(network, outputs, pixels, scale, width, shape, seed):
    """One of the three networks; ``shape`` has convs, units and groups."""
    convs, units, groups = shape
    image, by = (3, pixels, pixels), dict(init_scale=scale, seed=seed)
    if network == "ResNet18":
        return models.resnet18_v2(outputs, width=width, groups=groups, **by)
    if network == "VGG16":
        return models.VGG("vgg16", image, outputs, width=width, **by)
    return models.SimpleCNN(
        image, outputs, convs=convs, filters=width, units=units, **by
    )


def transferred(depth, values):
    """The numbers of layers to transfer, and the names of five of them."""
    named = {0: "none", 1: "one", depth: "all"}
    if values != 3:
        named |= {depth // 2: "half", 3 * depth // 4: "three quarters"}
    tried = sorted(named) if values else range(depth + 1)
    return {k: named.get(k, "") for k in tried}


def one_run(network, seed, images, n_up, epochs_up, classes, scale, width,
            shape, pixels, n, epochs, batch, look, lr, values,
            device):  # fmt: skip
    """Curves of a network for every k, with real and with random labels."""
    first, then = data.disjoint(images, n_up, n, seed=seed)
    x_up, x = (prepared(one.x.to(device), pixels) for one in (first, then))
    y_up = data.random_labels(len(x_up), classes, seed=1000 + seed)
    random = data.random_labels(len(x), 10, seed=2000 + seed)
    how = dict(lr=lr, batch_size=batch, seed=seed)
    made = (pixels, scale, width, shape)
    net = build(network, classes, *made, seed=3000 + seed).to(device)
    again = network != "ResNet18"
    old = maennel.pretrain(
        net, x_up, y_up.to(device), rescale=again, epochs=epochs_up, **how
    )
    learned = train.accuracy(old, x_up, y_up.to(device))
    new = build(network, 10, *made, seed=4000 + seed).to(device)
    depth = len(maennel.layers(new)) - 1
    times = sorted({*range(0, epochs, look), epochs})
    rows = []
    for labels, y in (("real labels", then.y), ("random labels", random)):
        for k, name in transferred(depth, values).items():
            history = maennel.learning_curve(
                maennel.copy_layers(old, new, k),
                x, y.to(device), epochs=epochs, at=times, **how,
            )  # fmt: skip
            common = dict(labels=labels, k=k, share=k / depth, layers=name)
            common |= dict(area=maennel.curve_area(history), learned=learned)
            rows += [{**common, "epoch": row["epoch"],
                      "accuracy": row["train_accuracy"]}
                     for row in history.rows()]  # fmt: skip
    return rows


NETWORKS = ("Simple CNN", "VGG16", "ResNet18")
own = zip(NETWORKS, s.n_up, s.epochs_up, s.classes, s.scales, s.widths,
          s.batch)  # fmt: skip
names = ("network", "n_up", "epochs_up", "classes", "scale", "width", "batch")
configs = [
    dict(zip(names, values), seed=seed)
    for values in own
    for seed in study.seeds(s.runs)
]
runs = study.sweep(
    one_run, configs, images=images, shape=(s.convs, s.units, s.groups),
    pixels=s.pixels, n=s.n, epochs=s.epochs, look=s.look,
    lr=s.lr, values=s.values, device=str(where),
)  # fmt: skip

# %% [markdown]
# ## Figures 6 and 9
#
# The paper's panels: a column for each network; real labels above, random
# labels below. Figure 6 is the lower row.

# %% tags=["hide-input"]
ORDER = ["none", "one", "half", "three quarters", "all"]
drawn = runs[runs.layers != ""]
size = f"{s.widths[0]}, {s.widths[1]} and {s.widths[2]} filters"
small_ones = s.widths != (16, 64, 64) or s.pixels < 32
note = f" Networks of {size} in the first layer, on images of {s.pixels} "
note += "pixels, in place of the paper's." if small_ones else "pixels."
fig = plots.curves(
    drawn, x="epoch", y="accuracy", hue="layers", col="network", row="labels",
    order={"layers": [v for v in ORDER if v in {*runs.layers}]}, height=2.7,
    aspect=1, sharey=True, labels={"accuracy": "training accuracy"},
)  # fmt: skip
study.show(
    fig,
    "maennel.fig9",
    "Figure 9 (its lower row is figure 6): accuracy on the training set of "
    "the second task, with real labels above and random labels below. If the "
    "claims hold, areas grow with the number of layers, and the curve of all "
    f"layers rises before that of one. Mean of {s.runs} runs, "
    f"bands of one standard error.{note}",
    table=plots.averaged(
        drawn, ["network", "labels", "layers", "epoch"], "accuracy", "seed"
    ),
)

# %% [markdown]
# The same as one number for each $k$: the area under the curve, less that from
# scratch in the same run. Where a line falls, the last layers added do harm.

# %% tags=["hide-input"]
cell = ["network", "labels", "seed", "k"]
areas = runs.drop_duplicates(cell).drop(columns=["epoch", "accuracy"])
scratch = areas[areas.k == 0].set_index(cell[:3]).area
base = areas.set_index(cell[:3]).index.map(scratch)
areas = areas.assign(gain=areas.area - base.to_numpy())
fig = plots.curves(
    areas, x="share", y="gain", hue="labels", col="network", markers=True,
    height=2.7, aspect=1, sharey=True,
    labels={"share": "share of layers, k / L", "gain": "gain in area"},
)  # fmt: skip
for ax in fig.axes:
    ax.axhline(0, color="0.5", lw=0.8)
study.show(
    fig,
    "maennel.fig9.area",
    "Area under the training accuracy less that from scratch, against the "
    f"share of layers transferred. Mean of {s.runs} runs, bands of one "
    f"standard error.{note}",
    table=areas,
)

# %% [markdown]
# For each network and kind of labels two effects: the slope of the area over
# $k/L$, and the area with all layers less that with one, both run by run.


# %% tags=["hide-input"]
def effects(network):
    """The slope, and all layers against one, for both kinds of labels."""
    found = {}
    for labels, part in areas[areas.network == network].groupby("labels"):
        wide = part.pivot(index="seed", columns="share", values="area")
        slope = np.polyfit(wide.columns, wide.to_numpy().T, 1)[0]
        more = wide.iloc[:, -1] - wide.iloc[:, 1]  # all less one
        found[f"{labels}: slope"] = study.above(slope)
        found[f"{labels}: all layers less one"] = study.above(more)
    return found


def measured(network):
    """The gains of one and of all layers, and what was learned before."""
    part = areas[areas.network == network]
    ends = part[part.layers.isin(["one", "all"])]
    gain = ends.groupby(["labels", "layers"]).gain.mean()
    told = {f"gain, {a}, {b} transferred": v for (a, b), v in gain.items()}
    return told | {"random labels learned before": part.learned.mean()}


SIZE = ("pixels", "widths", "units", "scales", "batch")
for network, id, width in zip(NETWORKS, ("simple", "vgg", "resnet"), s.widths):
    smaller = f"{network} with {width} filters in its first layer, on images "
    smaller += f"of {s.pixels} pixels, in place of the paper's size"
    study.claim(
        f"maennel.fig9.{id}",
        effects=effects(network),
        measured=measured(network),
        stand_in=smaller if small_ones else "",
        size=(*SIZE, "n_up", "epochs_up", "n", "epochs", "runs"),
    )

# %% [markdown]
# ## What differs from the paper, and why
#
# - Outside of `paper`, images and networks are smaller and there are fewer
#   images and epochs. At the paper's initialization scale, 0.526, each of
#   VGG16's thirteen layers shrinks its signal, and it takes many steps to
#   leave the accuracy of guessing. With few steps it gets a larger scale.
# - Batches are smaller where there are fewer images, so that an epoch still
#   has several steps.
# - The paper judges by eye whether more layers are better. Here a slope and a
#   difference of areas decide, each with its interval over runs.
# - The paper counts layers of ResNet18 without saying how. Here a residual
#   block is transferred as a whole. As it is not rescaled, its transferred
#   layers may have larger norms, which alone changes how fast it learns.
# - Error bands are standard errors of the mean; the paper's are the smallest
#   and the largest of 3 runs.
#
# ## Try it
#
# 1. Set `change = {"pixels": 32}`. Is the gain of Simple CNN as large on
#    images of full size, where neighboring patches look more alike?
# 2. Set `change = {"epochs_up": (5, 5, 5)}`. How many layers does it pay to
#    transfer after a short pre-training?
# 3. Set `change = {"scales": (1.0, 1.0, 1.0)}`. Does the gain come from the
#    pre-trained directions, or from a start that was too small?

# %% tags=["hide-input"]
study.stamp()
