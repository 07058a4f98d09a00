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
# # Negative transfer
#
# *Section 7.3 and appendix D of {cite:t}`imani2022`: figure 16 and table 1.*
#
# ```{note}
# The paper uses Office-31 and a ResNet18 trained on ImageNet. The `paper`
# profile does so too, from a folder. The others have one scale down, all
# images real: Fashion-MNIST seen by three cameras in place of Amazon, DSLR and
# Webcam, and a small convolutional network that was trained on other images
# of Fashion-MNIST in place of ResNet18. Captions and verdicts name them.
# ```
#
# Pre-training can harm. Train a network on a source task whose labels are
# random, then fine-tune it on another: it ends up worse than without the
# source task. Does the alignment with the target fall, *before* any
# fine-tuning, and does it fall most where the harm is largest?

# %% tags=["hide-cell"]
import copy
from itertools import combinations
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn import functional

from repalign import data, features, models, study, train
from repalign.alignment import spectrum, unit_rows
from repalign.machine import devices
from repalign.models import transfer

study.begin("imani/10_negative_transfer")

# %% [markdown]
# ## The claims of this page
#
# Each criterion was fixed before the first run. The fall of alignment is that
# of the area under the curve, $\sum_i \sigma_i (u_i^\top y)^2$, relative to
# the network that has not seen the source task.

# %% tags=["hide-input"]
study.claims(
    dict(
        id="imani.fig16.reduced",
        paper="Pre-training on a source with random labels reduces "
        "alignment in all six pairs of domains (fig. 16).",
        criterion="in each of the six pairs, the relative fall of area, "
        "averaged over the binary tasks of the target, is above zero by the "
        "95% interval of its mean over runs",
    ),
    dict(
        id="imani.fig16.order",
        paper="Amazon reduces alignment most, DSLR least (fig. 16).",
        criterion="relative fall of area, averaged over a source's two "
        "targets and compared within each run: Amazon's above Webcam's, "
        "Amazon's above DSLR's and Webcam's above DSLR's, each by the 95% "
        "interval of the mean difference over runs",
    ),
    dict(
        id="imani.tab1.negative",
        paper="Pre-training reduces the accuracy after fine-tuning in all "
        "six pairs (table 1).",
        criterion="in each of the six pairs, the test accuracy without a "
        "source task minus that with it, taken within each run, is above "
        "zero by the 95% interval of its mean over runs",
    ),
    dict(
        id="imani.tab1.order",
        paper="Amazon harms most, DSLR least (table 1).",
        criterion="loss of accuracy, averaged over a source's two targets "
        "and compared within each run: Amazon's above Webcam's, Amazon's "
        "above DSLR's and Webcam's above DSLR's, each by the 95% interval of "
        "the mean difference over runs",
    ),
)

# %% [markdown]
# ## Settings

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"runs": 2}: replaces values in the table below

# %% tags=["hide-input"]
small = dict(
    images="fashion_mnist",
    network="simple_cnn",
    before="fashion_mnist",
    batch=64,
    schedule="constant",
    lr=0.001,
    tune_lr=0.01,
    weight_decay=1e-4,
)
s = study.settings(
    profile,
    change,
    smoke=dict(
        **small,
        sizes=(120, 60, 60),
        n_test=100,
        n_before=200,
        before_epochs=1,
        epochs=3,
        tune_epochs=2,
        runs=2,
    ),
    laptop=dict(
        **small,
        sizes=(1408, 398, 249),
        n_test=1000,
        n_before=4000,
        before_epochs=5,
        epochs=40,
        tune_epochs=20,
        runs=3,
    ),
    desktop=dict(
        **small,
        sizes=(2817, 795, 498),
        n_test=2000,
        n_before=5000,
        before_epochs=10,
        epochs=100,
        tune_epochs=50,
        runs=5,
    ),
    paper=dict(
        images="office31",
        network="resnet18",
        before="imagenet",
        batch=256,
        schedule="step30",
        lr=0.001,
        tune_lr=0.001,
        weight_decay=1e-4,
        sizes=(2817, 795, 498),
        n_test=0,
        n_before=1_281_167,
        before_epochs=0,
        epochs=500,
        tune_epochs=100,
        runs=1,
    ),
)
where = devices.device(device)
s

# %% [markdown]
# `sizes` are images of Amazon, Webcam and DSLR: in `desktop` exactly as many
# as Office-31 has, in `laptop` half. `epochs` on the source use Adam with rate
# `lr`, `tune_epochs` on the target SGD with momentum 0.9 and rate `tune_lr`,
# as in the paper. `n_test` 0 means a fifth of each domain: the paper does not
# give its split. `before` is what the network has learned before all that
# (from torchvision in `paper`, so no epochs here).
#
# ## The idea
#
# Let $\Phi$ be the last hidden layer on the *target's* images, once for the
# network as it was and once after the source task, and $y$ one of the target's
# binary tasks. The difference
#
# $$
# \mathrm{Alignment}(\Phi_{\text{none}}, y, \tau)
# - \mathrm{Alignment}(\Phi_{\text{source}}, y, \tau)
# $$
#
# is positive where the source task has turned the representation away from
# the target. Random labels reward a network for telling images apart one by
# one, which is the opposite of putting classes together.
#
# ## A toy whose answer is known
#
# Four points, two classes. In the first representation a class shares a
# direction: all of $\|y\|^2 = 4$ lies at $\sigma = \sqrt 2$. In the second
# every point has its own: all of it lies at $\sigma = 1$. The areas are
# $4\sqrt2 \approx 5.66$ and $4$.


# %%
toy = torch.tensor([1.0, 1.0, -1.0, -1.0])
together = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]])
for phi in (together, torch.eye(4)):
    print(f"{float(spectrum(phi, toy).area()):.2f}")

# %% [markdown]
# ## Data
#
# Three domains with the same classes and different cameras. Office-31's Amazon
# has catalogue pictures on white, its Webcam is coarse and noisy, its DSLR
# sharp, with the objects in a room. The stand-ins: Fashion-MNIST's catalogue
# pictures as they are; coarse, pale and noisy; and smaller, moved about, in
# front of an uneven background.

# %%
DOMAINS = ("amazon", "webcam", "dslr")
TITLES = {"amazon": "Amazon", "webcam": "Webcam", "dslr": "DSLR"}


def camera(x, domain, seed):
    """Images (n, 1, h, w) as the camera of a domain would show them."""
    g = torch.Generator().manual_seed(seed)
    n, side = len(x), x.shape[-1]
    if domain == "webcam":
        coarse = functional.interpolate(x, side // 2, mode="area")
        x = functional.interpolate(coarse, side, mode="bilinear")
        x = 0.2 + 0.6 * x + 0.1 * torch.randn(x.shape, generator=g)
    elif domain == "dslr":
        size = 1.2 + 0.3 * torch.rand(n, generator=g)
        move = 0.4 * torch.rand(n, 2, generator=g) - 0.2
        change = torch.zeros(n, 2, 3)
        change[:, 0, 0] = change[:, 1, 1] = size
        change[:, :, 2] = move
        grid = functional.affine_grid(change, x.shape, align_corners=False)
        x = functional.grid_sample(x, grid, align_corners=False)
        room = torch.rand(n, 1, 3, 3, generator=g)
        room = functional.interpolate(room, side, mode="bilinear")
        x = x + 0.5 * (1 - x) * room
    return x.clamp(0, 1)


def domain(name, set_name, sizes, n_before, n_test, seed):
    """Training images and labels of a domain, and test images and labels."""
    if set_name == "office31":
        whole = data.load("office31", name, size=256)
        fifth = len(whole) // 5
        train_part, test_part = data.disjoint(
            whole, len(whole) - fifth, fifth, seed=seed
        )
        return train_part.x, train_part.y, test_part.x, test_part.y
    # No image is in two domains, or in what the network saw before.
    i = DOMAINS.index(name)
    first, last = (n_before + sum(sizes[:k]) for k in (i, i + 1))
    whole = pool(set_name, sizes, n_before, seed)
    test = data.load(set_name, "test", n=n_test, seed=seed, shrink=True)
    return (
        camera(whole.x[first:last], name, 10 * seed + i),
        whole.y[first:last],
        camera(test.x, name, 10 * seed + i + 5),
        test.y,
    )


def pool(set_name, sizes, n_before, seed):
    """All training images of a run, shuffled: before, then the domains."""
    n = n_before + sum(sizes)
    return data.load(set_name, n=n, seed=seed, shrink=True)


if s.images == "office31":
    used = [data.load(s.images, name, n=310, size=64) for name in DOMAINS]
else:
    used = [data.load(s.images, split, n=100) for split in ("train", "test")]
for one in used:
    study.uses(one)
if s.before not in ("imagenet", s.images):
    used.append(data.load(s.before, n=s.n_before, shrink=True))
    study.uses(used[-1])

# %% tags=["hide-input"]
fig, axes = plt.subplots(3, 10, figsize=(7.2, 2.4))
for row, name in zip(axes, DOMAINS):
    pictures, kinds, _, _ = domain(name, s.images, s.sizes, s.n_before, 20, 0)
    for label, ax in enumerate(row):
        picture = pictures[kinds == label][0]
        ax.imshow(picture.permute(1, 2, 0).squeeze(), cmap="gray")
        ax.set(xticks=[], yticks=[])
    row[0].set_ylabel(TITLES[name])
stands = "" if s.images == "office31" else " (stand-ins made of Fashion-MNIST)"
study.show(
    fig,
    "imani.domains",
    f"One image of each of ten classes in the three domains{stands}: the same "
    "things, other cameras.",
)

# %% [markdown]
# ## Run
#
# One run: a network that has learned something before; from it four copies,
# one left alone and three trained on a domain with random labels; each
# copy's alignment with every binary task of the other domains; each copy
# fine-tuned on the other domains with true labels.


# %%
def crop(x, generator):
    """A random 224 × 224 part of each 256 × 256 image, mirrored or not."""
    most = x.shape[-1] - 224 + 1
    top, left = torch.randint(most, (2, len(x)), generator=generator)
    flip = torch.rand(len(x), generator=generator) < 0.5
    parts = [
        image[:, a : a + 224, b : b + 224].flip(-1 if f else ())
        for image, a, b, f in zip(x, top.tolist(), left.tolist(), flip)
    ]
    return torch.stack(parts)


def start(o, seed):
    """The network before the experiment, its last hidden layer, its scale."""
    if o.network == "resnet18":
        net = models.pretrained("resnet18")
        return net.module, "avgpool", (net.preprocess.mean, net.preprocess.std)
    model = models.build(
        o.network,
        image=(1, 28, 28),
        convs=3,
        stride=2,
        filters=32,
        units=128,
        seed=seed,
    )
    first = pool(o.before, o.sizes, o.n_before, seed)
    how = dict(epochs=o.before_epochs, batch_size=o.batch, seed=seed)
    train.fit(model, first.x[: o.n_before], first.y[: o.n_before], **how)
    return model, "dense_relu", ((0.0,), (1.0,))


def hidden(model, x, layer):
    """The last hidden layer, its rows scaled to length one."""
    return unit_rows(features.extract(model, x, [layer])[layer].double())


def binary_tasks(phi, y, grid):
    """Mean area / ‖y‖² and mean curve over all pairs of classes."""
    areas, curves = [], []
    for a, b in combinations(y.unique().tolist(), 2):
        rows = (y == a) | (y == b)
        sign = data.signs((y[rows] == b).long(), dtype=torch.float64)
        spec = spectrum(phi[rows], sign)
        n = int(rows.sum())
        areas.append(float(spec.area()) / n**1.5)
        tau = torch.tensor(grid, dtype=torch.float64) * n**0.5
        curves.append(spec.curve(tau).value / n)
    return float(np.mean(areas)), torch.stack(curves).mean(0)


def one_run(setup, seed, grid, marks, device):
    """All of table 1 and figure 16, once."""
    o = SimpleNamespace(**setup)
    base, layer, scale = start(o, seed)
    mean, std = (torch.tensor(v)[:, None, None] for v in scale)
    tasks = {}
    for name in DOMAINS:
        x, y, test_x, test_y = domain(
            name, o.images, o.sizes, o.n_before, o.n_test, seed
        )
        x, test_x = (((v - mean) / std).to(device) for v in (x, test_x))
        tasks[name] = x, y.to(device), test_x, test_y.to(device)
    large = o.images == "office31"

    def middle(x):
        return x[:, :, 16:240, 16:240] if large else x

    common = dict(batch_size=o.batch, weight_decay=o.weight_decay)
    common["seed"] = seed
    common["augment"] = crop if large else None
    classes = int(tasks["amazon"][1].max()) + 1
    starts, fitted = {"none": base.to(device)}, {}
    for i, name in enumerate(DOMAINS):
        x = tasks[name][0]
        labels = data.random_labels(len(x), classes, seed=100 * seed + i)
        labels = labels.to(device)
        model = transfer.replace_head(base, classes, seed=seed).to(device)
        how = dict(epochs=o.epochs, lr=o.lr, schedule=o.schedule)
        train.fit(model, x, labels, optimizer="adam", **how, **common)
        fitted[name] = train.accuracy(model, middle(x), labels)
        starts[name] = model
    out = dict(fitted=fitted, area={}, curve={}, accuracy={})
    for target, (x, y, test_x, test_y) in tasks.items():
        for source, model in starts.items():
            if source == target:
                continue
            key = f"{source} {target}"
            out["area"][key], out["curve"][key] = binary_tasks(
                hidden(model, middle(x), layer), y.cpu(), grid
            )
            tuned = transfer.replace_head(
                copy.deepcopy(model), classes, seed=seed
            ).to(device)
            how = dict(epochs=o.tune_epochs, lr=o.tune_lr)
            how["schedule"] = "step30"
            train.fit(tuned, x, y, optimizer="momentum", **how, **common)
            out["accuracy"][key] = train.accuracy(
                tuned, middle(test_x), test_y
            )
    return out


grid = np.linspace(0, 1, 101).tolist()
keys = ("images", "network", "before", "batch", "schedule", "lr", "tune_lr")
keys += ("weight_decay", "sizes", "n_test", "n_before", "before_epochs")
keys += ("epochs", "tune_epochs")
config = dict(
    setup={key: getattr(s, key) for key in keys},
    grid=grid,
    marks=[one.fingerprint for one in used],
    device=str(where),
)
runs = study.sweep(one_run, [dict(config, seed=r) for r in range(s.runs)])
for name in DOMAINS:
    share = np.mean([run["fitted"][name] for run in runs])
    print(f"{name}: {share:.0%} of the random labels learned by heart")


# %% [markdown]
# ## Figure 16
#
# For every pair the curve of the network left alone minus the curve of the
# one that saw the source, averaged over the target's binary tasks.

# %%
PAIRS = [(a, b) for a in DOMAINS for b in DOMAINS if a != b]


def per_run(what, source, target):
    return np.array([run[what][f"{source} {target}"] for run in runs])


def standard_error(rows):
    """Of the mean over runs; none with a single run."""
    many = len(rows) > 1
    return rows.std(0, ddof=1) / len(rows) ** 0.5 if many else 0 * rows[0]


fall = {
    (a, b): 1 - per_run("area", a, b) / per_run("area", "none", b)
    for a, b in PAIRS
}
for (a, b), value in fall.items():
    print(f"{TITLES[a]} → {TITLES[b]}: area falls by {value.mean():.1%}")

# %% tags=["hide-input"]
fig, ax = plt.subplots(figsize=(6.4, 3.8))
reach = 0.05
for a, b in PAIRS:
    rows = np.stack(
        [
            np.asarray(run["curve"][f"none {b}"] - run["curve"][f"{a} {b}"])
            for run in runs
        ]
    )
    first = b == next(d for d in DOMAINS if d != a)
    colour = study.PALETTE[DOMAINS.index(a)]
    mean, error = rows.mean(0), standard_error(rows)
    far = np.array(grid)[np.abs(mean) > 0.005]
    reach = max(reach, far.max(initial=0))
    ax.plot(
        grid,
        mean,
        color=colour,
        ls="-" if first else "--",
        label=f"{TITLES[a]} → {TITLES[b]}",
    )
    ax.fill_between(
        grid, mean - error, mean + error, color=colour, alpha=0.15, lw=0
    )
ax.axhline(0, color=study.PALETTE[5], lw=0.8)
ax.set(xlabel="threshold $\\tau / \\sqrt{n}$", xlim=(0, reach))
ax.set_ylabel("alignment without − with source\n(share of $\\|y\\|^2$)")
ax.legend()
study.show(
    fig,
    "imani.fig16",
    f"Figure 16{stands}. Above zero, training on the source's random labels "
    "has reduced the alignment with the target. A colour is a source. "
    "Threshold and alignment are scaled by the number of images, which "
    "differs between domains. Shades: standard error over runs.",
)

# %% [markdown]
# ## Table 1
#
# The paper's table, and ours beside it: test accuracy in percent after
# fine-tuning, a row for each source, a column for each target.

# %% tags=["hide-input"]
COLUMNS = ("dslr", "webcam", "amazon")
PAPER = {
    "none": (88.0, 92.5, 82.7),
    "dslr": (None, 70.3, 65.6),
    "webcam": (30.7, None, 47.3),
    "amazon": (4.7, 4.6, None),
}
ours = {
    row: [
        None if row == b else 100 * per_run("accuracy", row, b).mean()
        for b in COLUMNS
    ]
    for row in PAPER
}


def ink(value):
    """A colour that can be read on the cell of this value."""
    if np.isnan(value):
        return study.PALETTE[5]
    return "#eeeeee" if value < 55 else "#111111"


fig, axes = plt.subplots(1, 2, figsize=(7.6, 2.3), sharey=True)
for ax, table, title in zip(axes, (ours, PAPER), ("here", "the paper")):
    values = np.array(
        [[np.nan if v is None else v for v in row] for row in table.values()],
        dtype=float,
    )
    ax.imshow(values, vmin=0, vmax=100, cmap="cividis", aspect="auto")
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            ax.text(
                j,
                i,
                "–" if np.isnan(value) else f"{value:.1f}",
                ha="center",
                va="center",
                color=ink(value),
            )
    ax.set_xticks(range(3), [TITLES[b] for b in COLUMNS])
    ax.set_yticks(range(4), ["None", *(TITLES[a] for a in list(PAPER)[1:])])
    ax.set(title=title, xlabel="target")
axes[0].set_ylabel("source")
study.show(
    fig,
    "imani.tab1",
    f"Table 1{stands}: test accuracy in percent after fine-tuning. The first "
    "row has no source task; every other entry of a column should be below "
    "it.",
)

# %% [markdown]
# ## Verdicts

# %% tags=["hide-input"]
seeds = range(s.runs)
names = {p: f"{TITLES[p[0]]} → {TITLES[p[1]]}" for p in PAIRS}
what = {"data": f"{s.images}, network {s.network} trained on {s.before}"}
loss = {
    (a, b): per_run("accuracy", "none", b) - per_run("accuracy", a, b)
    for a, b in PAIRS
}


def by_source(values):
    """Mean over a source's two targets, in each run."""
    return {
        a: np.mean([v for (src, _), v in values.items() if src == a], axis=0)
        for a in DOMAINS
    }


def extremes(mean):
    """Amazon largest, DSLR smallest?"""
    return max(mean, key=mean.get) == "amazon" and (
        min(mean, key=mean.get) == "dslr"
    )


def interval(values):
    return study.interval(values) if s.runs > 1 else None


study.claim(
    "imani.fig16.reduced",
    measured={
        **what,
        **{f"fall of area, {names[p]}": v.mean() for p, v in fall.items()},
    },
    interval=interval(np.mean(list(fall.values()), axis=0)),
    holds=[v.mean() > 0 for v in fall.values()],
    seeds=seeds,
)
sources = by_source(fall)
means = {a: float(v.mean()) for a, v in sources.items()}
study.claim(
    "imani.fig16.order",
    measured={
        **what,
        **{f"fall of area, from {TITLES[a]}": v for a, v in means.items()},
    },
    interval=interval(sources["amazon"] - sources["dslr"]),
    holds=extremes(means),
    seeds=seeds,
)
study.claim(
    "imani.tab1.negative",
    measured={
        **what,
        **{
            f"points lost, {names[p]}": 100 * v.mean() for p, v in loss.items()
        },
    },
    interval=interval(100 * np.mean(list(loss.values()), axis=0)),
    holds=[v.mean() > 0 for v in loss.values()],
    seeds=seeds,
)
sources = by_source(loss)
means = {a: 100 * float(v.mean()) for a, v in sources.items()}
study.claim(
    "imani.tab1.order",
    measured={
        **what,
        **{f"points lost, from {TITLES[a]}": v for a, v in means.items()},
    },
    interval=interval(100 * (sources["amazon"] - sources["dslr"])),
    holds=extremes(means),
    seeds=seeds,
)

# %% [markdown]
# ## What differs from the paper, and why
#
# - Office-31 and torchvision's ResNet18 were out of reach. The stand-in keeps
#   the setting: three domains with the same classes, different
#   inputs and Office-31's proportions (Amazon is the largest by far, DSLR the
#   smallest), a network that already knows something, random labels, Adam on
#   the source and SGD on the target. It has ten classes and 45 binary tasks
#   per domain, not 31 and 465.
# - The network of the stand-in is small and needs a larger rate for
#   fine-tuning (0.01, not 0.001) and smaller batches; it keeps its rate on the
#   source, where the paper divides it by ten every 30 epochs.
# - Thresholds are divided by $\sqrt n$ in figure 16, so that domains of
#   different sizes share an axis.
# - Both source and target get a fresh last layer; the paper does not say.
#
# ### Why alignment does not fall everywhere
#
# The stand-in has the negative transfer of table 1, much weaker than the
# paper's, but alignment does not fall in every pair; it does where the target
# is Amazon. Two networks were tried as what came before:
#
# - One trained on MNIST. It is hardly aligned with clothes to begin with, and
#   alignment *rose* in all six pairs, while accuracy fell in all six, most
#   from Amazon and least from DSLR.
# - The one above, trained on other catalogue pictures of the same kind. It is
#   well aligned with Amazon, which is such pictures, and there alignment
#   falls; with the two other cameras it is less so, and there it rises.
#
# So random labels take alignment away where there is much of it, and add some
# where there is little; probably because fitting *any* labels turns a layer
# towards the main directions of its inputs, which the target's labels share
# in part. The paper's ResNet18 comes from ImageNet and should be well aligned
# with all three domains, which would explain its clean result; this page
# cannot test that without its weights.

# %% [markdown]
# ## Try it
#
# 1. Set `change = {"sizes": (400, 400, 400)}`. Is Amazon still the worst
#    source when no domain is larger than the others?
# 2. Set `change = {"epochs": 10}`. How much of the harm is there before the
#    random labels are learned by heart?
# 3. Set `change = {"before": "mnist"}`: a network that knows digits and no
#    clothes. In which pairs does alignment fall now?

# %% tags=["hide-input"]
study.stamp()
