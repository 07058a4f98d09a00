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
# # Rank, correlation and Fisher information
#
# *Appendix G of {cite:t}`lou2022`: figures 19 to 23.*
#
# ```{note}
# Images are CIFAR-10, as in the paper. Outside of `paper` a narrow VGG19 with
# batch norm, on few images of 16 pixels, stands in for the paper's VGG19.
# ```
#
# A layer's tangent kernel can be aligned with the labels only if few of its
# directions are strong, and if the labels lie along those. The paper takes
# alignment apart into these two, in networks that generalize well, less well
# and badly, and asks the same of the Fisher information.

# %% tags=["hide-cell"]
import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch import nn
from torch.nn.functional import avg_pool2d

from repalign import data, kernels, models, plots, study, tangent, train
from repalign.machine import devices

study.begin("lou/08_rank_and_fisher")

# %% [markdown]
# ## The idea
#
# A network $f$ has $o$ outputs, one for each class. Its *tangent features* in
# layer $l$ are $\Psi_l$, the derivatives of the outputs with respect to the
# weights of the layer, with a column for each of $n$ images and each output.
# Let $\tilde K_l$ be the *tangent kernel* $\Psi_l^\top \Psi_l$, an $on \times
# on$ matrix, centered. It has eigenvalues $\lambda_1 \ge \lambda_2 \ge \dots$
# and eigenvectors $u_1, u_2, \dots$ Let $\tilde Y$ be all one-hot labels in
# one vector of length $on$, centered and scaled to length one. The alignment
# of layer $l$ is
#
# $$
# A_l = \frac{\tilde Y^\top \tilde K_l \tilde Y}{\lVert\tilde K_l\rVert_F}
# = \frac{1}{\sqrt{R_l}}
# \sum_i \frac{\lambda_i}{\lambda_1} \langle u_i, \tilde Y\rangle^2,
# \qquad R_l = \sum_i \lambda_i^2 / \lambda_1^2 .
# $$
#
# $R_l$ is the *stable rank*: how many directions are as strong as the first.
# The sum is the *correlation term*: near 1 if the labels lie along directions
# that are about as strong as the first.
#
# The *Fisher information* weighs outputs by how much they change the network's
# probabilities $p$: it is $\Psi_l S \Psi_l^\top$ with $S = \operatorname{diag}
# (p) - pp^\top$ for each image. Its nonzero eigenvalues are those of $S^{1/2}
# \Psi_l^\top \Psi_l S^{1/2}$, which is $on \times on$, too, and has a stable
# rank and a correlation term. As in the paper, it is not centered.
#
# ## A toy whose answer is known
#
# One linear layer, one output, four inputs $(y, a b)$ with labels $y = (1, 1,
# -1, -1)$ and a feature $b = (1, -1, 1, -1)$ at right angles to them. The
# kernel has two eigenvalues: 4 along the labels, $4a^2$ along $b$. For $a \le
# 1$ the correlation term is 1 and the stable rank $1 + a^4$; for $a > 1$ they
# are $1/a^2$ and $1 + 1/a^4$. Alignment is $1/\sqrt{1 + a^4}$ in both cases.

# %%
y, b = torch.tensor([[1.0, 1, -1, -1], [1, -1, 1, -1]])
rows, layer = [], nn.Linear(2, 1, bias=False)
for a in (0.5, 1.0, 2.0):
    x = torch.stack([y, a * b], 1)
    found = tangent.alignment_terms(layer, x, y[:, None])["model"]
    known = 1 / (1 + a**4) ** 0.5, min(1, a**-2), 1 + min(a, 1 / a) ** 4
    rows += [[a, "known", *known], [a, "measured", *map(float, found)]]
names = ["a", "", "alignment", "correlation term", "stable rank"]
study.table(pd.DataFrame(rows, columns=names).set_index(["a", ""]))

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
same = dict(rates=(0.001, 0.02), share=0.2, seen=100, runs=5)
small = dict(same, pixels=16, norm=True, augment=False)
s = study.settings(
    profile, change,
    smoke=dict(small, width=4, n=60, n_test=60, batch=20, stop=0.5, epochs=2,
               seen=12, runs=2),
    laptop=dict(small, width=4, n=200, n_test=500, batch=50, stop=1.0,
                epochs=20, seen=30, runs=3),
    desktop=dict(small, width=8, n=1000, n_test=2000, batch=64, stop=0.5,
                 epochs=80, runs=7),
    paper=dict(same, pixels=32, norm=False, augment=True, width=64, n=50_000,
               n_test=10_000, batch=128, stop=0.1, epochs=500),
)  # fmt: skip
where = devices.device(device)
s

# %% [markdown]
# SGD has momentum 0.9 and weight decay 0.0005. Training stops once the mean
# loss of an epoch is below `stop`, or after `epochs`. Kernels are those of the
# first `seen` training images. `width` is the number of filters in the first
# of 16 convolutions, `norm` says whether batch norm follows each. Rates and
# the `share` of random labels are the appendix's, the stop is that of section
# 4; batch size, `seen`, `augment` (shifts and mirroring) and no `norm` are
# those of the authors' code.
#
# ## Data
#
# CIFAR-10, with pixels scaled to mean 0 and deviation 1, over all of the set.
# Smaller images are averages over blocks of pixels. Each run draws images of
# its own. Random labels are uniform over classes: about a tenth are right.

# %%
NAMES = ["large rate", "small rate", "small rate, random labels"]
C, seeds, kind = 10, study.seeds(s.runs), dict(dtype=torch.uint8, shrink=True)


def with_random(sample, share, seed):
    """The sample with a share of its labels drawn at random."""
    n, y = len(sample), sample.y.clone()
    rows = data.disjoint(torch.arange(n), round(share * n), seed=seed)[0]
    y[rows] = data.random_labels(len(rows), C, seed=seed)
    return sample.with_labels(y, f"random for {share:.0%}")


draws = {}
for seed in seeds:
    sample = data.load("cifar10", "train", s.n, seed=seed, **kind)
    test = data.load("cifar10", "test", s.n_test, seed=seed, **kind)
    draws[seed] = sample, with_random(sample, s.share, seed), test
for one in draws[seeds[0]]:
    study.uses(one)
few = avg_pool2d(draws[seeds[0]][0].x[:10] / 255, 32 // s.pixels)
study.show(plots.strips({"": few}), "lou.images08", "Ten images.")

# %% [markdown]
# ## Alignment taken apart
#
# Two random networks in float64: the alignment as the package computes it,
# without a kernel, and from all eigenvectors of the whole kernel.

# %%
mlp = models.MLP(12, 4, depth=3, width=8, seed=0)
cnn = models.SimpleCNN((1, 6, 6), 4, convs=2, filters=3, units=6, seed=0)
g, off = torch.Generator().manual_seed(0), {}
for name, net, shape in (("MLP", mlp, (12,)), ("CNN", cnn, (1, 6, 6))):
    x = torch.randn(20, *shape, generator=g, dtype=torch.float64)
    y, net, off[name] = torch.arange(20) % 4, net.double(), 0.0
    short = tangent.label_alignment(net, x, y)
    unit = data.one_hot(y, 4).double().flatten() - 0.25
    unit = unit / unit.norm()
    for layer, K in tangent.layer_kernels(net, x).items():
        size, vectors = torch.linalg.eigh(kernels.center(K))
        size = size / size.max()
        along = (size * (vectors.T @ unit).square()).sum()
        long = along / size.square().sum().sqrt()
        off[name] = max(off[name], float((long - short[layer]).abs()))
rest = dict(measured=off, data=[], seeds=[0], size=())
study.claim("lou.appG", holds=max(off.values()) < 1e-8, **rest)

# %% [markdown]
# ## Run
#
# Three networks a run: at the large rate, at the small one, and at the small
# one on labels of which a share is random. Alignment is with the labels that
# the network is trained on. A cell trains one network and measures every layer
# of weights: 16 convolutions and the last, linear layer.


# %%
def scaled(images, side, device):
    """Images with so many pixels a side, scaled."""
    return (avg_pool2d(images.x.to(device) / 255, 32 // side) - 0.473) / 0.252


def looks(net, x, y):
    """Rows: the terms of each layer; then eigenvalues over the first."""
    kinds, named = (nn.Conv2d, nn.Linear), net.named_modules()
    layers = [name for name, part in named if isinstance(part, kinds)]
    terms = tangent.alignment_terms(net, x, y, layers=layers)
    traced = tangent.label_alignment(net, x, y, "trace", layers=layers)
    fisher = tangent.fisher_spectrum(net, x, layers=layers)
    along = tangent.fisher_correlation(net, x, y, layers=layers)
    whole = tangent.layer_kernels(net, x, layers=layers)
    for k, name in enumerate(layers, start=1):
        size = torch.linalg.eigvalsh(kernels.center(whole[name]).double())
        size = (size.flip(0) / size.max()).clamp(min=1e-12)
        found = dict(layer=k, traced=traced[name], **terms[name]._asdict())
        found["fisher_rank"] = (fisher[name] / fisher[name][0]).square().sum()
        found |= dict(fisher_correlation=along[name], hundredth=size[99].log())
        found |= dict(plain_rank=kernels.stable_rank(whole[name]))
        yield {key: float(value) for key, value in found.items()}
        for i in plots.spread(min(200, len(size)), 40).tolist():
            yield dict(layer=k, mode=i, eigenvalue=float(size[i - 1]))


def one_network(seed, network, lr, images, p, device):
    """Train a network; its loss, its accuracy and all looks at it."""
    x, new_x = (scaled(one, p["pixels"], device) for one in images)
    y, new_y = (one.y.to(device) for one in images)
    net = models.VGG("vgg19", x.shape[1:], C, width=p["width"],
                     batch_norm=p["norm"], seed=seed).to(device)  # fmt: skip
    history = train.fit(
        net, x, y, optimizer="momentum", lr=lr, weight_decay=5e-4, at=(),
        batch_size=p["batch"], epochs=p["epochs"], stop_loss=p["stop"],
        augment=train.crop_and_flip if p["augment"] else None,
        full_train=True, test=(new_x, new_y), seed=seed,
    )  # fmt: skip
    seen = x[: p["seen"]], y[: p["seen"]]
    return [history.rows()[-1], *looks(net.eval(), *seen)]


(low, high), cells = s.rates, []
for seed, (true, random, test) in draws.items():
    for name, lr, sample in zip(NAMES, (high, low, low), (true, true, random)):
        images = sample, test
        cells.append(dict(seed=seed, network=name, lr=lr, images=images))
names = "pixels norm width augment batch epochs stop seen"
p = {name: getattr(s, name) for name in names.split()}
runs = study.sweep(one_network, cells, p=p, device=str(where))
means = ["epoch", "train_loss", "test_loss", "test_accuracy"]
means = runs.groupby("network", sort=False)[means].mean()
study.table(means, "When training has stopped, mean over runs.")

# %% [markdown]
# ## Figure 19
#
# Eigenvalues of the centered tangent kernel of each layer, over the first.

# %% tags=["hide-input"]
about = f"VGG19 of width {s.width} on {s.n} images of {s.pixels} pixels, "
swap = "" if s.width == 64 else f"{about}batch norm"
about += f"kernels on {s.seen}; mean and standard error of {s.runs} runs."
accuracy = {"test accuracy": means["test_accuracy"].to_dict()}
spectra = runs[runs["mode"].notna() & (runs["network"] != NAMES[1])]
spectra = spectra.assign(layer=spectra["layer"].astype(int))
fig = plots.curves(
    spectra, x="mode", y="eigenvalue", hue="layer", col="network", log="y",
    order={"network": [NAMES[2], NAMES[0]]}, sharey=True, height=3.2,
    labels={"eigenvalue": "eigenvalue over the first"},
)  # fmt: skip
caption = "Figure 19. If the claim holds, lines fall deeper on the right. The "
caption += "two differ in the rate, too; the card also has the third one. "
study.show(fig, "lou.fig19", caption + about, table=spectra)
terms = runs[runs["alignment"].notna()]


def over_layers(column, how="mean"):
    """A column for each network, a row for each run."""
    found = terms.groupby(["seed", "network"], sort=False)[column].agg(how)
    return found.unstack()[NAMES]


def pair(table, a, b, side=study.above):
    """An effect: one network less another, run by run."""
    a, b = NAMES[a], NAMES[b]
    return {f"{a} less {b}": side(table[a] - table[b])}


def claim(id, effects, **tables):
    """Make a claim; its card gives the means of these tables."""
    found = {k: v.mean().to_dict() for k, v in tables.items()} | accuracy
    study.claim(f"lou.{id}", effects=effects, measured=found, stand_in=swap)


log = over_layers("hundredth")
less = pair(log, 0, 2, study.below) | pair(log, 1, 2, study.below)
claim("fig19", less, log_of_hundredth_over_first=log)

# %% [markdown]
# ## Figure 20
#
# Alignment comes twice: *stacked* as above, and *class-traced*, where kernel
# and labels are first summed over outputs. The kernel of a last linear layer
# is the same for each output and 0 between outputs. So its stacked alignment
# is at most $1/\sqrt{o(o-1)}$ (dotted) for equal classes, else a bit more.

# %% tags=["hide-input"]
panels = {"alignment": "stacked alignment", "stable_rank": "stable rank",
          "traced": "class-traced", "correlation": "correlation"}  # fmt: skip
shown = terms.melt(["network", "seed", "layer"], list(panels))
shown["panel"] = shown["variable"].map(panels)
draw = dict(x="layer", y="value", hue="network", labels={"value": ""})
fig = plots.curves(shown, col="panel", wrap=2, height=2.5, **draw)
fig.axes[0].axhline((C * (C - 1)) ** -0.5, color="0.5", ls=":", lw=1.2)
plt.setp(fig.axes, ylim=(0, None))
caption = "Figure 20, and class-traced alignment. If the claims hold, the "
caption += "large rate has the highest alignment and correlation, random "
caption += "labels the highest rank. Dotted: see above. "
study.show(fig, "lou.fig20", caption + about, table=shown)
A, R = over_layers("alignment"), over_layers("stable_rank")
rho, traced = over_layers("correlation", "max"), over_layers("traced")
effects = pair(A, 0, 1) | pair(A, 1, 2)
claim("fig20.alignment", effects, stacked=A, class_traced=traced)
claim("fig20.rank", pair(R, 2, 0) | pair(R, 2, 1), stable_rank=R)
effects = pair(rho, 0, 1) | pair(rho, 0, 2)
claim("fig20.correlation", effects, largest_correlation_term=rho)

# %% [markdown]
# ## Figure 21
#
# $R_l$ is that of the centered kernel; the card gives the other, too.

# %% tags=["hide-input"]
kinds = {"stable_rank": "tangent kernel", "fisher_rank": "Fisher information"}
shown = terms.melt(["network", "seed", "layer"], list(kinds))
shown["of"] = shown["variable"].map(kinds)
draw |= dict(labels={"value": "stable rank", "of": ""}, height=2.5)
fig = plots.curves(shown, style="of", col="network", sharey=True, **draw)
plt.setp(fig.axes, ylim=(0, None))
caption = "Figure 21. If the claim holds, dashed lines are lower. "
study.show(fig, "lou.fig21", caption + about, table=shown)
F, plain = over_layers("fisher_rank"), over_layers("plain_rank")
less = {f"{k}: Fisher less kernel": study.below(F[k] - R[k]) for k in NAMES}
claim("fig21", less, Fisher=F, kernel=R, kernel_not_centered=plain)

# %% [markdown]
# ## Figures 22 and 23: rank and correlation term of the Fisher information

# %% tags=["hide-input"]
most = over_layers("fisher_correlation", "max")
effects = {"fig22": pair(F, 2, 1) | pair(F, 1, 0)}
effects["fig23"] = {name: study.below(most[name], 0.1) for name in NAMES}
says = {"fig22": ("fisher_rank", "the large rate is lowest"),
        "fig23": ("fisher_correlation", "no line reaches 0.1")}  # fmt: skip
for id, (column, text) in says.items():
    shown = terms[["network", "seed", "layer", column]]
    label = {column: column.replace("_", " ").replace("fisher", "Fisher")}
    draw |= dict(y=column, labels=label, height=2.8, aspect=1.6)
    caption = f"Figure {id[3:]}. If the claim holds, {text}. {about}"
    study.show(plots.curves(shown, **draw), f"lou.{id}", caption, table=shown)
    claim(id, effects[id], mean_rank=F, largest_correlation=most)

# %% [markdown]
# ## What differs from the paper, and why
#
# - All is smaller: see the settings. Without batch norm a VGG19 this narrow
#   hardly left its first loss in pilot runs.
# - The paper says neither when networks stop nor how many images it takes.
#
# ## Try it
#
# 1. Set `change = {"share": 0.5}`. Which of the three terms moves most?
# 2. Set `change = {"stop": 1.0}`. Is the Fisher information's rank still low?

# %% tags=["hide-input"]
study.stamp()
