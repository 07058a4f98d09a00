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
# # Width, depth and optimizer
#
# *Section 3.3 and appendix H.2 of {cite:t}`sharon2024`: figures 8 to 10 and 12
# to 16.*
#
# ```{note}
# The architecture is the paper's, a pre-activation ResNet18. All profiles but
# `paper` have narrower layers, a pre-activation network of 34 layers in place
# of ResNet50, and small images of MNIST digits in place of CIFAR-10: fewer of
# them, for fewer epochs, at higher learning rates.
# ```
#
# The first layer of a wide network, trained by Adam long after it fits all its
# labels, comes back to where it started, says the paper. Does it also in a
# narrower network, in a deeper one, or with another optimizer?

# %% tags=["hide-cell"]
import pandas as pd
import torch
from torch.nn.functional import adaptive_avg_pool2d

from repalign import models, plots, study
from repalign.machine import devices
from repalign.models.resnet import PreActResNet
from repalign.papers import sharon
from repalign.study.known import above_where_known as above

study.begin("sharon/02_width_depth_optimizer")

# %% [markdown]
# ## The idea
#
# All optimizers of this page are one rule. Let $w_t$ be a weight after $t$
# steps and $L$ the loss of a batch. With a learning rate $\eta$, a momentum
# $\beta$ and a weight decay $\lambda$,
#
# $$
# g_t = \frac{\partial L}{\partial w}(w_t) + \lambda w_t , \qquad
# m_t = \beta m_{t-1} + g_t , \qquad w_{t+1} = w_t - \eta\, m_t .
# $$
#
# SGD has $\beta = 0$, SGD with momentum $\beta = 0.9$. Adam takes means in
# place of sums and divides $m_t$ by the root of a mean of $g_t^2$: its steps
# are about as long for weights with small gradients as for others. Networks
# that fit their labels have small gradients. So optimizers may differ most in
# what they do then, and $\lambda w_t$ may count most then.
#
# CKA compares a layer at two epochs, as on the first page of this chapter: 1
# if both see the same similarities between images. Its numbers, again:
#
# - *return*: the mean CKA of late epochs with initialization, minus that with
#   the best epoch before perfect fitting; positive if a layer comes back;
# - *novelty* of an epoch $s$: from $s/3$ to $3s$, the mean CKA of pairs on the
#   same side of $s$ ($s$ counts as after), minus that of pairs across it. It
#   peaks where a block of similar epochs ends; we divide by its median;
# - *late block*: the mean CKA among late epochs, minus late with earlier ones.
#
# ## A toy whose answer is known
#
# Let $a$ and $b$ be centered and orthonormal. A layer is $X_t = (a, w_t b)$
# with $w_0 = 1$, and the loss does not depend on $w$. With decay, SGD makes
# $w_t = (1 - \eta\lambda)^t$, and CKA of $X_t$ with $X_0$ is $(1 + w_t^2) /
# \sqrt{2 (1 + w_t^4)}$. It falls from 1 to $1/\sqrt2$.

# %%
a, b = torch.tensor([[1.0, -1, 1, -1], [1, 1, -1, -1]]) / 2
weight, kept, known = torch.nn.Parameter(torch.ones(())), sharon.Kernels(), []
descent = torch.optim.SGD([weight], lr=0.1, weight_decay=0.5)
for t in range(61):
    if t % 20 == 0:
        kept.keep({"toy": torch.stack([a, weight.detach() * b], 1)})
        w = (1 - 0.1 * 0.5) ** t
        known.append((1 + w**2) / (2 * (1 + w**4)) ** 0.5)
    weight.grad = torch.zeros(())
    descent.step()
toy = dict(steps=range(0, 61, 20), known=known, measured=kept.cka()["toy"][0])
study.table(pd.DataFrame(toy), "CKA with the start, while a weight decays.")

# %% [markdown]
# ## The claims of this page
#
# Layers are the first convolution, four blocks and the last layer. Batch norm
# gathers its statistics while weights change. *Recomputed* ones are those of
# all training images for the weights as they are.

# %% tags=["hide-input"]
study.claims()

# %% [markdown]
# ## Settings

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"runs": 2}: replaces values in the table below

# %% tags=["hide-input"]
same = dict(momentum=0.9, decay=0.0005, batch=128)
small = dict(same, images="mnist", pixels=10, widths=(4, 8, 16), width=8,
             deeper=4, adam=0.001, sgd=0.1, sgd_momentum=0.01,
             shift=0)  # fmt: skip
tiny = dict(small, pixels=8, widths=(2, 4, 8), width=4, adam=0.002, batch=64)
s = study.settings(
    profile, change,
    smoke=dict(tiny, n=40, n_test=40, epochs=9, looks=6, probes=30, part=30,
               runs=1, widths=(4, 8, 16)),
    laptop=dict(tiny, n=128, n_test=300, epochs=60, looks=18, probes=150,
                part=150, runs=2, widths=(4, 8, 16)),
    desktop=dict(small, n=1000, n_test=1000, epochs=120, looks=40, probes=500,
                 part=500, runs=6),
    paper=dict(same, images="cifar10", pixels=32, widths=(32, 42, 52, 64),
               width=64, deeper="resnet50", adam=0.0001, sgd=0.01,
               sgd_momentum=0.01, shift=4, n=50_000, n_test=10_000,
               epochs=4000, looks=4001, probes=2048, part=512, runs=3),
)  # fmt: skip
where = devices.device(device)
s

# %% [markdown]
# `widths` are those of the first block in figures 8 to 10; later blocks have
# 2, 4 and 8 times as many filters. Figures 12 to 16 have `width`. Each block
# of ResNet18 has two residual units; `deeper` units make 34 layers of it.
# `adam`, `sgd` and `sgd_momentum` are rates. The paper gives the first two,
# not the third, momentum, decay or batch size: we take usual values. Images
# move by up to `shift` pixels; `paper` mirrors half of them. There are `looks`
# at a network, evenly spread on a log axis (`paper`: one each epoch). CKA is
# that of `probes` test images, as a mean over groups of `part`. An interval
# needs several `runs`.
#
# ## Data
#
# Pixels are from $-1$ to 1; small images are averages. Each run draws its own
# images (`paper` takes all), wrong labels and weights. In a run, networks of
# the same shape start from the same weights, and the same labels are wrong in
# all.

# %%
draws = sharon.train_test(s.images, s.n, s.n_test, study.seeds(s.runs))
used = [one[k] for one in draws for k in ("sample", "test")]
for one in used[:2]:
    study.uses(one)
seen = {"": adaptive_avg_pool2d(used[0].x[:10], s.pixels)}
study.show(plots.strips(seen), "sharon.images", "Ten images, as used.")

# %% [markdown]
# ## Run
#
# Every kind of network is a row of the table `KINDS`. `watched` trains it,
# measures errors at each logged epoch and keeps the Gram matrix of each layer.

# %%
LAYERS = ["first layer", *(f"block {k}" for k in range(1, 5)), "last layer"]
FIRST = LAYERS[0]
adam = dict(noise=0.0, width=s.width, units=2, optimizer="adam", lr=s.adam)
inert = dict(adam, optimizer="momentum", lr=s.sgd_momentum)
KINDS = {f"width {k}": dict(adam, noise=0.2, width=k)
         for k in (*s.widths, s.width)}  # fmt: skip
KINDS |= {
    "deeper": dict(adam, noise=0.2, units=s.deeper),
    "Adam": adam,
    "momentum": inert,
    "momentum, noise": dict(inert, noise=0.2),
    "SGD, noise": dict(adam, noise=0.2, optimizer="sgd", lr=s.sgd),
    "decay": dict(adam, weight_decay=s.decay),
}


def network(width, units, channels, seed):
    """Two units per block: ResNet18. Its six layers are probed."""
    if units == "resnet50":
        kind = dict(small_images=True, channels=channels, seed=seed)
        net = models.imagenet("resnet50", 10, **kind)
        net.probed = ("conv1", *(f"layer{k}" for k in range(1, 5)), "fc")
        return net
    size = dict(widths=[width * 2**k for k in range(4)], blocks=units)
    size |= dict(stem=(width, 3, 1), channels=channels, last_norm=False)
    net = PreActResNet(10, **size)
    models.initialize(net, "torch", seed=seed)
    return net


def one_run(sample, test, seed, kind, pixels, shift, how, device):
    """Errors and maps of one network."""
    how, colors = how | kind, sample.x.shape[1]
    task = dict(pixels=pixels, noise=how.pop("noise"), device=device)
    both = sharon.noisy_task(sample, test, seed=seed, **task)
    net = network(how.pop("width"), how.pop("units"), colors, seed)
    how |= dict(augment=sharon.usual(colors, shift), seed=seed, names=LAYERS)
    return sharon.watched(net.to(device), *both, **how)._asdict()


how = {k: getattr(s, k) for k in ("epochs", "looks", "probes", "part")}
how |= dict(batch_size=s.batch, momentum=s.momentum, kinds=["plain"])
fixed = dict(pixels=s.pixels, shift=s.shift, how=how, device=str(where))
cells = [dict(d, kind=kind) for kind in KINDS.values() for d in draws]
nets = study.sweep(one_run, cells, **fixed)

# %% [markdown]
# ## Numbers of the maps
#
# A run that never fits has no return. It is left out there, and the share of
# the others is one more effect. (`smoke`: any error is perfect.)

# %% tags=["hide-input"]
perfect = 1.0 if s.profile == "smoke" else 0.005
names = [(name, d["seed"]) for name in KINDS for d in draws]
found = [dict(row, network=name, seed=seed)
         for (name, seed), net in zip(names, nets)
         for row in sharon.described(
             net["errors"], net["maps"], perfect=perfect)
]  # fmt: skip
u = pd.DataFrame(found).set_index(["network", "layer", "seed"]).sort_index()
peak = u.groupby(["network", "seed"])["peak"].mean()  # over six layers
first = u.xs(FIRST, level="layer")
shown = first.groupby("network", sort=False).mean(numeric_only=True)
shown = shown.loc[list(KINDS)].assign(CKA=1 - shown["change"])
shown = shown[["start", "best", "highest", "last", "CKA", "returned"]]
text = "Mean over runs (start of perfect fitting, return: those that fit). "
text += "Test errors: best, highest since then, last. First layer: mean CKA "
study.table(shown, text + "over all pairs of epochs, and return.")

# %% [markdown]
# ## Figures 8 to 10: width
#
# The colors of a layer are the same in all figures of this page.

# %% tags=["hide-input"]
swap = f"{len(used[0])} {s.images} images of {s.pixels} pixels, "
swap += f"{s.epochs} epochs, width"
whole = s.images, s.width, s.epochs, len(used[0])
swap = "" if whole == ("cifar10", 64, 4000, 50_000) else swap
firsts = dict(zip(KINDS, nets[:: s.runs]))
span = sharon.shared_limits(*(net["maps"]["plain"] for net in firsts.values()))


def draw(id, figure, name, says, width=s.width):
    """A figure of the paper: the first run of a kind of network."""
    net, start = firsts[name], first["start"][name].iloc[0]
    at = [row["epoch"] for row in net["errors"]][::2]
    maps, limits = net["maps"]["plain"], dict(mark=start, limits=span)
    fig = sharon.with_errors(maps, at, net["errors"], **limits)
    text = f"{figure}, first of {s.runs} runs: CKA of a layer at all pairs of "
    text += "epochs; errors. White: perfect fitting starts. By the paper, "
    text += f"{says}." + (f" {swap} {width}." if swap else "")
    study.show(fig, f"sharon.{id}", text, table=sharon.layer_table(maps, at))


def about(width, more="", **measured):
    """What stands in, the data, and numbers that help to read a card."""
    instead = f"{swap} {width}{more}" if swap else ""
    return dict(stand_in=instead, data=used, measured=measured)


narrow, wide = (f"width {k(s.widths)}" for k in (min, max))
for width in s.widths:
    says = "the first layer ends close to its start if the network is wide"
    title = "Figure 2 again" if width == 64 else "Figures 8 to 10"
    title += f", width {width}, label noise 20%"
    draw(f"fig8-10.{width}", title, f"width {width}", says, width)
back, fall = first["returned"], first["highest"] - first["last"]
rest = about(" and ".join(map(str, s.widths)))
effects = {f"{wide}: initialization less best": back[wide]}
effects[f"{narrow}: best less initialization"] = -back[narrow]
effects[f"{wide} less {narrow}"] = back[wide] - back[narrow]
study.claim("sharon.fig8-10", effects=above(effects), **rest)
rise, both = first["highest"] - first["best"], (narrow, wide)
effects = {f"{k}: highest less best": rise[k] for k in both}
effects |= {f"{k}: highest less last": fall[k] for k in both}
effects = above(effects, 0.01)
study.claim("sharon.fig8-10.descent", effects=effects, **rest)

# %% [markdown]
# ## Figure 12: depth

# %% tags=["hide-input"]
says = "the last layer ends in a block that is unlike all before"
draw("fig12", "Figure 12, deeper, label noise 20%", "deeper", says)
apart = u["set_apart"]["deeper"]
means = apart.groupby("layer").mean().to_dict()
rest = about(s.width, ", 34 layers in place of ResNet50", late_block=means)
effects = above({"less block 2": apart["last layer"] - apart["block 2"]})
study.claim("sharon.fig12", effects=effects, **rest)

# %% [markdown]
# ## Figures 13 to 15: SGD

# %% tags=["hide-input"]
says = "the first layer keeps a high CKA, and blocks are clearer than by Adam"
three = {13: "momentum", 14: "momentum, noise", 15: "SGD, noise"}
for k, name in three.items():
    title = f"Figure {k}, {name.replace('noise', 'label noise 20%')}"
    title = title.replace("momentum", "SGD with momentum")
    draw(f"fig{k}", title, name, says)
high = {k: 1 - first["change"][k] for k in three.values()}
rest = about(s.width, test_error={k: first["last"][k].mean() for k in high})
study.claim("sharon.fig13-15.first", effects=above(high, 0.9), **rest)
with_noise = peak["momentum, noise"] - peak[f"width {s.width}"]
effects = {"label noise 20%: momentum less Adam": with_noise}
effects["no noise: momentum less Adam"] = peak["momentum"] - peak["Adam"]
more = [of.groupby("network").mean().to_dict() for of in (peak, u["largest"])]
rest = about(s.width, over_median=more[0], largest=more[1])
study.claim("sharon.fig13-15.blocks", effects=above(effects), **rest)

# %% [markdown]
# ## Figure 16: weight decay

# %% tags=["hide-input"]
says = "the first layer is darker than without decay"
draw("fig16", "Figure 16, Adam with decay, no label noise", "decay", says)
draw(
    "fig16.without",
    "The same without decay",
    "Adam",
    "the first layer is brighter than with decay",
)
more = first["change"]["decay"] - first["change"]["Adam"]
effects = {"mean CKA, without decay less with": more}
effects["return, without decay less with"] = back["Adam"] - back["decay"]
study.claim("sharon.fig16", effects=above(effects), **about(s.width))

# %% [markdown]
# ## What differs from the paper, and why
#
# - Images, widths, rates and length of training: see the settings. Where the
#   paper's widths differ by a factor of two, ours differ by four.
# - A bottleneck network like ResNet50 needs width. Ours has more of the units
#   of ResNet18. Errors with statistics of training are dashed.
# - The paper says that narrow networks, and those with decay, show less of the
#   return; that it is negative, or smaller, is how we read this.
# - A layer that changes at first and then stops has a high novelty over its
#   median, too. `measured` has the novelty that is not divided.
#
# ## Try it
#
# 1. Set `change = {"widths": (4, 32)}`. Does the return grow with width?
# 2. Set `change = {"decay": 0.01}`. How far does the first layer go?

# %% tags=["hide-input"]
study.stamp()
