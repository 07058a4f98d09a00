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
# # Blocks of a vision transformer
#
# *Section 3.3 and appendix H.2 of {cite:t}`sharon2024`: figures 3 and 17.*
#
# ```{note}
# All profiles but `paper` have a small vision transformer in place of
# ViT-B/16, and small images of MNIST digits in place of CIFAR-10: fewer of
# them, for fewer epochs, at a higher learning rate.
# ```
#
# Training has a moment from which a network fits all its labels. Do the layers
# of a transformer notice? By the paper they do, in all encoder blocks, at
# about that moment.

# %% tags=["hide-cell"]
import pandas as pd
import torch
from torch.nn.functional import adaptive_avg_pool2d

from repalign import models, plots, study
from repalign.machine import devices
from repalign.papers import sharon
from repalign.study.known import above_where_known as above

study.begin("sharon/03_vision_transformer")

# %% [markdown]
# ## The idea
#
# A vision transformer cuts an image into patches and turns each into a vector,
# a token. An encoder block adds to every token what attention and a small
# network make of all tokens. We take all tokens of an image behind a block as
# one row. Let $C_{ij}$ be the CKA of a block at the logged epochs $i$ and $j$:
# 1 if both see the same similarities between images. The *novelty* of an epoch
# $s$ compares the epochs before it, from $s/3$ on, with those from it on, up
# to $3s$:
#
# $$
# N(s) = \operatorname{mean}_{\text{same}} C_{ij}
# - \operatorname{mean}_{\text{across}} C_{ij} .
# $$
#
# The means are over pairs $i \ne j$ on the same side of $s$, and on different
# sides. Novelty is high where one block of similar epochs ends
# and another starts. A layer that drifts at a steady pace has some novelty as
# well, but the same at all epochs. So we divide by the median over epochs: 1
# is what a steady drift has.
#
# ## A toy whose answer is known
#
# Let $a$ and $b$ be centered and orthonormal, and a layer $X = (\sqrt{\cos
# \varphi}\, a, \sqrt{\sin \varphi}\, b)$. CKA at two angles is the cosine of
# their difference. If the angle grows with the logarithm of the epoch, novelty
# over its median is 1 at all epochs. If it jumps from 0 to a right angle at
# epoch 27 and stays, novelty is 1 there, and 0 from epoch 81 on.

# %%
a, b = torch.tensor([[1.0, -1, 1, -1], [1, 1, -1, -1]]) / 2
at = [3 ** (k / 4) for k in range(25)]  # up to 729, evenly on a log axis
turn, jump = sharon.Kernels(), sharon.Kernels()
for k in range(25):
    steady, sudden = torch.tensor([k / 24, float(k >= 12)]) * torch.pi / 2
    for kept, angle in ((turn, steady), (jump, sudden)):
        part = torch.stack([angle.cos(), angle.sin()]).clamp(min=0).sqrt()
        kept.keep({"toy": torch.stack([part[0] * a, part[1] * b], 1)})
turn, jump = (
    pd.Series(sharon.novelty(k.cka()["toy"], at)) for k in (turn, jump)
)
turn, rows = turn / turn.median(), ["steady, lowest", "steady, highest"]
rows = pd.Index([*rows, "jump, epoch 27", "jump, epoch 81"], name="novelty")
measured = [turn.min(), turn.max(), jump[12], jump[16]]
toy = pd.DataFrame(dict(known=[1.0, 1, 1, 0], measured=measured), index=rows)
study.table(toy, "Novelty of a steady drift, over its median, and of a jump.")

# %% [markdown]
# ## The claims of this page
#
# Criteria are those for networks with batch norm, too. Transformers have layer
# norm, which keeps no statistics: there is nothing to recompute.

# %% tags=["hide-input"]
study.claims()

# %% [markdown]
# ## Settings

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"runs": 2}: replaces values in the table below

# %% tags=["hide-input"]
small = dict(images="mnist", pixels=12, patch=4, depth=6, width=32, heads=4,
             lr=0.001, batch=128, shift=1)  # fmt: skip
s = study.settings(
    profile, change,
    smoke=dict(small, depth=2, width=8, n=40, n_test=40, epochs=12, looks=9,
               probes=30, part=30, runs=1),
    laptop=dict(small, depth=4, width=16, lr=0.002, batch=32, shift=0,
                n=128, n_test=300, epochs=300, looks=24, probes=200, part=200,
                runs=2),
    desktop=dict(small, shift=0, n=512, n_test=500, epochs=400, looks=60,
                 probes=500, part=500, runs=6),
    paper=dict(images="cifar10", pixels=32, patch=16, depth=12, width=768,
               heads=12, lr=0.0001, batch=128, shift=4, n=50_000,
               n_test=10_000, epochs=4000, probes=2048, part=512, runs=3,
               looks=((0, 300, 1), (300, 900, 3), (900, 4000, 10))),
)  # fmt: skip
where = devices.device(device)
s

# %% [markdown]
# There are `depth` encoder blocks with tokens of `width` numbers, and `heads`
# of attention. Adam has a constant rate `lr`. Images move by up to `shift`
# pixels; `paper` mirrors half of them. The paper gives neither its batch size
# nor the size to which images were brought for ViT-B/16: we leave them as they
# are, so that a patch is a quarter of an image. There are `looks` at a
# network, evenly spread on a log axis; the paper's are 1, 3 and 10 epochs
# apart. CKA is that of `probes` test images, as a mean over groups of `part`.
# The paper has one network of each kind; an interval needs `runs`.
#
# ## Data
#
# Pixels are from $-1$ to 1; small images are averages. Each run draws its own
# images (`paper` takes all), wrong labels and weights. In a run, the networks
# with and without label noise start from the same weights.

# %%
NOISE = 0.0, 0.2
draws = sharon.train_test(s.images, s.n, s.n_test, study.seeds(s.runs))
used = [one[k] for one in draws for k in ("sample", "test")]
for one in used[:2]:
    study.uses(one)
seen = {"": adaptive_avg_pool2d(used[0].x[:10], s.pixels)}
study.show(plots.strips(seen), "sharon.images", "Ten images, as used.")

# %% [markdown]
# ## Run
#
# `watched` trains a network. At each logged epoch it measures errors and keeps
# the Gram matrix of every encoder block, not the network. Afterwards one
# product of these matrices gives the whole map of a block.


# %%
def one_run(sample, test, seed, noise, size, shift, how, device):
    """Errors and maps of one transformer."""
    task = dict(pixels=size["image_size"], noise=noise, device=device)
    both = sharon.noisy_task(sample, test, seed=seed, **task)
    colors, depth = sample.x.shape[1], size["depth"]
    net = models.vit_small(10, channels=colors, seed=seed, **size)
    names = [f"encoder block {k + 1}" for k in range(depth)]
    moves = sharon.usual(colors, shift)
    how = dict(how, augment=moves, seed=seed, names=names)
    return sharon.watched(net.to(device), *both, **how)._asdict()


size = {k: getattr(s, k) for k in ("patch", "depth", "width", "heads")}
how = {k: getattr(s, k) for k in ("epochs", "lr", "looks", "probes", "part")}
how |= dict(batch_size=s.batch, kinds=["plain"])
fixed = dict(size=dict(size, image_size=s.pixels), shift=s.shift, how=how)
cells = [dict(d, noise=k) for k in NOISE for d in draws]
nets = study.sweep(one_run, cells, **fixed, device=str(where))

# %% [markdown]
# ## Numbers of the maps
#
# A run that never fits has no start of perfect fitting; one that fits after a
# third of training has no full window around it. Such runs are left out, and
# the share of the others is one more effect. (`smoke`: any error is perfect.)

# %% tags=["hide-input"]
perfect = 1.0 if s.profile == "smoke" else 0.005
found = [dict(row, noise=cell["noise"], seed=cell["seed"])
         for cell, net in zip(cells, nets)
         for row in sharon.described(
             net["errors"], net["maps"], perfect=perfect)
]  # fmt: skip
u = pd.DataFrame(found)
LAYERS = u["layer"].unique().tolist()
u["block"] = u["layer"].map(LAYERS.index) + 1
u = u.set_index(["noise", "block", "seed"]).sort_index()
fits = u["at_fit"].unstack("block")  # a row for each noise and run
half, deepest = s.depth // 2, fits[s.depth]
mean = fits.mean(axis=1, skipna=False)
deep = fits.iloc[:, half:].mean(axis=1) - fits.iloc[:, :half].mean(axis=1)
shown = u.assign(CKA=1 - u["change"]).groupby(["noise", "block"])
shown = shown[["CKA", "at_fit", "peak"]].mean()
text = "Each encoder block, mean over runs: CKA over all pairs of epochs; "
text += "novelty over its median, where perfect fitting starts and highest."
study.table(shown, text)

# %% [markdown]
# ## Figures 3 and 17: the colors of a block are the same in both

# %% tags=["hide-input"]
swap = f"{s.depth} blocks of width {s.width}, {len(used[0])} {s.images} "
swap += f"images of {s.pixels} pixels, {s.epochs} epochs"
whole = s.images, s.width, s.epochs, len(used[0])
swap = "" if whole == ("cifar10", 768, 4000, 50_000) else swap
also = f"{swap}." if swap else ""
rest, ones = dict(stand_in=swap, data=used), nets[:: s.runs]
span = sharon.shared_limits(*(net["maps"]["plain"] for net in ones))
for id, k, net in zip(("fig3", "fig17"), NOISE, ones):
    maps, start = net["maps"]["plain"], u["start"][k, 1]
    at = [row["epoch"] for row in net["errors"]][::2]
    limits = dict(mark=start.iloc[0], limits=span)
    errors = net["errors"][1::2]  # both kinds of statistics are the same
    fig = sharon.with_errors(maps, at, errors, **limits)
    text = f"Figure {id[3:]}, label noise {k:.0%}, first of {s.runs} runs: "
    text += "CKA of an encoder block at all pairs of epochs; errors. White: "
    text += "perfect fitting starts. By the paper, a bright square starts "
    text += f"there, and more clearly so in deep blocks. {also}"
    study.show(fig, f"sharon.{id}", text, table=sharon.layer_table(maps, at))
    rest["measured"] = {"start of perfect fitting": start.tolist()}
    of = {"mean over blocks": mean[k], "last block": deepest[k]}
    study.claim(f"sharon.{id}", effects=above(of, 1), **rest)

# %% [markdown]
# ## Deep blocks

# %% tags=["hide-input"]
every = u.reset_index()
every["labels"] = every["noise"].map("label noise {:.0%}".format)
drawn = every.dropna(subset="at_fit")
drawn = drawn if len(drawn) else every.assign(at_fit=0.0)
labels = {"at_fit": "novelty over its median", "block": "encoder block"}
draw = dict(x="block", y="at_fit", col="labels", sharey=True, labels=labels)
fig = plots.curves(drawn, **draw, height=2.6)
for ax in fig.axes:
    ax.axhline(1, color="0.5", lw=1, ls="--")
text = "Novelty at the start of perfect fitting, over its median, by encoder "
text += "block; mean and standard error over runs that have it (0 if none "
text += f"has). Dashed: a steady drift. By the paper, it rises. {also}"
study.show(fig, "sharon.fig3.deep", text, table=drawn)
effects = above({f"noise {k:.0%}: deeper less other": deep[k] for k in NOISE})
rest["measured"] = {f"noise {k:.0%}": fits.loc[k].mean().to_dict()
                    for k in NOISE}  # fmt: skip
study.claim("sharon.fig3.deep", effects=effects, **rest)

# %% [markdown]
# ## What differs from the paper, and why
#
# - Network, images and length of training: see the settings.
# - The paper reads maps by eye; the criteria put numbers to what it reads. The
#   novelty at the start of perfect fitting is one number among many: the table
#   has the highest beside it.
#
# ## Try it
#
# 1. Set `change = {"depth": 12}`. Where does novelty start to rise?
# 2. Set `change = {"lr": 0.0003}`. Does the transition move with the fit?
# 3. Set `change = {"shift": 0}`. Images stay where they are, and are fitted
#    sooner. Is the transition sharper?

# %% tags=["hide-input"]
study.stamp()
