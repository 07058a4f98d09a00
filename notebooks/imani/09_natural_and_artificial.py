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
# CIFAR-10, with ResNet18 and T2T-ViT; so does `paper`. Other profiles replace
# each half by two classes of CIFAR-10, have its remaining classes as targets,
# and train a narrow ResNet18 and a narrow T2T-ViT-7.
# ```
#
# Is a network that has learned animals better aligned with other animals than
# one that has learned vehicles, and does it learn them better?

# %% tags=["hide-cell"]
from itertools import combinations, permutations, product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from repalign import data, features, models, plots, study
from repalign.alignment import pair_spectra, spectrum, unit_rows
from repalign.machine import devices
from repalign.papers import imani

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
# A(\Phi_{\text{similar}}, y, \tau) - A(\Phi_{\text{dissimilar}}, y, \tau) ,
# \quad A(\Phi, y, \tau) = \sum_{i :\, \sigma_i \ge \tau} (u_i^\top y)^2 ,
# $$
#
# where $A$ is the alignment at threshold $\tau$. For a task between natural
# classes the natural source is the similar one, for a task between artificial
# classes the artificial one. Above zero, a source of the task's own kind has
# put more of the labels along strong directions.
#
# ## A toy whose answer is known
#
# All of a label lies along one direction. One source has stretched it to
# $\sigma = 2$, the other has left it at $0.5$: areas of 2 and 0.5.

# %%
stretched, left_alone = torch.diag(torch.tensor([2.0, 1.0])), torch.eye(2) / 2
label = torch.tensor([1.0, 0.0])
areas = [float(spectrum(a, label).area()) for a in (stretched, left_alone)]
study.table(pd.DataFrame({"area": areas}, ["stretched", "left alone"]))

# %% [markdown]
# ## The claims of this page
#
# Thresholds go from 0 to $\sqrt n$, the largest possible singular value, and
# equal stretches of them count equally. In the first row of figure 14, natural
# and artificial tasks count equally, so that a source that is better for
# *everything* cancels out; in the second all single tasks, as in the paper.
# *A curve is left* where the mean alignment with a source is above 1%.

# %% tags=["hide-input"]
study.claims()

# %% [markdown]
# ## Settings

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"runs": 2}: replaces values in the table below


# %% tags=["hide-input"]
def small(widths, epochs, tune):
    """CIFAR-10 alone; a narrow ResNet18 and T2T-ViT-7, and their training."""
    one, two, then = (dict(batch_size=64, epochs=e) for e in (*epochs, tune))
    return dict(
        source="cifar10", image=dict(resnet=32, t2t=64),
        resnet=dict(name="preact_resnet18", k=widths[0]),
        resnet_source=dict(optimizer="momentum", lr=0.05, **one),
        resnet_tune=dict(optimizer="momentum", lr=0.01, **then),
        t2t=dict(name="t2t_vit", depth=7, width=widths[1], image_size=64),
        t2t_source=dict(optimizer="adam", lr=5e-4, **two),
        t2t_tune=dict(optimizer="adam", lr=2e-4, **then))  # fmt: skip


sgd = dict(optimizer="momentum")
s = study.settings(
    profile, change,
    smoke=dict(pool=2000, n_source=64, n_pair=40, n_tune=32, n_test=40,
               runs=1, **small((2, 64), (1, 1), 1)),
    laptop=dict(pool=20_000, n_source=400, n_pair=200, n_tune=100,
                n_test=200, runs=2, **small((8, 128), (5, 3), 3)),
    desktop=dict(pool=50_000, n_source=3000, n_pair=500, n_tune=400,
                 n_test=1000, runs=15, **small((8, 128), (8, 8), 4)),
    paper=dict(pool=50_000, n_source=None, n_pair=2000, n_tune=None,
               n_test=None, runs=3, source="imagenet",
               image=dict(resnet=224, t2t=224), resnet=dict(name="resnet18"),
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
# test; None is all. The paper reports a single run; an interval needs more.
#
# ## Data
#
# The sources of the stand-in are two natural and two artificial classes of
# CIFAR-10. The other four and two are targets: six natural binary tasks and
# one artificial. Runs take the 15 natural and the 6 artificial splits in turn.
# In `paper` the sources are ImageNet's 449 natural and 551 artificial classes,
# read from disk batch by batch, and the targets all 15 and 6 pairs.

# %% tags=["hide-input"]
HALVES = dict(
    natural=("bird", "cat", "deer", "dog", "frog", "horse"),
    artificial=("airplane", "automobile", "ship", "truck"))  # fmt: skip
pool = data.load("cifar10", n=s.pool, dtype=torch.uint8)
held_out = data.load("cifar10", "test", n=s.pool // 5, dtype=torch.uint8)
used, files = [pool, held_out], None
if s.source == "imagenet":
    files = {k: data.image_files("imagenet", classes=k, size=256)
             for k in HALVES}  # fmt: skip
    used.append(data.load("imagenet", n=100))
for dataset in used:
    study.uses(dataset)
first = {k: pool.y.tolist().index(i) for i, k in enumerate(pool.classes)}
shown = {kind: pool.x[[*map(first.get, HALVES[kind])]] for kind in HALVES}
study.show(plots.strips(shown), "imani.kinds", "An image of each class: "
           f"{'; '.join(map(', '.join, HALVES.values()))}.")  # fmt: skip

# %% [markdown]
# ## Run
#
# One run trains a network on each source, measures the alignment of its last
# four layers with every target task, and fine-tunes it on both targets. As in
# the authors' demonstration code, representations get a constant feature
# before rows are scaled. Runs share images; source classes and seeds differ.

# %%
NETWORKS = {"resnet": "ResNet18", "t2t": "T2T-ViT"}
LAST_FOUR = {
    "preact_resnet18": ("stage3.1", "stage4.0", "stage4.1", "flatten"),
    "resnet18": ("layer3.1", "layer4.0", "layer4.1", "avgpool"),
}


def one_run(network, seed, o, pool, held_out, files, tau, device):
    """Both sources of one network: training losses, curves, accuracies."""
    nets, targets, rows, side = {}, dict(HALVES), [], o["image"][network]
    at = torch.tensor(tau, dtype=torch.float64) * o["n_pair"] ** 0.5
    how = dict(side=side, seed=seed, weight_decay=1e-4)
    for kind, classes in HALVES.items():
        source = files and files[kind]
        if files is None:
            splits = list(combinations(classes, 2))
            mine = splits[7 * seed % len(splits)]  # 7: the next differs more
            targets[kind] = [name for name in classes if name not in mine]
            source = data.subset(pool, o["n_source"], mine, seed)
        count = len(source.classes)
        net = models.build(**o[network], outputs=count, seed=seed).to(device)
        past = imani.fit_images(net, source, **how, **o[f"{network}_source"])
        rows.append(dict(measure="loss", source=kind, value=past.loss[-1]))
        nets[kind] = net
    last = LAST_FOUR.get(o[network]["name"]) or models.probed_layers(net)[-4:]
    for kind, other in permutations(HALVES):
        names = targets[kind]
        seen = data.subset(pool, o["n_pair"] // 2 * len(names), names, seed)
        x = imani.image_view(seen.x, side)
        phis = [features.extract(nets[k], x, last) for k in (kind, other)]
        for layer, name in enumerate(last, -4):
            units = [unit_rows(p[name].double(), constant=True) for p in phis]
            tasks = [pair_spectra(unit @ unit.T, seen.y) for unit in units]
            for pair in tasks[0]:
                both = [t[pair].curve(at).value / o["n_pair"] for t in tasks]
                one, two = torch.stack(both).tolist()
                what = dict(layer=layer, task="–".join(names[c] for c in pair))
                rows.append(dict(what, measure="curve", target=kind, tau=tau,
                                 similar=one, dissimilar=two))  # fmt: skip
        few = data.subset(pool, o["n_tune"], names, seed)
        test = data.subset(held_out, o["n_test"], names, seed)
        what = dict(measure="accuracy", target=kind)
        for source, net in nets.items():
            net = models.replace_head(net, len(names), seed=seed)
            imani.fit_images(net, few, **how, **o[f"{network}_tune"])
            right = imani.image_accuracy(net, test, side=side)
            rows.append(dict(what, source=source, value=100 * right))
    return rows


taus = np.linspace(0, 1, 150) ** 2  # finer where curves fall
names = ["image", "n_source", "n_pair", "n_tune", "n_test"]
names += [k + end for k in NETWORKS for end in ("", "_source", "_tune")]
runs = study.sweep(
    one_run, study.grid(network=NETWORKS.keys(), seed=study.seeds(s.runs)),
    o={name: getattr(s, name) for name in names}, files=files, pool=pool,
    held_out=held_out, tau=taus.tolist(), device=str(devices.device(device)),
)  # fmt: skip

# %% [markdown]
# ## Figure 14
#
# The difference of the curves, averaged over the target tasks: a line for each
# of the last four layers; the darkest, −1, is next to the output.

# %% tags=["hide-input"]
WEIGHTS = {"kind": "", "task": ".tasks"}  # what counts equally: ends of ids
axis = ["tau", "similar", "dissimilar"]
curves = runs[runs.measure == "curve"].explode(axis).reset_index(drop=True)
curves = curves.astype({"layer": int} | dict.fromkeys(axis, float))
curves["difference"] = curves.similar - curves.dissimilar
curves["width"] = np.gradient(taus)[np.searchsorted(taus, curves.tau)]
curves["part"] = curves.difference * curves.width
by, of = ["weight", "network", "seed", "layer"], ["difference", "part"]
at, of = [*by[1:], "tau", "width"], axis[1:] + of
mean = {"kind": curves.groupby([*at, "target"])[of].mean(), "task": curves}
mean = {weight: part.groupby(at)[of].mean() for weight, part in mean.items()}
mean = pd.concat(mean, names=["weight"]).reset_index()
stand_in = "" if files else (
    "two classes of CIFAR-10 in place of each half of ImageNet; a narrow "
    "ResNet18 at 32 pixels, a narrow T2T-ViT-7 at 64")  # fmt: skip
note = f" ({stand_in})" if stand_in else ""
words = dict(tau="threshold $\\tau / \\sqrt{n}$", difference="similar − other")
shades = plt.cycler(color=("#9ccbe8", "#4fa3d8", "#0b7fc7", "#084f7d"))
with plt.rc_context({"axes.prop_cycle": shades}):
    fig = plots.curves(mean, x="tau", y="difference", hue="layer", height=2.7,
                       col="network", row="weight", labels=words)  # fmt: skip
reach = curves[curves.difference.abs() > 0.03].groupby("network").tau.max()
for ax, (weight, network) in zip(fig.axes, product(WEIGHTS, NETWORKS)):
    ax.axhline(0, color=study.PALETTE[5], lw=0.8)
    title = f"{NETWORKS[network]}, {weight}s count alike"
    ax.set(title=title, xlim=(0, reach.get(network, 1)))
study.show(fig, "imani.fig14", f"Figure 14{note}. Above zero, more of the "
           "labels lies above the threshold when the source is similar. Top: "
           "natural and artificial tasks count alike; bottom: all tasks do.",
           table=mean[[*by, "tau", "difference"]])  # fmt: skip

# %% tags=["hide-input"]
left = mean[(mean.tau > 0) & (mean[axis[1:]].max(axis=1) > 0.01)]
ahead = left[left.difference > 0].groupby(by).width.sum()
ahead = (ahead / left.groupby(by).width.sum()).fillna(0).unstack()
gain = mean.groupby(by).part.sum().unstack()
about = dict(stand_in=stand_in, size=("n_source", "n_pair", "n_tune", "runs"))
for weight, end in WEIGHTS.items():
    for network, most in (("resnet", 0.9), ("t2t", 0.5)):
        g, h = gain.loc[weight, network], ahead.loc[weight, network]
        effects = {f"layer {k}: mean difference": study.above(g[k]) for k in g}
        effects |= {f"layer {k}: share of thresholds": study.above(h[k], most)
                    for k in h}  # fmt: skip
        study.claim(f"imani.fig14.{network}{end}", effects=effects, **about)
    g = gain.loc[weight, "resnet"]
    effects = {"last minus first": study.above(g[-1] - g[-4])}
    study.claim(f"imani.fig14.depth{end}", effects=effects, **about)

# %% [markdown]
# ## Figure 15
# Test accuracy after fine-tuning, in percent, and the paper's in brackets.

# %% tags=["hide-input"]
tuned = runs[runs.measure == "accuracy"].dropna(axis=1)
columns = [f"{n}\n{kind}" for n in NETWORKS.values() for kind in HALVES]
paper = [[94.55, 95.70, 84.33, 91.00], [90.49, 97.14, 83.10, 92.80]]
paper = pd.DataFrame(paper, list(HALVES), columns)
column = tuned.network.map(NETWORKS) + "\n" + tuned.target
here = tuned.groupby(["source", column]).value.mean().unstack()
here = here.loc[paper.index, paper.columns]
fig = plots.matrix(here, paper=paper, label="accuracy (%)", size=(6.4, 2.4))
fig.axes[0].set(xlabel="target", ylabel="source")
study.show(fig, "imani.fig15", f"Figure 15{note}. If the claims hold, source "
           "and target of a column's best agree.", table=tuned)  # fmt: skip

# %% tags=["hide-input"]
each = tuned.groupby(["network", "target", "source", "seed"]).value.first()
both = {}
for network, name in NETWORKS.items():
    effects, leads = {}, []
    for kind, other in permutations(HALVES):
        leads.append(each[network, kind, kind] - each[network, kind, other])
        theirs = paper.loc[[other, kind], f"{name}\n{kind}"].diff()[kind]
        effects[f"{kind} target: {kind} source ahead"] = study.above(
            leads[-1], paper=round(theirs, 2))  # fmt: skip
    study.claim(f"imani.fig15.{network}", effects=effects, **about)
    both[f"{name}: similar source ahead"] = study.above(sum(leads) / 2)
study.claim("imani.fig15.both", effects=both, **about)

# %% [markdown]
# ## Figure 21
#
# The same for every target task, averaged over the runs that have it.

# %% tags=["hide-input"]
fig = plots.curves(mean[mean.weight == "task"], x="tau", y="difference",
                   row="network", col="layer", height=2, sharey="row",
                   labels=words)  # fmt: skip
for ax, (name, part) in zip(fig.axes, curves.groupby(["network", "layer"])):
    single = part.pivot_table("difference", "tau", ["target", "task"])[::2]
    for i, kind in enumerate(single.columns.levels[0]):
        ax.plot(single[kind], f"C{2 - i}", lw=0.6, zorder=1.2 - i / 9)
    title = f"{NETWORKS[name[0]]}, layer {name[1]}"
    ax.set(title=title, xlim=(0, reach.get(name[0], 1)))
task = curves.groupby([*by[1:], "target", "task"]).part.sum()
study.show(fig, "imani.fig21", f"Figure 21{note}. Orange: natural tasks; "
           "green: artificial tasks; blue: their mean, the bottom of figure "
           "14.", table=task.reset_index())  # fmt: skip
won = (task > 0).groupby(["network", "target"]).mean().unstack()
loss = runs[runs.measure == "loss"].pivot_table("value", "network", "source")
parts = pd.concat({"training loss": loss, "tasks with a gain": won}, axis=1)
study.table(parts.rename(NETWORKS), "Last loss on sources, share of gains.")

# %% tags=["hide-input"]
share = (task > 0).groupby(by[1:]).mean().unstack()
effects = {f"{name}, layer {k}: share of tasks": study.above(values, 0.5)
           for network, name in NETWORKS.items()
           for k, values in share.loc[network].items()}  # fmt: skip
gains = {"share of gains": won.rename(NETWORKS).T.to_dict()}
study.claim("imani.fig21", effects=effects, measured=gains, **about)

# %% [markdown]
# ## What differs from the paper, and why
#
# - Outside `paper`: two classes of CIFAR-10 teach less than ImageNet. Networks
#   are narrow; T2T-ViT, trained by Adam, sees 16 tokens (in `paper` 196).
# - The last four layers are the last three residual blocks and their mean over
#   positions (ResNet18), or the last four blocks: the paper does not say.
# - The paper's mean is over 15 natural and 6 artificial tasks, that of a run
#   here over 6 and 1, which share images. Thresholds are divided by $\sqrt n$.
#
# ## Try it
#
# 1. Set `change = {"n_source": 100}`. How much does the source still matter?
# 2. In `one_run`, give the natural source four classes. What changes?
# 3. In `LAST_FOUR`, name earlier layers. Is the difference still there?

# %% tags=["hide-input"]
study.stamp()
