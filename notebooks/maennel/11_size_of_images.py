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
# # Does the size of the images turn the sign?
#
# *Beyond {cite:t}`maennel2020`: the Simple CNN of its figure 9, on images of
# two sizes.*
#
# ```{note}
# The paper has no such experiment. The network is its Simple CNN of figure 9
# with fewer units in the dense layer, and there are fewer images of CIFAR-10.
# ```
#
# In our first trials one and the same network gained by random labels on
# images of 16 pixels, and lost by them on images of 32. What turns the sign:
# what the images show, or how many numbers the dense layer gets from them?

# %% tags=["hide-cell"]
import pandas as pd
import torch
from torch.nn.functional import avg_pool2d, interpolate

from repalign import data, features, models, plots, study, train
from repalign.machine import devices
from repalign.papers import maennel

study.begin("maennel/11_size_of_images")

# %% [markdown]
# ## The idea
#
# Let $a_k(t)$ be the training accuracy of the second task after $t$ of $T$
# steps, when the first $k$ layers come from a network that was trained on
# random labels. The *gain* of these layers is
#
# $$
# \mathrm{gain}(k) = \frac1T \int_0^T \bigl(a_k(t) - a_0(t)\bigr)\, dt ,
# $$
#
# where $k = 0$ is a network from scratch. Three convolutions of $c$ filters
# and stride 1 hand $c \cdot s^2$ numbers to the dense layer, if an image has
# $s \times s$ pixels. At twice the side, the dense layer has four times the
# weights. So it may learn more of the random labels by itself, in a way that
# serves no other task.
# If that is the reason, three things should follow: the loss should go when
# only convolutions are transferred, it should stay when small images are
# merely *enlarged*, and it should go when the large maps are *pooled* before
# the dense layer. If what counts is what images show, enlarging them should
# change little. Neither test is pure: enlarging halves what a filter sees, and
# pooling drops details.
#
# ## A toy whose answer is known
#
# How much easier do more inputs make random labels? By Cover's theorem, a
# linear unit without bias and with $d$ inputs can realize a share
# $2^{1-n} \sum_{k < d} \binom{n-1}{k}$ of all ways to split $n$ points in
# general position in two: all for $n \le d$, half of them at $n = 2d$. A
# perceptron finds a solution where there is one, given enough steps.


# %%
def share(n, d):
    """Of all labels of n points in general position: those realizable."""
    pick = torch.distributions.Binomial(n - 1, torch.tensor(0.5).double())
    return float(pick.log_prob(torch.arange(min(n, d)).double()).exp().sum())


def realizes(n, d, seed, rounds=400):
    """Whether a perceptron learns random labels of n random points."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g)
    y = 2.0 * torch.randint(2, (n,), generator=g) - 1
    w, z = torch.zeros(d), x * y[:, None]
    for _ in range(rounds * n):
        worst = int((z @ w).argmin())
        if z[worst] @ w > 0:
            return True
        w += z[worst]
    return False


cases = {(n, d): [realizes(n, d, seed) for seed in range(50)]
         for n, d in ((8, 4), (8, 8), (12, 4))}  # fmt: skip
toy = {"found": {key: sum(v) / len(v) for key, v in cases.items()}}
toy["Cover"] = {key: share(*key) for key in cases}
toy = pd.DataFrame(toy).rename_axis(["points", "inputs"])
study.table(toy, "Share of 50 random labelings that a linear unit realizes.")

# %% [markdown]
# ## The claims of this page
#
# They are ours, made after trials on seeds below 100.

# %% tags=["hide-input"]
study.claims()

# %% [markdown]
# ## Settings

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"units": 256}: replaces values in the table below

# %% tags=["hide-input"]
usual = dict(
    filters=16, classes=25, init_scale=0.518, lr=0.01, draw_from=50_000,
)  # fmt: skip
s = study.settings(
    profile, change,
    smoke=dict(
        usual | dict(draw_from=1000), units=8, n=48, batch=24, epochs=1,
        tune_epochs=2, runs=2),
    laptop=dict(
        usual, units=64, n=192, batch=64, epochs=16, tune_epochs=8, runs=2),
    desktop=dict(
        usual, units=64, n=1280, batch=256, epochs=60, tune_epochs=30, runs=4),
    paper=dict(
        usual, units=1024, n=15_000, batch=256, epochs=40, tune_epochs=200,
        runs=6),
)  # fmt: skip
where = devices.device(device)
s

# %% [markdown]
# `epochs` on `n` images with `classes` random labels, then `tune_epochs` on
# `n` others with their real ones. The column `paper` is figure 9's for this
# network, but for the second task's images (25,000 there), its epochs
# (appendix B's) and `runs` (3 there).
#
# ## Data
#
# CIFAR-10 from $-1$ to 1. Each run draws two disjoint samples, and all cases
# of a run share them. *16 px* are averages over blocks of 2 × 2 pixels, and
# *16 px, enlarged* repeats each of these pixels 2 × 2 times.

# %%
images = data.load("cifar10", n=s.draw_from, shrink=True, dtype=torch.uint8)
n = min(s.n, len(images) // 2)
study.uses(images)
CASES = ("16 px", "16 px, enlarged", "32 px", "32 px, pooled")


def seen(x, case):
    """Bytes to images from -1 to 1, as a case has them."""
    x = x.float() / 127.5 - 1
    if case.startswith("16"):
        x = avg_pool2d(x, 2)
    return interpolate(x, scale_factor=2) if "enlarged" in case else x


# %% tags=["hide-input"]
row = torch.cat([images.x[images.y == k][:1] for k in range(10)])
fig = plots.strips({case: seen(row, case) for case in CASES[:3]}, span=(-1, 1))
study.show(fig, "maennel.images_size", "An image of each class.")

# %% [markdown]
# ## Run
#
# One cell is one case in one run. *Pooled* has a max-pooling before the dense
# layer, which then gets about as many numbers as with 16 pixels. Before the
# second task, a cell notes how many of the random labels were learned, how far
# the dense layer has turned (1 minus the cosine of its weights before and
# after), and how many of its units no new image activates.


# %%
def one_case(case, seed, images, n, classes, net, how, tune, device):
    """Areas from scratch, with convolutions and with all layers moved."""
    up, down = data.disjoint(images, n, n, seed=seed)
    x, new = (seen(one.x.to(device), case) for one in (up, down))
    a, b = 10 * seed, 10 * seed + 1
    net = dict(net, image=tuple(x[0].shape), pool="pooled" in case)
    start = models.SimpleCNN(outputs=classes, seed=a, **net).to(device)
    fresh = models.SimpleCNN(outputs=10, seed=b, **net).to(device)
    labels = data.random_labels(n, classes, seed=a).to(device)
    old = maennel.pretrain(start, x, labels, seed=a, rescale=False, **how)
    told = dict(learned=train.accuracy(old, x, labels))
    old = maennel.rescale(old, maennel.norms(start))
    two = [maennel.filters(v, "dense").flatten() for v in (start, old)]
    told["turned"] = 1 - float(torch.cosine_similarity(*two, dim=0))
    told["inputs of the dense layer"] = old.dense.in_features
    rows, y = [], down.y.to(device)
    for name, k in (("none", 0), ("convolutions", 3), ("all", 4)):
        moved = maennel.copy_layers(old, fresh, k)
        rate = features.activation_rates(moved, new, "dense_relu")
        told["dead units"] = float((rate["dense_relu"] == 0).double().mean())
        past = maennel.learning_curve(moved, new, y, seed=b, **tune)
        what = dict(layers=name, area=maennel.curve_area(past), **told)
        rows += [dict(what, **row) for row in past.rows()]
    return rows


net = dict(filters=s.filters, units=s.units, init_scale=s.init_scale)
how = dict(lr=s.lr, batch_size=s.batch)
runs = study.sweep(
    one_case, study.grid(case=CASES, seed=study.seeds(s.runs)), images=images,
    n=n, classes=s.classes, net=dict(net, convs=3),
    how=dict(how, epochs=s.epochs), tune=dict(how, epochs=s.tune_epochs),
    device=str(where),
)  # fmt: skip

# %% [markdown]
# ## The curves, and their gains

# %% tags=["hide-input"]
order = {"layers": ["none", "convolutions", "all"]}
drawn = runs.rename(columns={"train_accuracy": "training accuracy"})
fig = plots.curves(
    drawn, x="epoch", y="training accuracy", hue="layers", col="case",
    order=order, sharey=True, height=2.7, aspect=0.85,
)  # fmt: skip
text = f"The second task, {n} images with real labels, by the layers moved: "
text += f"mean of {s.runs} runs, bands of one standard error."
keep = ["case", "layers", "seed", "epoch", "training accuracy"]
study.show(fig, "maennel.size.curves", text, table=drawn[keep])

# %% tags=["hide-input"]
once = runs.drop_duplicates(["case", "layers", "seed"])
area = once.pivot(index="seed", columns=["case", "layers"], values="area")
gain = {(case, layers): area[case][layers] - area[case]["none"]
        for case in CASES for layers in ("convolutions", "all")}  # fmt: skip
effects = {", ".join(key): study.above(value) for key, value in gain.items()}
fig = plots.forest(effects, xlabel="gain in area over scratch")
text = f"The gain by case and by the layers moved, 95% intervals of {s.runs} "
text += "runs. If the dense layer does the harm, the gains of convolutions "
text += "alone lie to the right. If its number of inputs does, “16 px, "
text += "enlarged” is like “32 px”, and “32 px, pooled” like “16 px”."
frame = pd.DataFrame(gain).rename_axis("seed")
frame.columns = [", ".join(key) for key in frame.columns]
study.show(fig, "maennel.size", text, table=frame.reset_index())

# %% tags=["hide-input"]
by = dict(size=("n", "units", "epochs", "tune_epochs", "runs"), data=[images])
if profile != "paper":
    by["stand_in"] = f"{s.units} units and {n} images in place of figure 9's"
two = {"gain, 16 px": study.above(gain["16 px", "all"])}
two["gain, 32 px"] = study.below(gain["32 px", "all"])
told = {", ".join(key): value.mean() for key, value in gain.items()}
study.claim("maennel.size", effects=two, measured=told, **by)
more = gain["32 px", "convolutions"] - gain["32 px", "all"]
more = {"convolutions alone less all layers": study.above(more)}
study.claim("maennel.size.dense", effects=more, **by)

# %% [markdown]
# ## What pre-training did to the dense layer

# %% tags=["hide-input"]
last = once[once.layers == "all"].groupby("case", sort=False)
names = ["inputs of the dense layer", "learned", "turned", "dead units"]
table = last[names].mean()
table["dead, fresh"] = (
    once[once.layers == "none"].groupby("case")["dead units"].mean()
)
table["gain, all layers"] = [gain[case, "all"].mean() for case in table.index]
text = "Means over runs: random labels learned, how far the dense layer has "
text += "turned, and its units that no new image activates, pre-trained and "
text += "fresh."
study.table(table, text)

# %% [markdown]
# ## What differs from the paper, and why
#
# - The paper averages no images. We do, to separate size from content.
# - Except in `paper`, the dense layer is narrower and there are fewer images;
#   a narrow layer may make negative transfer more likely ([](08_width)).
#
# ## Try it
#
# 1. Set `change = {"units": 256}`. Does width help the large images, too?
# 2. Set `change = {"epochs": 10}`. Is there less harm with less pre-training?
# 3. Set `change = {"classes": 2}`. Two random classes are learned more easily.
#    Is the dense layer then turned less?

# %% tags=["hide-input"]
study.stamp()
