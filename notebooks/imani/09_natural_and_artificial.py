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
# # Natural and artificial
#
# *Section 7.3 and appendix D of {cite:t}`imani2022`: figures 14, 15 and 21.*
#
# ```{note}
# The paper goes from the natural and the artificial half of ImageNet to
# CIFAR-10, with ResNet18 and T2T-ViT; so does the `paper` profile. The others
# replace each half by two classes of CIFAR-10, have its remaining classes as
# targets, and train a narrow ResNet18 and the smallest T2T-ViT.
# ```
#
# Is a network that has learned animals better aligned with other animals than
# one that has learned vehicles? This page compares the two on tasks of both
# kinds, before and after fine-tuning.

# %% tags=["hide-cell"]
from itertools import combinations, permutations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from repalign import data, features, models, plots, study, train
from repalign.alignment import spectrum, unit_rows
from repalign.machine import devices
from repalign.models import transfer

study.begin("imani/09_natural_and_artificial")

# %% [markdown]
# ## The idea
#
# Let $y$ be the labels ±1 of $n$ images of two classes, the target task, and
# $\Phi_s$ their representation in a hidden layer of a network trained on the
# source task $s$, each row scaled to length one. With the singular values
# $\sigma_i$ of $\Phi$ and its left singular vectors $u_i$, this page draws
#
# $$
# \mathrm{Alignment}(\Phi_{\text{similar}}, y, \tau)
# - \mathrm{Alignment}(\Phi_{\text{dissimilar}}, y, \tau) ,
# \quad \mathrm{Alignment}(\Phi, y, \tau)
# = \sum_{i :\, \sigma_i \ge \tau} (u_i^\top y)^2 ,
# $$
#
# against the threshold $\tau$. For a task between natural classes the natural
# source is the similar one, for a task between artificial classes the
# artificial one. A positive difference says that a source of the task's own
# kind has put more of the labels along strong directions.
#
# ## A toy whose answer is known
#
# All of a label, 1, lies along one direction. One source has stretched it to
# $\sigma = 2$, the other has left it at $0.5$. The difference of the curves is
# 1 between these thresholds and 0 elsewhere: an area of 1.5.

# %%
stretched, left_alone = torch.diag(torch.tensor([2.0, 1.0])), torch.eye(2) / 2
label = torch.tensor([1.0, 0.0])
areas = [spectrum(phi, label).area() for phi in (stretched, left_alone)]
print(float(areas[0] - areas[1]))

# %% [markdown]
# ## The claims of this page
#
# Thresholds go from 0 to $\sqrt n$, the largest possible singular value, and
# equal stretches of them count equally. So do natural and artificial tasks in
# a run's mean: a source that is better for *everything* cancels out. *A curve
# is left* where the mean alignment with one of the sources is above 1%.

# %% tags=["hide-input"]
study.claims(
    dict(id="imani.fig14.resnet",
         paper="Pre-training on a similar source gives higher alignment in "
         "the last four layers of ResNet18, at all thresholds (fig. 14).",
         criterion="in each of the four layers the mean difference of the "
         "curves over all thresholds is above 0, and the difference is "
         "positive at more than 90% of the thresholds where a curve is left"),
    dict(id="imani.fig14.depth",
         paper="For ResNet18 the difference is larger in layers closer to "
         "the output (fig. 14, left).",
         criterion="mean difference of the curves over all thresholds: the "
         "last layer's minus the first of the four's is above 0"),
    dict(id="imani.fig14.t2t",
         paper="The same for T2T-ViT, over a wide range of thresholds (fig. "
         "14, right).",
         criterion="in each of the four layers the mean difference of the "
         "curves over all thresholds is above 0, and the difference is "
         "positive at more than half of the thresholds where a curve is left"),
    dict(id="imani.fig15.resnet",
         paper="ResNet18 fine-tunes better from the similar source, for both "
         "targets (fig. 15, left).",
         criterion="test accuracy on each of the two targets: the similar "
         "source's minus the dissimilar source's, run by run, is above 0"),
    dict(id="imani.fig15.t2t",
         paper="T2T-ViT fine-tunes better from the similar source, for both "
         "targets (fig. 15, right).",
         criterion="test accuracy on each of the two targets: the similar "
         "source's minus the dissimilar source's, run by run, is above 0"),
    dict(id="imani.fig21",
         paper="The individual curves of most target tasks are positive "
         "(fig. 21).",
         criterion="in each of the four layers of both networks the share of "
         "a run's target tasks whose mean difference over all thresholds is "
         "positive is above one half"),
)  # fmt: skip

# %% [markdown]
# ## Settings

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"runs": 2}: replaces values in the table below


# %% tags=["hide-input"]
def small(width, epochs, tune_epochs):
    """CIFAR-10 alone, a narrow ResNet18, T2T-ViT-7, and their training."""
    sgd, adam = dict(optimizer="momentum"), dict(optimizer="adam")
    first = dict(batch_size=64, epochs=epochs)
    then = dict(batch_size=64, epochs=tune_epochs)
    return dict(
        source="cifar10", image=32,
        resnet=dict(name="preact_resnet18", k=width),
        resnet_source=dict(sgd, lr=0.05, **first),
        resnet_tune=dict(sgd, lr=0.01, **then),
        t2t=dict(name="t2t_vit", depth=7, image_size=32),
        t2t_source=dict(adam, lr=5e-4, **first),
        t2t_tune=dict(adam, lr=2e-4, **then))  # fmt: skip


sgd = dict(optimizer="momentum")
s = study.settings(
    profile, change,
    smoke=dict(pool=2000, n_source=64, n_pair=40, n_tune=32, n_test=40,
               runs=2, **small(2, 1, 1)),
    laptop=dict(pool=20_000, n_source=1200, n_pair=300, n_tune=300,
                n_test=600, runs=3, **small(8, 3, 3)),
    desktop=dict(pool=50_000, n_source=4000, n_pair=500, n_tune=1000,
                 n_test=2000, runs=8, **small(8, 5, 4)),
    paper=dict(pool=50_000, n_source=None, n_pair=2000, n_tune=None,
               n_test=None, runs=3, source="imagenet", image=224,
               resnet=dict(name="resnet18"),
               resnet_source=dict(sgd, lr=0.1, batch_size=1024, epochs=40,
                                  schedule="step30"),
               resnet_tune=dict(sgd, lr=0.01, batch_size=256, epochs=10),
               t2t=dict(name="t2t_vit", depth=14, image_size=224),
               t2t_source=dict(sgd, lr=0.01, batch_size=256, epochs=30),
               t2t_tune=dict(sgd, lr=0.01, batch_size=64, epochs=10)),
)  # fmt: skip
s

# %% [markdown]
# A run draws from `pool` images of CIFAR-10: `n_source` for each source,
# `n_pair` for each binary task, `n_tune` and `n_test` for fine-tuning and its
# test; None is all there are. The paper reports one network of each kind; an
# interval needs several.
#
# ## Data
#
# Each run of the stand-in draws two natural and two artificial classes of
# CIFAR-10 as sources. The other four and two are targets: six natural binary
# tasks and one artificial. In `paper` the sources are ImageNet's 449 natural
# and 551 artificial classes, read from disk batch by batch, and the targets
# all 15 and 6 pairs.

# %% tags=["hide-input"]
HALVES = {
    "natural": ("bird", "cat", "deer", "dog", "frog", "horse"),
    "artificial": ("airplane", "automobile", "ship", "truck"),
}
pool = data.load("cifar10", n=s.pool, dtype=torch.uint8)
held_out = data.load("cifar10", "test", n=s.pool // 5, dtype=torch.uint8)
used, files = [pool, held_out], None
if s.source == "imagenet":
    files = {k: data.image_files("imagenet", classes=k, size=256)
             for k in HALVES}  # fmt: skip
    used.append(data.load("imagenet", n=1000))
for dataset in used:
    study.uses(dataset)
fig, axes = plt.subplots(1, 10, figsize=(7.6, 1.1))
for ax, name in zip(axes, sum(HALVES.values(), ())):
    first = (pool.y == pool.classes.index(name)).nonzero()[0, 0]
    ax.imshow(pool.x[first].permute(1, 2, 0))
    ax.set_title(name, fontsize=7, loc="center")
    ax.axis("off")
study.show(fig, "imani.kinds", "One image of each class of CIFAR-10: the six "
           "natural ones, then the four artificial ones.")  # fmt: skip

# %% [markdown]
# ## Run
#
# One run trains a network on each source, measures the alignment of its last
# four layers with every target task, and fine-tunes it on both targets.
# Before scaling, a constant feature is appended to every representation, as in
# the authors' demonstration code; rows then have length one. The networks keep
# their own initialization. The runs share many of their images; what varies
# most is which classes are the sources, and the training seed.

# %%
NETWORKS = {"resnet": "ResNet18", "t2t": "T2T-ViT"}
LAST_FOUR = {
    "preact_resnet18": ("stage3.1", "stage4.0", "stage4.1", "flatten"),
    "resnet18": ("layer3.1", "layer4.0", "layer4.1", "avgpool"),
}


def compare(phis, y, tau):
    """A row per threshold: alignment by the similar, the other source."""
    label, n = data.signs(y, dtype=torch.float64), len(y)
    at = torch.tensor(tau, dtype=torch.float64) * n**0.5
    phis = [unit_rows(phi.double(), constant=True) for phi in phis]
    curves = [spectrum(phi, label).curve(at).value / n for phi in phis]
    both = torch.stack(curves).tolist()
    names = ("tau", "similar", "dissimilar")
    return [dict(zip(names, row)) for row in zip(tau, *both)]


def one_run(network, seed, o, pool, held_out, files, tau, device):
    """Both sources of one network: training losses, curves, accuracies."""
    rng, nets, rows = np.random.default_rng(seed), {}, []
    targets = {k: rng.permutation(HALVES[k]).tolist() for k in HALVES}
    how = dict(side=o["image"], seed=seed, weight_decay=1e-4)
    for kind in HALVES:
        source = files and files[kind]
        if files is None:
            mine, targets[kind] = targets[kind][:2], targets[kind][2:]
            source = data.subset(pool, o["n_source"], mine, seed)
        count = len(source.classes)
        net = models.build(**o[network], outputs=count, seed=seed).to(device)
        past = train.fit_images(net, source, **how, **o[f"{network}_source"])
        rows.append(dict(measure="loss", source=kind, value=past.loss[-1]))
        nets[kind] = net
    last = LAST_FOUR.get(o[network]["name"]) or models.probed_layers(net)[-4:]
    for kind, other in permutations(HALVES):
        for pair in combinations(targets[kind], 2):
            task = data.subset(pool, o["n_pair"], pair, seed)
            x = train.image_view(task.x, o["image"])
            phis = [features.extract(nets[k], x, last) for k in (kind, other)]
            what = dict(measure="curve", target=kind, task="–".join(pair))
            for layer, name in enumerate(last, -4):
                both = compare([phi[name] for phi in phis], task.y, tau)
                rows += [dict(what, layer=layer, **row) for row in both]
        few = data.subset(pool, o["n_tune"], targets[kind], seed)
        test = data.subset(held_out, o["n_test"], targets[kind], seed)
        what = dict(measure="accuracy", target=kind)
        for source, net in nets.items():
            net = transfer.replace_head(net, len(few.classes), seed=seed)
            net = net.to(device)
            train.fit_images(net, few, **how, **o[f"{network}_tune"])
            right = train.image_accuracy(net, test, side=o["image"])
            rows.append(dict(what, source=source, value=100 * right))
    return rows


# %%
names = ["image", "n_source", "n_pair", "n_tune", "n_test"]
names += [k + end for k in NETWORKS for end in ("", "_source", "_tune")]
runs = study.sweep(
    one_run, study.grid(network=NETWORKS.keys(), seed=study.seeds(s.runs)),
    o={name: getattr(s, name) for name in names}, files=files, pool=pool,
    held_out=held_out, tau=(np.linspace(0, 1, 150) ** 2).tolist(),
    device=str(devices.device(device)),
)  # fmt: skip
