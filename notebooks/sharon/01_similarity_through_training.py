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
# # Layers compared with themselves through training
#
# *Section 3 of {cite:t}`sharon2024`: equations 1 and 2, figures 1, 2 and 7.*
#
# ```{note}
# The architecture is the paper's, a pre-activation ResNet18. All profiles but
# `paper` have narrower layers, and small images of MNIST digits in place of
# CIFAR-10: fewer of them, for fewer epochs, at a higher learning rate.
# ```
#
# A network can go on training long after it fits all its training labels. What
# do its layers still learn then? The paper compares each layer at every epoch
# with itself at every other epoch, with label noise and without.

# %% tags=["hide-cell"]
import pandas as pd
import torch
from torch.nn.functional import adaptive_avg_pool2d

from repalign import covariance, kernels, models, plots, study
from repalign.machine import devices
from repalign.papers import sharon
from repalign.study.known import above_where_known as above

study.begin("sharon/01_similarity_through_training")

# %% [markdown]
# ## The idea
#
# Let $X$ and $Y$ be the outputs of a layer at two epochs, with a row for each
# of $n$ images. Their Gram matrices are $K = XX^\top$ and $L = YY^\top$. Let
# $H$ have entries $1 - 1/n$ on its diagonal and $-1/n$ elsewhere, which takes
# means away, and $\operatorname{HSIC}(X, Y) = \operatorname{Tr}(HKH\,HLH) /
# (n - 1)^2$ (equation 1). Then
#
# $$
# \operatorname{CKA}(X, Y) = \frac{\operatorname{HSIC}(X, Y)}
# {\sqrt{\operatorname{HSIC}(X, X) \operatorname{HSIC}(Y, Y)}} . \qquad (2)
# $$
#
# CKA is 1 if both epochs see the same similarities between images. A map has a
# row and a column for each epoch, and CKA as its color. Epochs between which a
# layer hardly changes form a bright square on the diagonal, a *block*.
#
# - *change*: the mean of $1 - \operatorname{CKA}$ over pairs of epochs;
# - *return*: the mean CKA of late epochs with initialization, minus that with
#   the best epoch before perfect fitting; positive if a layer comes back;
# - *novelty* of an epoch $s$: from $s/3$ to $3s$, the mean CKA of pairs on the
#   same side of $s$ ($s$ counts as after), minus that of pairs across it. It
#   peaks where a block ends. A steady drift has about the same novelty
#   everywhere, so we divide by the median. A layer that changes at first and
#   then stops has a high peak over its median, too;
# - *late block*: the mean CKA among late epochs, minus late with earlier ones.
#
# ## A toy whose answer is known
#
# Let $a$ and $b$ be centered and orthonormal. A layer is $X = (a, 0)$ at
# first, $(a, b)$ from epoch 10 on and $(a, 0)$ again from epoch 100 on. CKA of
# the two kinds is $1/\sqrt2$. So novelty at epoch 10 is $1 - 1/\sqrt2$, and so
# is the return, with epoch 30 as the best and those from 300 on as late.

# %%
a, b = torch.tensor([[1.0, -1, 1, -1], [1, 1, -1, -1]]) / 2
at = [0, 1, 2, 4, 5, 7, 10, 15, 20, 30, 50, 100, 300, 400]
kept = sharon.Kernels()
for epoch in at:
    kept.keep({"toy": torch.stack([a, b * (10 <= epoch < 100)], 1)})
toy = kept.cka()["toy"]
measured = {"novelty": sharon.novelty(toy, at)[at.index(10)]}
measured["return"] = sharon.returned(toy, best=at.index(30), late=[-2, -1])
study.table(pd.DataFrame(dict(known=1 - 0.5**0.5, measured=measured)))

# %% [markdown]
# ## The claims of this page
#
# Layers are the first convolution, four blocks and the last layer. Batch norm
# gathers its statistics while weights change. *Recomputed* ones are those of
# all training images, unmoved, for the weights as they are.

# %% tags=["hide-input"]
study.claims()

# %% [markdown]
# ## Settings

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"runs": 2}: replaces values in the table below

# %% tags=["hide-input"]
small = dict(images="mnist", pixels=8, width=8, lr=0.001, batch=64, shift=0)
s = study.settings(
    profile, change,
    smoke=dict(small, width=4, n=60, n_test=60, epochs=12, looks=9, probes=40,
               part=40, runs=2),
    laptop=dict(small, n=250, n_test=300, epochs=80, looks=20, probes=200,
                part=200, runs=3),
    desktop=dict(small, pixels=10, batch=128, n=1000, n_test=1000,
                 epochs=150, looks=60, probes=500, part=500, runs=8),
    paper=dict(images="cifar10", pixels=32, width=64, lr=0.0001, batch=128,
               shift=4, n=50_000, n_test=10_000, epochs=4000, looks=4001,
               probes=2048, part=512, runs=3),
)  # fmt: skip
where = devices.device(device)
s

# %% [markdown]
# The four blocks have `width`, 2, 4 and 8 times as many filters. Adam has a
# constant rate `lr`. Images move by up to `shift` pixels; `paper` mirrors half
# of them. It does not give its batch size; `batch` is that of the study of
# double descent it follows. There are `looks` at a network, evenly spread on a
# log axis (`paper`: one each epoch, so that means over pairs of epochs are
# mostly of late ones). CKA is that of `probes` test images, as a mean over
# groups of `part`. The paper has one network of each kind; an interval needs
# `runs`.
#
# ## Data
#
# Pixels are from $-1$ to 1; small images are averages. Each run draws its own
# images (`paper` takes all), wrong labels and weights. In a run, networks with
# different noise start from the same weights, and labels that are wrong at 10%
# are so at 20%.

# %%
NOISE = 0.0, 0.1, 0.2
draws = sharon.train_test(s.images, s.n, s.n_test, study.seeds(s.runs))
used = [one[k] for one in draws for k in ("sample", "test")]
for one in used[:2]:
    study.uses(one)
seen = {"": adaptive_avg_pool2d(used[0].x[:10], s.pixels)}
study.show(plots.strips(seen), "sharon.images", "Ten images, as used.")

# %% [markdown]
# ## Equation 2
#
# CKA of random features: by equation 2, from features, from changed features.

# %%
both = torch.randn(2, 60, 90, generator=torch.Generator().manual_seed(0))
X, Y = both[0, :, :7].double(), both[1].double()
K, L = kernels.gram(X), kernels.gram(Y)
eq2 = kernels.hsic(K, L) / (kernels.hsic(K, K) * kernels.hsic(L, L)).sqrt()
same = dict(features=X, scaled=-3 * X, permuted=X.flip(1))
same["rotated"] = X @ covariance.random_basis(7, seed=0)
off = {k: float((kernels.cka(x, Y) - eq2).abs()) for k, x in same.items()}
about = dict(data=[], seeds=[0], size=(), measured=off)
study.claim("sharon.eq2", holds=max(off.values()) < 1e-10, **about)

# %% [markdown]
# ## Run
#
# `watched` trains a network. At each logged epoch it measures errors and keeps
# the centered Gram matrix of every layer, not the network. Afterwards one
# product of these matrices gives the whole map of a layer.


# %%
LAYERS = ["first layer", *(f"block {k}" for k in range(1, 5)), "last layer"]


def one_run(sample, test, seed, noise, pixels, width, shift, how, device):
    """Errors and maps of one network, and what they cost."""
    task = dict(pixels=pixels, noise=noise, seed=seed, device=device)
    both, colors = sharon.noisy_task(sample, test, **task), sample.x.shape[1]
    net = models.preact_resnet18(k=width, channels=colors, seed=seed)
    moves = sharon.usual(colors, shift)
    how = dict(how, augment=moves, seed=seed, names=LAYERS)
    return sharon.watched(net.to(device), *both, **how)._asdict()


how = {k: getattr(s, k) for k in ("epochs", "lr", "looks", "probes", "part")}
how["batch_size"] = s.batch
fixed = dict(pixels=s.pixels, width=s.width, shift=s.shift, how=how)
cells = [dict(d, noise=k) for k in NOISE for d in draws]
nets = study.sweep(one_run, cells, **fixed, device=str(where))

# %% [markdown]
# ## Numbers of the maps
#
# A run that never fits has no start of perfect fitting; one that fits after a
# third of training has no full window around it. Such runs are left out, and
# the share of the others is one more effect. (`smoke`: any error is perfect.)


# %%
def more(what, layer, kind="plain"):
    """With 20% label noise minus without, run by run."""
    return v[what][kind, 0.2, layer] - v[what][kind, 0.0, layer]


def deeper(kind):
    """As sharon.fig2.deep says, for one kind of map."""
    a, b, c = (more("change", k, kind) for k in (*DEEP, FIRST))
    of = {DEEP[0]: a, DEEP[1]: b, "mean, less first layer": (a + b) / 2 - c}
    return above({f"{name}: 20% less none": k for name, k in of.items()})


FIRST, DEEP = LAYERS[0], LAYERS[-2:]
perfect = 1.0 if s.profile == "smoke" else 0.005
found = [dict(row, noise=cell["noise"], seed=cell["seed"])
         for cell, net in zip(cells, nets) for row in sharon.described(
             net["errors"], net["maps"], perfect=perfect)]  # fmt: skip
v = pd.DataFrame(found).set_index(["kind", "noise", "layer", "seed"])
u = (v := v.sort_index()).loc["plain"]
none, some = (u.loc[k, FIRST] for k in (0.0, 0.2))
fall, apart = some["highest"] - some["last"], u["set_apart"][0.2]
over = {"highest less best": some["highest"] - some["best"]}
effects = {
    "fig1.high": above({
        f"noise {k:.0%}, first layer less {layer}":
        u["change"][k, layer] - u["change"][k, FIRST]
        for k in (0.0, 0.2) for layer in LAYERS[1:]}),
    "fig1.fit": above({k: u["at_fit"][0.0, k] for k in DEEP}, 1),
    "fig2.descent": above(over | {"highest less last": fall}, 0.01)
    | above({"fall, 20% less none": fall - (none["highest"] - none["last"])}),
    "fig2.stale": above({"rise": some["highest_stale"] - some["highest"]}),
    "fig2.deep": deeper("plain"),
    "fig2.nearby": above({k: more("nearby", k) for k in DEEP}),
    "fig2.blocks": above({
        "20% less none": sum(more("peak", k) for k in LAYERS[2:]) / 4}),
    "fig2.late": above({"less block 2": apart[DEEP[1]] - apart["block 2"]}),
}  # fmt: skip
for k, id in zip(NOISE, ("fig1.first", "fig7", "fig2.first")):
    effects[id] = above({"return": u["returned"][k, FIRST]})

# %% [markdown]
# ## Figures 1, 7 and 2: the colors of a layer are the same in all

# %% tags=["hide-input"]
swap = f"{len(used[0])} {s.images} images of {s.pixels} pixels, width "
swap += f"{s.width}, {s.epochs} epochs"
whole = s.images, s.width, s.epochs, len(used[0])
swap = "" if whole == ("cifar10", 64, 4000, 50_000) else swap
also = f"{swap}." if swap else ""
by, ones = dict(stand_in=swap, data=used), nets[:: s.runs]
span = sharon.shared_limits(*(net["maps"]["plain"] for net in ones))
says = {
    "fig1": "the first layer ends close to its start, and deep layers have a "
    "block from the white line on.",
    "fig7": "the first layer ends close to its start.",
    "fig2": "deep layers are darker than in figure 1 and have clearer blocks, "
    "and the test error rises and falls again.",
}
for (id, text), k, net in zip(says.items(), NOISE, ones):
    start, maps = u["start"][k, FIRST], net["maps"]["plain"]
    at, marks = [row["epoch"] for row in net["errors"]][::2], start.iloc[0]
    fig = sharon.with_errors(maps, at, net["errors"], mark=marks, limits=span)
    about = f"Figure {id[3]}, label noise {k:.0%}, first of {s.runs} runs: "
    about += "CKA of a layer at all pairs of epochs; errors. White: perfect "
    text = f"{about}fitting starts. By the paper, {text} {also}"
    study.show(fig, f"sharon.{id}", text, table=sharon.layer_table(maps, at))
    by["measured"] = {"start of perfect fitting": start.tolist()}
    by["measured"]["largest novelty"] = u["largest"][k].mean()
    for claim in [c for c in effects if c.split(".")[0] == id]:
        study.claim(f"sharon.{claim}", effects=effects[claim], **by)

# %% [markdown]
# ## Few images: CKA without its bias
#
# On few images CKA is too high. The debiased estimate is not.

# %% tags=["hide-input"]
drawn = v["change"].reset_index()
drawn["noise"] = drawn["noise"].map("{:.0%}".format)
drawn["layer"] = drawn["layer"].map(LAYERS.index) + 1
draw = dict(x="layer", y="change", hue="noise", col="kind", aspect=1)
order = dict(kind=list(nets[0]["maps"]))
fig = plots.curves(drawn, **draw, order=order, sharey=True, height=2.6)
text = "Mean of 1 − CKA over all pairs of epochs, by layer (1: first, 6: last "
text += f"layer); mean and standard error of {s.runs} runs. {also}"
study.show(fig, "sharon.debiased", text, table=drawn)
told = deeper("statistics of training").items()
by["measured"] = {f"{k}, statistics of training": e.mean for k, e in told}
study.claim("sharon.debiased", effects=deeper("debiased"), **by)

# %% [markdown]
# ## What it costs

# %% tags=["hide-input"]
cost = pd.DataFrame([net["cost"] for net in nets]).mean().to_frame("here")
cost["paper"] = ["900", "–", "900, six GPUs", "–", "170,000"]
study.table(cost, "One network (mean of all), and one of the paper's.")

# %% [markdown]
# ## What differs from the paper, and why
#
# - Images, width and length of training: see the settings. Of some tried with
#   other seeds, `desktop` is the smallest whose error falls a second time with
#   recomputed statistics; images that move took too long to be fitted.
#   The paper finds the return only in networks of width 52 and more.
# - Errors and maps have recomputed statistics of batch norm; those of training
#   are beside them. At initialization the latter normalize nothing.
# - `benchmarks/bench_evolution.py` makes the maps of the paper's own grid:
#   4000 epochs, 2048 images and six layers, with random features.
#
# ## Try it
#
# 1. Set `change = {"width": 16}`. Does the return of the first layer grow?
# 2. Set `change = {"lr": 0.0003}`. Do blocks move with perfect fitting?

# %% tags=["hide-input"]
study.stamp()
