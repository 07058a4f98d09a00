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
# # Pre-trained CNNs
#
# *Section 7.2 and appendix C of {cite:t}`imani2022`: figures 13, 19 and 20.*
#
# ```{note}
# The paper takes VGG16, ResNet50 and ResNet101 with ImageNet weights. Where
# torchvision's files are out of reach, a package registry has VGG16's
# convolutions (real ImageNet weights, no dense layers) and MobileNetV2: the
# first takes ResNet101's place in figures 13 and 20, the second that of both
# residual networks in figure 19. Where CIFAR-100 is out of reach, figure 13
# is drawn from CIFAR-10. Cards and captions name what was taken. The `smoke`
# profile has no trained weights at all.
# ```
#
# A network trained on a million photographs turns other photographs into
# features. Are these better aligned with labels that the network never saw
# than pixels, than its own initialization, and than features that people
# designed? And does a linear model then learn faster?

# %% tags=["hide-cell"]
import warnings
from dataclasses import replace
from functools import partial
from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from repalign import data, features, linear, models, plots, study
from repalign.alignment import gd_loss, spectrum, unit_rows
from repalign.machine import devices

# The page says below which weights it has taken.
warnings.filterwarnings("ignore", message=".*weights is not available")
study.begin("imani/08_pretrained_cnns")

# %% [markdown]
# ## The idea
#
# Take the last hidden layer of a network as $\Phi$, a row for each of $n$
# images of a task that the network was not trained on, with labels
# $y_i = \pm 1$. Let $\sigma_i$ be the singular values of $\Phi$ and $u_i$ its
# left singular vectors. How much of the labels lies along large singular
# values, those of at least $\tau$?
#
# $$
# \mathrm{Alignment}(\Phi, y, \tau)
# = \sum_{i\,:\,\sigma_i \ge \tau} \bigl(u_i^\top y\bigr)^2 .
# $$
#
# The area under this curve is one number for a representation, and a plain
# sum: $\int \mathrm{Alignment}\,d\tau = \sum_i \sigma_i (u_i^\top y)^2$.
#
# Being able to fit the labels is something else. An RBF feature for every
# training image lets a linear model fit any labels exactly. But labels along
# tiny singular values are out of reach of gradient descent in any reasonable
# number of steps: it needs about $1/\sigma_i^2$ of them for direction $i$.
#
# ## A toy whose answer is known
#
# Two features, $\sigma = 3$ and $1$, and a label with power 16 along the first
# and 4 along the second. The curve is 20 up to $\tau = 1$, then 16 up to $\tau
# = 3$: an area of $20 \cdot 1 + 16 \cdot 2 = 52 = 3 \cdot 16 + 1 \cdot 4$.

# %%
toy = spectrum(torch.diag(torch.tensor([3.0, 1.0])), torch.tensor([4.0, 2.0]))
float(toy.area())

# %% [markdown]
# ## The claims of this page

# %% tags=["hide-input"]
study.claims(
    dict(
        id="imani.fig13.transfer",
        paper="Training on ImageNet increases alignment with CIFAR-100 "
        "tasks; at initialization it is extremely poor (fig. 13 a).",
        criterion="area under the curve: transfer above original, and "
        "original above init; differences run by run, their mean over runs "
        "by its 95% interval",
    ),
    dict(
        id="imani.fig13.features",
        paper="CNN features are considerably better aligned than HOG, SIFT "
        "and RBF features (fig. 13 b).",
        criterion="area under the curve: the CNN's over that of each of the "
        "other three above 1.2; ratios run by run, their mean over runs by "
        "its 95% interval",
    ),
    dict(
        id="imani.fig13.squared",
        paper="With the squared error, higher alignment gives faster "
        "optimization and better test performance (fig. 13 c).",
        criterion="after the last step: training loss and test error of each "
        "of the other three above the CNN's; differences run by run, their "
        "mean over runs by its 95% interval",
    ),
    dict(
        id="imani.fig13.logistic",
        paper="The same with the logistic loss (fig. 13 d).",
        criterion="after the last step: training loss and test error of each "
        "of the other three above the CNN's; differences run by run, their "
        "mean over runs by its 95% interval",
    ),
    dict(
        id="imani.fig13.rbf",
        paper="RBF features fit the labels exactly in closed form, yet "
        "gradient descent on them is extremely slow.",
        criterion="mean over runs by its 95% interval: the squared error in "
        "closed form below 1e-8 (one wrong label would make it 1/n or more, "
        "so every label is then right), and that of descent after the last "
        "step above 0.1",
    ),
    dict(
        id="imani.fig19",
        paper="Training on ImageNet increases alignment for all networks "
        "and on both CIFAR-10 and CIFAR-100 (fig. 19).",
        criterion="area under the curve, in each panel that was run (a "
        "network and a data set): transfer above original, and original "
        "above init; differences run by run, their mean over runs by its "
        "95% interval",
    ),
    dict(
        id="imani.fig20",
        paper="On CIFAR-10 too the CNN features are better aligned, learn "
        "faster and predict better than HOG, SIFT and RBF (fig. 20).",
        criterion="each of the other three beside the CNN: (a) area under "
        "the curve lower, (b) squared error and (c) logistic loss: training "
        "loss and test error after the last step higher; differences run by "
        "run, their mean over runs by its 95% interval",
    ),
)
# %% [markdown]
# ## Settings

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"runs": 2}: replaces values in the table below

# %% tags=["hide-input"]
both = dict(networks=("vgg16", "resnet50", "resnet101"), words=2048)
both |= dict(sets=("cifar100", "cifar10"), etas=(0.01, 0.1, 1.0, 10.0))
small = both | dict(networks=("tiny",), sets=("cifar10",), words=32)
s = study.settings(
    profile,
    change,
    smoke=dict(n=120, n_test=100, runs=2, image=32, steps=50) | small,
    laptop=dict(n=400, n_test=400, runs=4, image=48, steps=500) | both,
    desktop=dict(n=1000, n_test=1000, runs=5, image=96, steps=1000) | both,
    paper=dict(n=1000, n_test=1000, runs=5, image=224, steps=1000) | both,
)
where = devices.device(device)
s

# %% [markdown]
# `image` is the side in pixels to which images are enlarged for the networks,
# `words` the size of the SIFT dictionary. The paper gives neither `image`,
# `n_test`, `steps` nor `etas`, the step sizes, for this section: its column
# has the networks' own input size, and the step sizes of its section 3.
#
# ## Data
#
# Each run has a pair of random classes of its own, with as many images of
# each. A set that is out of reach is left out.


# %%
def pair(name, seed):
    """Training and test images of two classes; no two runs share a pair."""
    every = list(combinations(range(len(data.SETS[name].classes)), 2))
    chosen = np.random.default_rng(0).permutation(every)[seed % len(every)]
    load = partial(data.load, name, classes=chosen.tolist(), seed=seed)
    return load(n=s.n, shrink=True), load("test", n=s.n_test, shrink=True)


seeds, tasks, missing = study.seeds(s.runs), {}, []
for name in s.sets:
    try:
        tasks[name] = {seed: pair(name, seed) for seed in seeds}
    except data.DataError:
        missing.append(name)
        continue
    for sample in tasks[name][seeds[0]]:
        study.uses(sample)
shown = next(iter(tasks))  # the set of figure 13

# %% tags=["hide-input"]
sample = tasks[shown][seeds[0]][0]
fig, axes = plt.subplots(2, 10, figsize=(7.2, 1.6))
for row, label in zip(axes, (0, 1)):
    for ax, image in zip(row, sample.x[sample.y == label]):
        ax.imshow(image.permute(1, 2, 0))
        ax.axis("off")
classes = " (above) and ".join(sample.classes)
study.show(
    fig,
    "imani.data_pairs",
    f"Ten images of each class of the first run: {classes} (below).",
)

# %% [markdown]
# ## Networks
#
# Each keeps the initialization of its own architecture; where the paper's
# trained weights are out of reach, the next best are taken.


# %%
def network(name):
    """A trained network by its name; in smoke, one with random weights."""
    if name != "tiny":
        return models.pretrained(name)
    build = partial(models.build, "simple_cnn", convs=2, filters=8)
    scale = models.Preprocess(32, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    about = "tiny", "two convolutions, random weights", "none", "tiny"
    return models.Pretrained(build(seed=1).eval(), scale, *about, True, build)


def obtain(name):
    """The network called ``name``, or MobileNetV2 in its place."""
    try:
        return network(name)
    except data.DataError:
        return network("mobilenet_v2")


taken = {name: obtain(name) for name in s.networks}  # by the paper's name
networks = {net.name: net for net in taken.values()}
# The network of figures 13 and 20: the paper's ResNet101, or VGG16.
main = next(n for n in ("resnet101", "vgg16", "tiny") if n in networks)
rows = [(n.name, n.about, n.source) for n in taken.values()]
listed = pd.DataFrame(rows, taken, columns=["taken", "what it is", "source"])
study.table(listed.rename_axis("the paper's"), "The networks of this run.")

# %% [markdown]
# ## Run
#
# A cell of the run is one representation of one pair of classes. `original`
# are the pixels; `init` and `transfer` a network's last hidden layer before
# and after training on ImageNet; HOG has 9 orientations, cells of 8 × 8 = 64
# pixels and blocks of 2 × 2 cells; SIFT is a bag of words; RBF has bandwidth
# 1 and every training image as a center. Before scaling, a constant feature
# is appended to every representation, as in the authors' demonstration code;
# rows then have length one.

# %%
HIDDEN = {"vgg16": "classifier.4", "mobilenet_v2": "classifier.0"}
HIDDEN |= {"resnet50": "avgpool", "resnet101": "avgpool", "tiny": "dense_relu"}
DESCENTS = {
    "squared": linear.squared_descent,
    "logistic": linear.logistic_descent,
}


def extractor(kind, x, name, seed, image, words, device):
    """A function from images to features; ``x`` are the training images."""
    if kind == "original":
        return partial(torch.flatten, start_dim=1)
    if kind == "HOG":
        return features.hog
    if kind == "RBF":
        return partial(features.rbf, centers=x)
    if kind == "SIFT":
        found = features.sift_vocabulary(x, words, seed=seed)
        return partial(features.sift_bag_of_words, vocabulary=found)
    net = network(name)
    net = net.untrained(seed) if kind == "init" else net
    layer = HIDDEN[net.name] if net.complete else "output"
    module, scale = net.module.to(device), replace(net.preprocess, size=image)

    def last_hidden(x):
        batches = (scale(part.float()) for part in x.split(100))
        return features.extract(module, batches, layer)[layer]

    return last_hidden


def one_cell(
    kind, train, test, network, weights, seed, steps, etas, **options
):
    """Alignment of a representation; given a test set, how it is learned.

    ``weights`` are not used: other weights are another cell of the store.
    """
    x, y = train.x.double(), data.signs(train.y).double()
    extract = extractor(kind, x, network, seed, **options)
    rows = extract(x).double()
    phi = unit_rows(rows, constant=True)
    spec, n, tau = spectrum(phi, y), len(y), plots.thresholds(len(y))
    curves = {"alignment": (tau, spec.curve(tau).value / n)}
    numbers = {
        "area": spec.area() / n,
        "area, no constant": spectrum(unit_rows(rows), y).area() / n,
        "length of a row": rows.norm(dim=1).mean(),
        "out of reach": spec.residual / n,
        "strongest direction": spec.sigma[0] ** 2 / n,
        "training loss, η = 1": gd_loss(spec, 1 / n, steps[-1]) / n,
    }
    if test is not None:
        test_phi = unit_rows(extract(test.x.double()).double(), constant=True)
        given = phi, y, test_phi, data.signs(test.y).double()
        for loss, descend in DESCENTS.items():
            fit = descend(*given, eta=etas, steps=torch.tensor(steps))
            numbers[f"{loss}: step size"] = fit.eta
            for part in ("train", "test"):
                curves[f"{loss} {part}"] = steps, getattr(fit, part)
            numbers[f"{loss}: training loss"] = fit.train[-1]
            numbers[f"{loss}: test error"] = fit.test_error[-1]
    if kind == "RBF":
        exact = phi @ torch.linalg.lstsq(phi, y[:, None]).solution[:, 0]
        numbers["closed form"] = (exact - y).square().mean()
        numbers["closed form, wrong labels"] = (exact.sign() != y).sum()
    curves |= {name: ([np.nan], [v]) for name, v in numbers.items()}
    return [
        dict(quantity=name, x=float(at), value=float(value))
        for name, curve in curves.items()
        for at, value in zip(*curve)
    ]


# %%
HANDMADE = ["HOG", "SIFT", "RBF"]
ways = [("transfer", name, name == main) for name in networks]
ways += [("init", name, False) for name in networks]
ways += [(kind, "", True) for kind in HANDMADE] + [("original", "", False)]
marks = {"": ""} | {name: net.fingerprint for name, net in networks.items()}
cells = [
    dict(kind=kind, network=name, weights=marks[name], seed=seed)
    | dict(train=train, test=test if learns else None)
    for kind, name, learns in ways
    for pairs in tasks.values()
    for seed, (train, test) in pairs.items()
]
steps = [0, *plots.spread(s.steps, 40).tolist()]
fixed = dict(image=s.image, words=s.words, etas=s.etas, device=str(where))
runs = study.sweep(one_cell, cells, steps=steps, **fixed)
runs = runs.rename(columns={"train": "data"})
