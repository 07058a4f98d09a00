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
# # The Hessian that moves the features
#
# *Appendices B.4 and B.5 of {cite:t}`lou2022`: theorem A, approximation 1,
# figures 5 and 6.*
#
# ```{note}
# MNIST, Fashion-MNIST and CIFAR-10 are the paper's. Only `paper` has KMNIST,
# CIFAR-100, wide VGG19 and ResNet18 (figure 6), wide layers and whole images
# (figure 5).
# ```
#
# Why should training align features of some layers more than those of others?
# By the paper one matrix moves parameters and, early in training, features.

# %% tags=["hide-cell"]
from copy import deepcopy
from functools import partial

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, cross_entropy, softmax
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from repalign import data, models, plots, study, tangent, train
from repalign.machine import devices

study.begin("lou/05_hessian")

# %% [markdown]
# ## The idea
#
# A network has $L$ layers of weights, $\theta$ in all, outputs $f^i_\theta(x)$
# and a loss $\mathcal{L}$ on images $x \in D$. The columns of $\Psi$ are the
# *tangent features* $\Psi_i(x) = \partial f^i_\theta(x)/\partial\theta$, one
# for each image and output. The vector $w$ holds the derivatives of the loss
# by each $f^i_\theta(x)$, and $\tilde Y$ the one-hot labels minus their mean.
# For a vector $v$ like these two, $H_v = \sum_{x, i} v_{x,i}\, \partial^2
# f^i_\theta(x)/\partial\theta^2$. Theorem A: with ReLU and without biases,
#
# $$
# \Psi_i(x) = \frac{1}{L-1} \frac{\partial^2 f^i_\theta(x)}{\partial\theta^2}
# \theta \quad\text{and so}\quad \nabla_\theta \mathcal{L} = \Psi w =
# \frac{1}{L-1} H_w \theta .
# $$
#
# So $H_w$ moves the parameters. To first order a step $\Delta\theta =
# -\eta\Psi w$ changes $\Psi\tilde Y$ by $-\eta H_{\tilde Y}\Psi w$. If $w$ is
# nearly a negative multiple of $\tilde Y$ (*approximation 1*), the two may
# trade places: $-\eta H_w \Psi\tilde Y$. Then $H_w$ moves the features, too.
#
# ## A toy whose answer is known
#
# One unit per layer: $f(x) = \theta_3\theta_2\theta_1 x$. For $x = 1$ and
# $\theta = (3, 2, 1)$, $\Psi = (2, 3, 6)$ and $H\theta = (L - 1)\Psi = 2\Psi$.

# %%
chain = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(3)])
theta, one = torch.tensor([3.0, 2.0, 1.0]), torch.ones(1, 1)
vector_to_parameters(theta, chain.parameters())
toy = dict(theta=theta, Psi=[2.0, 3.0, 6.0])
toy["H theta"] = tangent.hessian_vector(chain, one, one, theta)
study.table(pd.DataFrame(toy), "Three layers of one unit: known Ψ, measured.")

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
same = dict(batch=128, lr=0.003, conv_lr=0.01, dense=256)
nets = ("FFNN mnist", "FFNN fashion_mnist", "FFNN cifar10")
small = dict(same, nets=(*nets, "VGG19 cifar10", "ResNet18 cifar10"))
nets = (*small["nets"], "FFNN kmnist", "VGG19 cifar100", "ResNet18 cifar100")
s = study.settings(
    profile, change,
    smoke=dict(small, batch=32, n=100, seen=60, m=20, looks=2, dense=12,
               conv=4, width=8, pixels=8, epochs=1, top=10, runs=2),
    laptop=dict(small, n=5000, seen=300, m=64, looks=8, conv=4, width=32,
                pixels=8, epochs=8, top=100, runs=3),
    desktop=dict(small, n=60_000, seen=500, m=128, looks=20, conv=8, width=64,
                 pixels=16, epochs=10, top=100, runs=5),
    paper=dict(same, nets=nets, n=60_000, seen=1000, m=256, looks=50, conv=64,
               width=256, pixels=32, epochs=100, top=100, runs=5),
)  # fmt: skip
where = str(devices.device(device))
s

# %% [markdown]
# `nets` are those of figure 6. FFNN has ten layers of `dense` units, ReLU, no
# biases; `conv` counts filters in the first stage of the others. Figure 5 has
# ten layers of `width` units and images of `pixels` × `pixels`. SGD has
# momentum 0.9 and weight decay 5e-4. In the first epoch we look about `looks`
# times, evenly spread, at $w$ of `seen` images; `m` are for eigenvectors. For
# figures 5 and 6 the paper gives no width, rate or batch: ours are of others.
#
# ## Data
#
# Each run draws `n` images (or takes all) in its own order, and weights of its
# own. Pixels are standardized.

# %%
read = partial(data.load, n=4 * s.n, shrink=True, dtype=torch.uint8)
pool = {name: read(name) for name in dict(n.split()[::-1] for n in s.nets)}
for one in pool.values():
    study.uses(one)
cifar, seeds = pool["cifar10"], study.seeds(s.runs)
study.show(plots.strips({"": cifar.x[:9]}), "lou.nine_images", "Nine images.")

# %% [markdown]
# ## Theorem A
#
# For each image and output, $H_i(x)\theta/(L - 1)$ beside the gradient of that
# output; then the gradient of the loss. Ten random networks for each depth.


# %%
def off_theorem(L, seed):
    """Largest deviations from theorem A, over the largest entry."""
    net = models.MLP(5, 3, depth=L - 1, width=6, bias=False, seed=seed)
    net, draw = net.double(), torch.Generator().manual_seed(seed)
    x = torch.randn(4, 5, generator=draw, dtype=torch.float64)
    y, weights = torch.arange(4) % 3, list(net.parameters())
    theta = parameters_to_vector(weights).detach()
    w = (softmax(net(x), 1) - data.one_hot(y, 3)).detach() / len(x)
    pairs = [((net(x) * v).sum(), v) for v in torch.eye(12).view(12, 4, 3)]
    for value, v in [*pairs, (cross_entropy(net(x), y), w)]:
        g = parameters_to_vector(torch.autograd.grad(value, weights))
        told = tangent.hessian_vector(net, x, v, theta) / (L - 1)
        yield float((told - g).abs().max() / g.abs().max().clamp(1e-12))


off = {L: max(max(off_theorem(L, k)) for k in range(10)) for L in range(3, 7)}
study.claim("lou.thmA", holds=max(off.values()) < 1e-8, data=[], size=(),
            seeds=range(10), measured={"by layers": off})  # fmt: skip

# %% [markdown]
# ## Run
#
# For figure 6 $w$ is softmax minus one-hot labels, divided by the number of
# images. Batch norm takes the statistics of the images, as in training.


# %%
def drawn(images, n, seed, device, pixels=None):
    """A run's own images, standardized, and their labels."""
    [own] = data.disjoint(images, min(n, len(images)), seed=seed)
    x = own.x.to(device).float()
    x = x if pixels is None else avg_pool2d(x, x.shape[-1] // pixels)
    return x.sub_(x.mean()).div_(x.std()), own.y.to(device)


def ffnn(x, width, seed, k=10, **kind):
    """Ten layers of weights for images x."""
    how = dict(depth=9, width=width, bias=False, seed=seed, **kind)
    return models.MLP(x[0].numel(), k, **how).to(x.device)


def labels_and_w(net, x, y, k=10):
    """Centered labels, and w of the mean cross-entropy."""
    hot = data.one_hot(y, k)
    with torch.no_grad():
        return hot - hot.mean(), (softmax(net(x), 1) - hot) / len(x)


def correlation(a, b):
    return float(torch.stack([a.flatten(), b.flatten()]).corrcoef()[0, 1])


def first_epoch(images, seed, net, p, how, device):
    """−corr(Ỹ, w) at times of the first epoch."""
    kind, k = net.split()[0], len(images.classes)
    x, y = drawn(images, p["n"], seed, device)
    own, lr = dict(width=p["conv"], seed=seed), p["conv_lr"]
    if kind == "VGG19":
        net = models.VGG("vgg19", outputs=k, batch_norm=True, **own)
    elif kind == "ResNet18":
        net = models.resnet18_v2(k, groups=p["conv"] // 2, **own)
    else:
        net, lr = ffnn(x, p["dense"], seed, k), p["lr"]
    a, b, steps = x[: p["seen"]], y[: p["seen"]], -(-len(x) // p["batch"])
    at = range(0, steps + 1, max(1, steps // p["looks"]))
    how = dict(how, epochs=1, at=(), at_steps=at, lr=lr, seed=seed)
    how["measure"] = lambda net, _: (
        -correlation(*labels_and_w(deepcopy(net).train(), a, b, k))
    )
    found = train.fit(net.to(device), x, y, **how).measured_steps
    return [dict(epoch=i / steps, r=r) for i, r in found.items()]


how = dict(batch_size=s.batch, optimizer="momentum", weight_decay=5e-4)
p = dict(n=s.n, batch=s.batch, lr=s.lr, looks=s.looks)
own = dict(p, seen=s.seen, dense=s.dense, conv=s.conv, conv_lr=s.conv_lr)
grid = [dict(g, images=pool[g["net"].split()[1]])
        for g in study.grid(net=s.nets, seed=seeds)]  # fmt: skip
early = study.sweep(first_epoch, grid, p=own, how=how, device=where)

# %% [markdown]
# Figure 5 (a) looks at single steps; $D$ is the batch of the step. Predictions
# of the change of $\Psi\tilde Y$ are: the *first order* $H_{\tilde Y}\Delta
# \theta$, with the step that was taken; $-H_{\tilde Y}\Psi w$, which takes it
# for a *gradient step*; $-H_w\Psi\tilde Y$, after the *trade* of places. The
# derivation has no momentum, the paper's training has: we do both, and tanh.


# %%
def psi(net, x, v):
    """Ψv as one vector."""
    parts = tangent.pull(net, x, v).values()
    return parameters_to_vector([t for part in parts for t in part.values()])


def single_steps(images, seed, rule, p, device):
    """Change of ΨỸ in steps of the first epoch, beside its predictions."""
    x, y = drawn(images, p["n"], seed, device, p["pixels"])
    kind = dict(activation="tanh", init="lecun") if "tanh" in rule else {}
    net, rows = ffnn(x, p["width"], seed, **kind), []
    how = dict(momentum=0.9 * ("momentum" in rule), weight_decay=5e-4)
    descent = torch.optim.SGD(net.parameters(), p["lr"], **how)
    pairs = list(zip(x.split(p["batch"]), y.split(p["batch"])))
    for step, (a, b) in enumerate(pairs):
        old = deepcopy(net)
        net.zero_grad()
        cross_entropy(net(a), b).backward()
        descent.step()
        if step % max(1, len(pairs) // p["looks"]) == 0:
            both = (parameters_to_vector(n.parameters()) for n in (net, old))
            (Y, w), moved = labels_and_w(old, a, b), torch.sub(*both).detach()
            H, before = partial(tangent.hessian_vector, old, a), psi(old, a, Y)
            grad, trade = -H(Y, psi(old, a, w)), -H(w, before)
            told, after = (H(Y, moved), grad, trade), psi(net, a, Y) - before
            r = [correlation(after, v) for v in told]
            r, now = [*r, correlation(grad, trade)], step / len(pairs)
            rows += [dict(epoch=now, told=k, r=v) for k, v in zip(WITH, r)]
    return rows


RULES = ("SGD, ReLU", "momentum, ReLU", "SGD, tanh")
WITH = ("first order", "and gradient step", "and trade", "trade alone")
p |= dict(width=s.width, pixels=s.pixels)
both = dict(images=cifar, device=where, p=p)
steps = study.sweep(single_steps, study.grid(rule=RULES, seed=seeds), **both)

# %% [markdown]
# Figure 5 (b) trains on and takes eigenvectors of $H_w$ on `m` images at the
# start, half way up the rise of the highest layer, and at the end.


# %%
def leading(images, seed, p, how, device):
    """Eigenvectors of H_w at three times of training."""
    x, y = drawn(images, p["n"], seed, device, p["pixels"])
    net, rows, a, b = ffnn(x, p["width"], seed), [], x[: p["m"]], y[: p["m"]]

    def look(net, epoch):
        now = tangent.label_alignment(net, a, b).values()
        return epoch, torch.stack([*now]), deepcopy(net)

    at = train.log_steps(len(x), p["batch"], p["epochs"], count=40)
    how = dict(how, at=(), at_steps=at, measure=look, epochs=p["epochs"])
    found = train.fit(net, x, y, **how, lr=p["lr"], seed=seed).measured_steps
    epochs, A, nets = zip(*found.values())
    rise = torch.stack(A)[:, A[-1].argmax()]
    half = int((rise >= (rise[0] + rise[-1]) / 2).nonzero()[0])
    for stage, i in (("start", 0), ("half way", half), ("end", -1)):
        w, now = labels_and_w(nets[i], a, b)[1], dict(stage=stage)
        found = tangent.hessian_top(nets[i], a, w, p["top"])
        for layer, share in enumerate(found.energy.values(), start=1):
            many = enumerate(share.tolist(), start=1)
            rows += [dict(now, layer=layer, index=j, share=v) for j, v in many]
        now |= dict(largest=float(found.values[0].abs()), epoch=epochs[i])
        rows.append(dict(now, alignment=float(rise[i])))
    return rows


both["p"] = dict(p, m=s.m, top=s.top, epochs=s.epochs)
hessians = study.sweep(leading, study.grid(seed=seeds), how=how, **both)

# %% [markdown]
# ## Figure 6

# %% tags=["hide-input"]
fig = plots.curves(early, x="epoch", y="r", col="net", wrap=3, height=2.1,
                   sharey=True, labels={"r": "−corr(Ỹ, w)"})  # fmt: skip
for ax in fig.axes:
    ax.axhline(0.9, color="0.5", lw=1, ls="--")
swap = "" if s.conv == 64 else f"{s.conv} filters in the first stage of VGG19 "
swap += "and ResNet18 in place of 64; " * bool(swap) + "group norm in ResNet18"
caption = f"Figure 6. Mean and standard error of {s.runs} runs. {swap}. By "
caption += "the paper, lines stay near 1. Dashed: 0.9."
study.show(fig, "lou.fig6", caption, table=early)
rs = early.groupby(["net", "seed"], sort=False)["r"]
effects = {k: study.above(v, 0.9) for k, v in rs.mean().groupby("net")}
told = {"at the last look": rs.last().groupby("net").mean().to_dict()}
swap += f"; {len(s.nets)} of 8 panels" * (len(s.nets) < 8)
study.claim("lou.fig6", effects=effects, stand_in=swap, measured=told)

# %% [markdown]
# ## Figure 5 (a)

# %% tags=["hide-input"]
labels = {"r": "correlation", "told": ""}
fig = plots.curves(steps, x="epoch", y="r", hue="told", col="rule", height=2.6,
                   sharey=True, labels=labels)  # fmt: skip
for ax in fig.axes:
    ax.axhline(0.9, color="0.5", lw=1, ls="--")
swap = f"ten layers of {s.width} units, images of {s.pixels} pixels"
swap = "" if s.width == 256 else swap + ", in place of 256 and 32"
caption = "Figure 5 (a). Change of ΨỸ in a step, correlated with predictions. "
caption += "By the paper, the third line is near 1. The first tells whether "
caption += "the change is of first order. Dashed: 0.9. " + swap
study.show(fig, "lou.fig5a", caption, table=steps)
means = steps.groupby(["rule", "told", "seed"], sort=False)["r"].mean()
third = means.xs(WITH[2], level="told")
effects = {rule: study.above(third.loc[rule], 0.9) for rule in RULES[:2]}
told = {": ".join(k): v.mean() for k, v in means.groupby(["rule", "told"])}
size = ("n", "width", "pixels", "batch", "lr", "looks", "runs")
rest = dict(stand_in=swap, data=[cifar], size=size)
study.claim("lou.fig5a", effects=effects, measured=told, **rest)

# %% [markdown]
# ## Figure 5 (b)

# %% tags=["hide-input"]
shares = hessians.dropna(subset="index").astype({"index": int, "layer": int})
few = shares[shares["layer"].isin([1, 7, 10])].eval("norm = share ** 0.5")
fig = plots.curves(few, x="index", y="norm", hue="layer", col="stage",
                   height=2.6, sharey=True)  # fmt: skip
caption = f"Figure 5 (b). Norm of the {s.top} leading eigenvectors of H_w in "
caption += "three layers. By the paper, layer 7 is highest half way. " + swap
study.show(fig, "lou.fig5b", caption, table=shares)
wide = shares.pivot_table(index=["stage", "seed"], columns="layer",
                          values="share", sort=False)  # fmt: skip
effects = {f"layer 7, less layer {k}": study.above(
    (wide[7] - wide[k])["half way"]) for k in (1, 10)}  # fmt: skip
told = hessians.dropna(subset="largest").groupby("stage", sort=False)
told = told[["epoch", "alignment", "largest"]].mean().T.to_dict()
rest["size"] = (*rest["size"], "m", "epochs", "top")
study.claim("lou.fig5b", effects=effects, measured=told, **rest)
study.table(wide.groupby("stage", sort=False).mean(), "Share by layer.")

# %% [markdown]
# ## What differs from the paper, and why
#
# - Figure 5 (a) has a matrix $U$; that of appendix D.3 is of another size.
# - ReLU has kinks. When a unit switches on or off for an image, that image's
#   features jump, and no Hessian sees it. Tanh has no kinks.
# - Layer 1 has more inputs than others. VGG19 has batch norm, ResNet18 group.
#
# ## Try it
#
# 1. Set `change = {"lr": 0.0001}`. Do smaller steps help figure 5 (a)?
# 2. Set `change = {"pixels": 4}`: 48 inputs. What is left of layer 1?

# %% tags=["hide-input"]
study.stamp()
