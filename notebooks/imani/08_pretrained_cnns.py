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
# The paper takes VGG16, ResNet50 and ResNet101 with ImageNet weights, and
# CIFAR-100 in figure 13. Where torchvision's files are out of reach, VGG16's
# convolutions take ResNet101's place in figures 13 and 20, and MobileNetV2
# that of both ResNets in figure 19; without CIFAR-100, CIFAR-10 takes its
# place. Cards and captions name what was taken.
# ```
#
# Are the features of a network trained on a million photographs better
# aligned with labels it never saw than pixels, than its own initialization,
# and than features that people designed? Does a linear model learn faster?

# %% tags=["hide-cell"]
import warnings
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
# $y_i = \pm 1$. Let $\sigma_i$ be the singular values of $\Phi$, $u_i$ its
# left singular vectors. How much of the labels lies along singular values of
# at least $\tau$? And how much is it over all $\tau$, the area of this curve?
#
# $$
# \mathrm{Alignment}(\Phi, y, \tau)
# = \sum_{i\,:\,\sigma_i \ge \tau} \bigl(u_i^\top y\bigr)^2 , \qquad
# \int \mathrm{Alignment}\,d\tau = \sum_i \sigma_i \bigl(u_i^\top y\bigr)^2 .
# $$
#
# Being able to fit the labels is something else. An RBF feature for every
# training image lets a linear model fit any labels exactly. But gradient
# descent needs about $1/\sigma_i^2$ steps for what lies along $u_i$.
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
        criterion="area under the curve, mean over runs: transfer above "
        "original, and original above init",
    ),
    dict(
        id="imani.fig13.features",
        paper="CNN features are considerably better aligned than HOG, SIFT "
        "and RBF features (fig. 13 b).",
        criterion="area under the curve, mean over runs: the CNN's above 1.2 "
        "times that of each of the other three",
    ),
    dict(
        id="imani.fig13.squared",
        paper="With the squared error, higher alignment gives faster "
        "optimization and better test performance (fig. 13 c).",
        criterion="after the last step, mean over runs: training loss and "
        "test error of each of the other three above the CNN's",
    ),
    dict(
        id="imani.fig13.logistic",
        paper="The same with the logistic loss (fig. 13 d).",
        criterion="after the last step, mean over runs: training loss and "
        "test error of each of the other three above the CNN's",
    ),
    dict(
        id="imani.fig13.rbf",
        paper="RBF features fit the labels exactly in closed form, yet "
        "gradient descent on them is extremely slow.",
        criterion="squared error, mean over runs: below 1e-8 in closed form, "
        "so that every label is right, and above 0.1 after the last step",
    ),
    dict(
        id="imani.fig19",
        paper="Training on ImageNet increases alignment for all networks "
        "and on both CIFAR-10 and CIFAR-100 (fig. 19).",
        criterion="area under the curve, mean over runs, in each panel that "
        "was run: transfer above original, and original above init",
    ),
    dict(
        id="imani.fig20",
        paper="On CIFAR-10 too the CNN features are better aligned, learn "
        "faster and predict better than HOG, SIFT and RBF (fig. 20).",
        criterion="mean over runs, each of the other three beside the CNN: "
        "smaller area (a); larger training loss and test error after the "
        "last step (b, c)",
    ),
)
# %% [markdown]
# ## Settings

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"runs": 2}: replaces values in the table below

# %% tags=["hide-input"]
full = dict(networks=("vgg16", "resnet50", "resnet101"), words=2048)
full |= dict(sets=("cifar100", "cifar10"), etas=(0.01, 0.1, 1.0, 10.0))
tiny = full | dict(networks=("random",), sets=("cifar10",), words=32)
s = study.settings(
    profile,
    change,
    smoke=dict(n=120, n_test=100, runs=2, image=32, steps=50) | tiny,
    laptop=dict(n=400, n_test=400, runs=4, image=48, steps=500) | full,
    desktop=dict(n=1000, n_test=1000, runs=5, image=96, steps=1000) | full,
    paper=dict(n=1000, n_test=1000, runs=5, image=224, steps=1000) | full,
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
# Each run has a random pair of classes of its own, as many images of each.


# %%
def pair(name, seed):
    """Training and test images of two classes; no two runs share a pair."""
    every = list(combinations(range(len(data.SETS[name].classes)), 2))
    chosen = np.random.default_rng(0).permutation(every)[seed % len(every)]
    load = partial(data.load, name, classes=chosen.tolist(), seed=seed)
    return load(n=s.n, shrink=True), load("test", n=s.n_test, shrink=True)


tasks = {}
for name in s.sets:
    try:
        tasks[name] = {seed: pair(name, seed) for seed in study.seeds(s.runs)}
    except data.DataError:
        print(f"{name} is out of reach and left out")
shown = next(iter(tasks))  # the set of figure 13
first = next(iter(tasks[shown].values()))
for sample in first:
    study.uses(sample)

# %% tags=["hide-input"]
rows = [torch.cat([*first[0].x[first[0].y == k][:10]], 2) for k in (0, 1)]
fig, ax = plt.subplots(figsize=(7.2, 1.6))
ax.imshow(torch.cat(rows, 1).permute(1, 2, 0))
ax.axis("off")
caption = "Ten images of each class of the first run: {} (above), {} (below)."
study.show(fig, "imani.data_pairs", caption.format(*first[0].classes))

# %% [markdown]
# The networks, each trained on ImageNet and at its own initialization. In
# `smoke` it has random weights in both cases.

# %% tags=["hide-input"]
taken = {n: models.first_available(n, "mobilenet_v2") for n in s.networks}
networks = {net.name: net.fingerprint for net in taken.values()}
# The network of figures 13 and 20: the paper's ResNet101, or VGG16.
main = next(n for n in ("resnet101", "vgg16", "random") if n in networks)
listed = [(n.name, n.about, n.source) for n in taken.values()]
listed = pd.DataFrame(listed, [*taken], ["taken", "what it is", "source"])
study.table(listed.rename_axis("the paper's"), "The networks of this run.")

# %% [markdown]
# ## Run
#
# A cell is one representation of one pair of classes: the `pixels`, which the
# paper calls original; a network's last hidden layer, `init` and, trained,
# `transfer`; HOG with 9 orientations, cells of 8 × 8 = 64 pixels, blocks of 2
# × 2 cells; SIFT as a bag of words; RBF of bandwidth 1, every training image
# a center. Before scaling, a constant feature is appended to every
# representation, as in the authors' demonstration code; rows then have length
# one. Linear models start from zero and, as in the paper, take the step size
# with the lowest final training loss.

# %%
DESCENTS = dict(squared=linear.squared_descent)
DESCENTS["logistic"] = linear.logistic_descent


def one_cell(
    kind, network, weights, train, test, seed, image, words, device, **how
):
    """Alignment of a representation; given a test set, how it is learned."""
    if network:
        net = models.first_available(network)
        assert net.fingerprint == weights, "other weights than the page's"
        net = net.untrained(seed) if kind == "init" else net
        of = partial(features.last_hidden, net, size=image, device=device)
    else:
        of = features.designed(kind, train.x, words=words, seed=seed)
    rows, y = of(train.x).double(), data.signs(train.y).double()
    phi = unit_rows(rows, constant=True)
    spec, n, tau = spectrum(phi, y), len(y), plots.thresholds(len(y))
    found = {
        "alignment": (tau, spec.curve(tau).value / n),
        "area": spec.area() / n,
        "area, no constant": spectrum(unit_rows(rows), y).area() / n,
        "length of a row": rows.norm(dim=1).mean(),
        "closed form": spec.residual / n,
        "σ₁²/n": spec.sigma[0] ** 2 / n,
        "loss at η = 1": gd_loss(spec, 1 / n, how["steps"][-1]) / n,
    }
    if test is not None:
        other = unit_rows(of(test.x).double(), constant=True)
        task = phi, y, other, data.signs(test.y).double()
        for loss, descend in DESCENTS.items():
            fit = descend(*task, **how)
            found[f"{loss} train"] = fit.steps, fit.train
            found[f"{loss} test"] = fit.steps, fit.test
            found[f"{loss}: step size"] = fit.eta
            found[f"{loss}: training loss"] = fit.train[-1]
            found[f"{loss}: test error"] = fit.test_error[-1]
    return [
        dict(quantity=name, x=float(at), value=float(v))
        for name, got in found.items()
        for at, v in (zip(*got) if type(got) is tuple else [(np.nan, got)])
    ]


# %%
HANDMADE = ["HOG", "SIFT", "RBF"]
ways = [("transfer", name, name == main) for name in networks]
ways += [("init", name, False) for name in networks]
ways += [(kind, "", True) for kind in HANDMADE] + [("pixels", "", False)]
cells = [
    dict(kind=kind, network=name, weights=networks.get(name), seed=seed)
    | dict(train=train, test=test if learns else None)
    for kind, name, learns in ways
    for pairs in tasks.values()
    for seed, (train, test) in pairs.items()
]
how = dict(steps=torch.tensor([0, *plots.spread(s.steps, 40)]), eta=s.etas)
how |= dict(image=s.image, words=s.words, device=str(where))
runs = study.sweep(one_cell, cells, **how).rename(columns={"train": "data"})
