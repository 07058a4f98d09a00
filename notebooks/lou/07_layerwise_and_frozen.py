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
# # Layer by layer, and frozen
#
# *Appendix F of {cite:t}`lou2022`: algorithm 1, figures 16 to 18, table 4.*
#
# ```{note}
# The data are the paper's: MNIST and CIFAR-10. In all profiles but `paper`
# images are fewer, and many networks narrower: captions and cards say which.
# ```
#
# Training all layers at once makes the tangent features of some hidden layers
# align with the labels. What if layers are trained one after the other, each
# on a goal of its own? And what if only the last layer is trained at all?

# %% tags=["hide-cell"]
import pandas as pd
import torch
from torch import nn

from repalign import data, features, models, plots, study, tangent, train
from repalign.kernels import cka
from repalign.machine import devices

study.begin("lou/07_layerwise_and_frozen")

# %% [markdown]
# ## The idea
#
# Let $z_l(x)$ be what layer $l$ of $L$ computes from an image $x$, before its
# activation function $\phi$. Its *forward kernel* has entries $F_l(x_i, x_j) =
# \phi(z_l(x_i))^\top \phi(z_l(x_j))$. Algorithm 1, *layer-wise feature
# maximization* (LFM), trains one hidden layer after the other. With
# $\delta_{ij} = 1$ if images $i$ and $j$ are of one class, else 0, layer $l$
# minimizes on each minibatch $B$
#
# $$
# \mathcal{L}(B) = \sum_{i, j \in B} \bigl( F_l(x_i, x_j) - \tfrac12
# \delta_{ij} \bigr)^2 .
# $$
#
# Its features, scaled to length one, are then the input of the next layer. The
# last layer is trained on cross-entropy. So no layer learns what later ones
# need.
#
# The *alignment* of layer $l$ is the cosine of the angle between two centered
# kernels: that of its *tangent features*, the gradients of all outputs with
# respect to its weights, and that of the labels. The paper's is *stacked*: a
# row for each image and output. For $o$ classes of equal size it is at most
# $1/\sqrt{o(o-1)}$ in the last layer, by definition. The *class-traced* one
# adds up the kernels of the outputs first, and has no such cap.
#
# ## A toy whose answer is known
#
# A hundred images, ten of each class; the loss is a mean over pairs, of which
# a tenth are of one class. Features of zero miss those by one half: the loss
# is $0.1 / 4 = 0.025$. Orthogonal classes of squared length $\tfrac12$ have a
# loss of 0. One such feature for all images is wrong in nine tenths of pairs:
# 0.225. A layer that stays at 0.025 has learned nothing.


# %%
def match(layer, x, y):
    """Algorithm 1: a loss that sees the layer; its mean for each image."""
    phi = layer(x)
    return (phi @ phi.T - 0.5 * (y[:, None] == y)).square().mean(1)


y = torch.arange(10).repeat_interleave(10)
toys = {"zero": 0 * y[:, None], "classes": data.one_hot(y), "same": y**0}
toys = [0.5**0.5 * phi.float().reshape(100, -1) for phi in toys.values()]
toys = [float(match(nn.Identity(), phi, y).mean()) for phi in toys]
toys = pd.DataFrame(dict(known=[0.025, 0.0, 0.225], measured=toys))
toys.index = pd.Index(["zero", "classes", "the same for all"], name="features")
study.table(toys, "Loss of three kinds of features.")

# %% [markdown]
# ## The claims of this page

# %% tags=["hide-input"]
study.claims(
    dict(id="lou.fig16", paper="MNIST: LFM has lower accuracy, lower "
        "alignment, and no single peak (fig. 16).",
        paper_value={"LFM, width 32": "93.6%", "LFM, width 256": "95.9%",
                     "end to end, width 32": "96.9%"},
        criterion="MNIST: test accuracy end to end minus layer-wise at the "
        "same width above 0; largest stacked alignment end to end minus "
        "layer-wise above 0; share of layers within 5% of the largest, "
        "layer-wise minus end to end, above 0"),
    dict(id="lou.fig17", paper="CIFAR-10: LFM generalizes worse than end to "
        "end; a wider one is a little better (fig. 17).",
        paper_value={"LFM, width 256": "48.3%", "LFM, width 1024": "49.2%",
                     "end to end, width 256": "56.7%"},
        criterion="CIFAR-10: test accuracy end to end minus layer-wise at the "
        "same width above 0; wider minus narrower layer-wise network above 0"),
    dict(id="lou.fig18", paper="Frozen layers: alignment evolves although "
        "forward features do not (fig. 18).",
        criterion="all but the last layer frozen: largest stacked alignment "
        "over hidden layers, end minus start, above 0, while forward kernels "
        "stay as they were to 1e-6 (their CKA with themselves at the start)"),
    dict(id="lou.fig18.noise", paper="Less noise in the last layer appears to "
        "shift the peak toward the center (fig. 18).",
        criterion="all but the last layer frozen: distance of the peak layer "
        "from the middle, noise scale 0.01 minus noise scale 1, below 0"),
    dict(id="lou.tab4", paper="Frozen networks have to be very wide to come "
        "near those that learn features (table 4).",
        criterion="all but the last layer frozen: training accuracy of the "
        "widest network minus that of the narrowest above 0, and test "
        "accuracy too"),
)  # fmt: skip

# %% [markdown]
# *CKA* is the same cosine, here of a layer's forward kernels at two times. The
# *middle* of layers 1 to $L$ is $(L + 1)/2$; the *peak* is the layer with the
# largest stacked alignment.
#
# ## Settings

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"runs": 2}: replaces values in the table below

# %% tags=["hide-input"]
same = dict(layers=10, lr_lfm=0.01, slope=0.2, lr=0.003, decay=5e-4,
            patience=3, noise=(0.01, 1.0), n_seen=100)  # fmt: skip
s = study.settings(
    profile, change,
    smoke=dict(same, layers=4, n=200, n_test=100, n_seen=40, batch=50,
               mnist=(8, 16), cifar10=(8, 16), frozen=(16, 32), fig18=32,
               epochs=2, epochs_lfm=2, looks=3, runs=2),
    laptop=dict(same, n=2000, n_test=2000, batch=64, mnist=(32, 128),
                cifar10=(32, 128), frozen=(64, 256, 512), fig18=512,
                epochs=15, epochs_lfm=10, looks=5, runs=3),
    desktop=dict(same, n=8000, n_test=5000, batch=128, mnist=(32, 256),
                 cifar10=(64, 256), frozen=(256, 1024, 2048), fig18=2048,
                 epochs=30, epochs_lfm=20, looks=6, runs=6),
    paper=dict(same, n=50_000, n_test=10_000, batch=128, mnist=(32, 256),
               cifar10=(256, 1024), frozen=(2048, 10_000, 75_000), fig18=2048,
               epochs=100, epochs_lfm=100, looks=30, runs=5),
)  # fmt: skip
where = devices.device(device)
s

# %% [markdown]
# `mnist` and `cifar10` are widths of LFM, the first of them also that of the
# network trained end to end; `frozen` are widths of table 4. LFM keeps a tenth
# of its `n` images for validation: a layer is done when the validation loss
# has not fallen for `patience` epochs, or after `epochs_lfm`. LFM trains by
# Adam at `lr_lfm`, end to end is momentum 0.9 at `lr`; both rates are the
# paper's. Frozen networks train like the latter, without weight `decay`.
# Alignment is that of `n_seen` training images. The paper does not give batch
# sizes, epochs, weight decay, images seen, runs, the layers of figures 16 and
# 17, or how frozen networks are trained.
#
# **The `slope`** of LeakyReLU below 0 is not given either. In pilot runs at
# the paper's rate a slope of 0.01 left the first layer of width 32 at a loss
# of 0.025: its features were near zero. With a slope of 0.2 it learned.
#
# ## Data
#
# Each run draws its own images and first weights (normal, of variance 2 over
# the number of inputs). Pixels have mean 0 and deviation 1 over the training
# images. LFM then scales each image to length one.

# %%
C, parts, names = 10, ("train", "test"), ("mnist", "cifar10")
draws = {
    name: [dict(seed=seed, images=[
        data.load(name, part, n, seed=seed, shrink=True)
        for part, n in zip(parts, (s.n, s.n_test))
    ]) for seed in study.seeds(s.runs)] for name in names
}  # fmt: skip
firsts = {name: draws[name][0]["images"] for name in names}
for one in [*firsts["mnist"], *firsts["cifar10"]]:
    study.uses(one)
strips = plots.strips({k: v[0].x[:10] for k, v in firsts.items()})
study.show(strips, "lou.layerwise.images", "Ten images of each set.")

# %% [markdown]
# ## Run
#
# One cell trains one network: `layer-wise`, `end to end`, or `normalized`. The
# last is not in the paper: a network as in LFM, with features of length one,
# trained end to end by Adam. "Midway" is after half of the layers of LFM, and
# after one epoch otherwise.


# %%
class Unit(nn.Module):
    """Features of length one; where ``held``, gradients see a constant."""

    held = False

    def forward(self, z):
        norm = z.norm(dim=1, keepdim=True).clamp(min=1e-12)
        return z / (norm.detach() if self.held else norm)


def prepared(images, device):
    """Training and test images with mean 0 and deviation 1, and labels."""
    x, new = (one.x.to(device) for one in images)
    mean, deviation = x.mean(), x.std()
    y, new_y = (one.y.to(device) for one in images)
    return (x - mean) / deviation, y, (new - mean) / deviation, new_y


def hierarchy(net, x, y, **when):
    """Both alignments of every layer; 0 where a layer is dead."""
    for kind, outputs in (("stacked", "all"), ("class-traced", "trace")):
        found = tangent.label_alignment(net, x, y, outputs).values()
        for layer, value in enumerate(found, start=1):
            value = float(value.nan_to_num())
            yield dict(when, kind=kind, layer=layer, alignment=value)


def layerwise(net, x, y, how, look):
    """Algorithm 1; every tenth image is for validation."""
    kept = torch.arange(len(x), device=x.device) % 10 > 0
    z, hidden = net[0](x), len(net) // 2 - 1
    for k in range(1, hidden + 1):
        fc, (act, unit) = net[2 * k - 1], net[2 * k]
        layer, valid = nn.Sequential(fc, act), (z[~kept], y[~kept])
        how["loss"] = train.SeesModel(match)
        train.fit(layer, z[kept], y[kept], **how, test=valid)
        z = unit(train.predict(layer, z))
        if k == (hidden + 1) // 2:
            look(net, 1)
    how["loss"], valid = "cross_entropy", (z[~kept], y[~kept])
    train.fit(net.head, z[kept], y[kept], **how, test=valid)


def one_network(images, seed, data_set, way, width, p, device):
    """Accuracies of a network, and its alignments at some stages."""
    x, y, new, new_y = prepared(images, device)
    size = dict(depth=p["layers"] - 1, width=width, seed=seed)
    net = models.MLP(x[0].numel(), C, **size).to(device)
    for i in range(0, len(net), 2) if way != "end to end" else ():
        part = nn.LeakyReLU(p["slope"]) if i else nn.Flatten()
        net[i] = nn.Sequential(part, Unit())
    rows, few, stages = [], p["n_seen"], ("start", "midway", "end", "held")

    def look(net, k):
        rows.extend(hierarchy(net, x[:few], y[:few], stage=stages[k]))

    how = dict(batch_size=p["batch"], seed=seed, optimizer="adam")
    look(net, 0)
    if way == "layer-wise":
        how |= dict(lr=p["lr_lfm"], epochs=p["epochs_lfm"])
        layerwise(net, x, y, dict(how, patience=p["patience"]), look)
    else:
        if way == "end to end":
            how |= dict(optimizer="momentum", weight_decay=p["decay"])
        how |= dict(lr=p["lr"], epochs=p["epochs"], at=(1,))
        how["measure"] = lambda net, epoch: epoch == 1 and look(net, 1)
        train.fit(net, x, y, **how)
    look(net, 2)
    for part in net.modules():
        part.held = True
    look(net, 3)
    both = dict(trained=(x, y), tested=(new, new_y))
    return [*rows, {k: train.accuracy(net, *v) for k, v in both.items()}]


# %% [markdown]
# A second kind of cell freezes all layers but the last. What they compute does
# not change, so it is computed once. The last layer's first weights are drawn
# once and multiplied by each `noise` scale. No layer has a bias.


# %%
def frozen(images, seed, width, p, device):
    """Best accuracies; if this is figure 18's width, alignments, too."""
    x, y, new, new_y = prepared(images, device)
    size = dict(depth=p["layers"] - 1, width=width, seed=seed)
    net = models.MLP(x[0].numel(), C, bias=False, **size).to(device)
    body, rows, few = nn.Sequential(*list(net)[:-1]), [], p["n_seen"]
    z, new_z = train.predict(body, x), train.predict(body, new)
    weight, before = net.head.weight.detach().clone(), None
    at = train.log_steps(len(x), p["batch"], p["epochs"], p["looks"])
    batches = -(-len(x) // p["batch"])
    for noise in p["noise"]:
        net.head.weight.data = noise * weight
        before = before or features.extract(net, x[:few])

        def look(_, epoch, noise=noise):
            step = round(epoch * batches)
            if step in at and width == p["fig18"]:
                when = dict(noise=noise, step=step)
                rows.extend(hierarchy(net, x[:few], y[:few], **when))

        history = train.fit(
            net.head, z, y, optimizer="momentum", lr=p["lr"], seed=seed,
            epochs=p["epochs"], batch_size=p["batch"], full_train=True,
            test=(new_z, new_y), measure=look, at_steps=at,
        )  # fmt: skip
        after = features.extract(net, x[:few])
        same = min(float(cka(before[k].double(), after[k].double()))
                   for k in after)  # fmt: skip
        best = max(history.train_accuracy), max(history.test_accuracy)
        best = dict(zip(("trained", "tested"), best), forward=same)
        rows.append(dict(noise=noise, **best))
    return rows


p = "layers lr_lfm slope lr decay patience noise n_seen batch epochs looks"
p = {k: getattr(s, k) for k in (*p.split(), "epochs_lfm", "fig18")}
nets = [("layer-wise", 0), ("layer-wise", 1), ("end to end", 0)]
configs = [
    dict(one, way=way, width=getattr(s, name)[k], data_set=name)
    for name in names for way, k in [*nets, ("normalized", 0)]
    for one in draws[name]
]  # fmt: skip
fixed = dict(p=p, device=str(where))
wide = [dict(one, width=w) for w in s.frozen for one in draws["mnist"]]
runs = study.sweep(one_network, configs, **fixed)
ice = study.sweep(frozen, wide, **fixed)

# %% [markdown]
# ## Figures 16 and 17

# %% tags=["hide-input"]
few = (
    f"{s.layers} layers, {len(firsts['mnist'][0])} training images, {s.runs} "
)
few += "runs (mean, standard error). Dashed: the cap of the last layer."
runs["network"] = runs["way"] + ", " + runs["width"].astype(str)
kinds, by = runs.dropna(subset="layer"), {}


def panels(frame, **how):
    """A row for each alignment, and the cap in the stacked one."""
    how = dict(x="layer", hue="stage", labels={"stage": ""}) | how
    fig = plots.curves(frame, y="alignment", row="kind", height=2.3, **how)
    for ax in fig.axes:
        ax.set_ylim(bottom=0)
        if ax.get_title().startswith("stacked"):
            ax.axhline((C * (C - 1)) ** -0.5, color="0.5", lw=1, ls="--")
    return fig


for name, id, (a, b) in zip(names, ("16", "17"), (s.mnist, s.cifar10)):
    part = kinds.query("data_set == @name and way != 'normalized'")
    drawn = part[part["stage"] != "held"]
    text = f"Figure {id}: {name}, width behind the way of training. {few} By "
    text += "the paper, only the right network has one clear peak, a high one."
    fig = panels(drawn, col="network")
    study.show(fig, f"lou.fig{id}", text, table=drawn)
    acc = runs[runs["data_set"] == name].dropna(subset="tested")
    acc = acc.pivot(index="seed", columns="network", values="tested")
    lfm, full = acc[f"layer-wise, {a}"], acc[f"end to end, {a}"]
    effects = {"accuracy, end to end less layer-wise": study.above(full - lfm)}
    ends = part.query("stage == 'end' and kind == 'stacked' and width == @a")
    ends = ends.pivot(index=["seed", "way"], columns="layer")["alignment"]
    top = ends.max(axis=1).unstack()
    near = ends.ge(0.95 * ends.max(axis=1), axis=0).mean(axis=1).unstack()
    if name == "mnist":
        more = top["end to end"] - top["layer-wise"]
        flat = near["layer-wise"] - near["end to end"]
        effects["largest alignment, the same"] = study.above(more)
        effects["layers near it, the other way"] = study.above(flat)
    else:
        wider = study.above(acc[f"layer-wise, {b}"] - lfm)
        effects[f"layer-wise, width {b} less {a}"] = wider
    found = dict(accuracy=acc, largest=top, near=near)
    by["measured"] = {k: v.mean().to_dict() for k, v in found.items()}
    real = {"mnist": (32, 256), "cifar10": (256, 1024)}[name]
    swap = f"widths {a}, {b} in place of {real[0]}, {real[1]}"
    by["stand_in"] = "" if (a, b) == real else swap
    by["data"] = [one for draw in draws[name] for one in draw["images"]]
    by["size"] = ("n", name, "layers", "epochs", "epochs_lfm", "runs")
    study.claim(f"lou.fig{id}", effects=effects, **by)

# %% [markdown]
# **Beyond the paper: is it the scaling?** The paper leaves open whether low
# alignment under LFM comes from scaling features to length one. Two checks, at
# the smaller width. `normalized` scales features, too, but trains end to end.
# And "held" takes the lengths as constants when gradients are computed: the
# outputs are the same, but no gradient is lost by the scaling. If the scaling
# is the reason, `normalized` is as low as LFM, and "held" raises both.

# %% tags=["hide-input"]
small = kinds[kinds["width"].isin([s.mnist[0], s.cifar10[0]])]
small = small[small["stage"].isin(["end", "held"])]
small = small[(small["way"] != "end to end") | (small["stage"] == "end")]
how = dict(hue="way", style="stage", col="data_set", labels={"way": ""})
text = f"The end of training, smaller widths. {few}"
study.show(panels(small, **how), "lou.fig16.held", text, table=small)

# %% [markdown]
# ## Figure 18
#
# Layers at the start and at the end of training the last one, then all steps.

# %% tags=["hide-input"]
cold = ice.dropna(subset="layer").assign(stage="between")
cold["scale"] = cold["noise"].map("noise scale {:g}".format)
cold.loc[cold["step"] == 0, "stage"] = "start"
cold.loc[cold["step"] == cold["step"].max(), "stage"] = "end"
drawn = cold[cold["stage"] != "between"]
text = f"Figure 18: mnist, frozen but for the last layer, width {s.fig18}. "
text += f"{few} If the claims hold, the largest alignment rises, and the peak "
text += "on the left is closer to the middle."
study.show(panels(drawn, col="scale"), "lou.fig18", text, table=drawn)
steps = cold[cold["kind"] == "stacked"]
fig = panels(steps, x="step", hue="layer", col="scale", labels={})
fig.axes[0].set_xscale("symlog")
fig.axes[1].set_xscale("symlog")
text = "The stacked alignments of figure 18 through training."
study.show(fig, "lou.fig18.steps", text, table=steps)
ends = drawn[drawn["kind"] == "stacked"].pivot(
    index="seed", columns=["noise", "stage", "layer"], values="alignment"
)
best = ice.dropna(subset="tested")
effects, far, peaks = {}, {}, {}
for k in s.noise:
    a, b = (
        ends[k, stage].drop(columns=s.layers) for stage in ("start", "end")
    )
    rise = study.above(b.max(axis=1) - a.max(axis=1))
    effects[f"noise {k:g}, largest, end less start"] = rise
    mine = best.query("noise == @k and width == @s.fig18")["forward"]
    effects[f"noise {k:g}, forward CKA"] = study.above(mine, 1 - 1e-6)
    peaks[f"peak, noise {k:g}"] = (peak := ends[k, "end"].idxmax(axis=1))
    far[k] = (peak - (s.layers + 1) / 2).abs()
by["data"] = [one for draw in draws["mnist"] for one in draw["images"]]
by["size"] = ("n", "fig18", "layers", "noise", "epochs", "runs")
swap = f"width {s.fig18} in place of 2048"
by["stand_in"] = "" if s.fig18 == 2048 else swap
acc = best[best["width"] == s.fig18].groupby("noise")["tested"].mean()
by["measured"] = {"test accuracy by noise": acc.to_dict()}
study.claim("lou.fig18", effects=effects, **by)
by["measured"] = {k: v.tolist() for k, v in peaks.items()}
effect = study.below(far[0.01] - far[1.0])
effects = {"distance from the middle, 0.01 less 1": effect}
study.claim("lou.fig18.noise", effects=effects, **by)

# %% [markdown]
# ## Table 4

# %% tags=["hide-input"]
best = best[best["noise"] == 1]
table = best.groupby("width")[["trained", "tested"]].mean()
theirs = pd.DataFrame(
    {"trained": [0.926, 0.964, 0.976], "tested": [0.919, 0.956, 0.964]},
    index=pd.Index([2048, 10_000, 75_000], name="width"),
)
both = table.join(theirs, how="outer", lsuffix=", ours", rsuffix=", paper's")
text = "Table 4: best accuracy of frozen networks on training and test images."
study.table(both, f"{text} Mean of {s.runs} runs; the paper's, of one.")

# %% tags=["hide-input"]
a, b = min(s.frozen), max(s.frozen)
wide = best.pivot(index="seed", columns="width", values=["trained", "tested"])
effects = {
    f"{k}, width {b} less {a}": study.above(wide[k][b] - wide[k][a])
    for k in ("trained", "tested")
}
by["size"] = ("n", "frozen", "layers", "epochs", "runs")
swap = f"widths {a} to {b} in place of 2048 to 75,000"
by |= dict(stand_in="" if b == 75_000 else swap, measured=table.to_dict())
study.claim("lou.tab4", effects=effects, **by)

# %% [markdown]
# ## What differs from the paper, and why
#
# - Fewer images and, but for figure 18 at `desktop`, narrower networks.
# - Our reading of algorithm 1: the kernel of layer $l$ has the features of
#   layer $l$ itself (the paper prints $z_{l-1}$), and scaling to length one is
#   a part of the network, through which gradients go.
# - The distance from the middle can tie: a peak at layer 1 in both networks of
#   a run gives a difference of 0.
#
# ## Try it
#
# 1. Set `change = {"slope": 0.01}`. Which layers still learn?
# 2. Set `change = {"lr": 0.0003}`. Does the noise in the last layer matter
#    more when that layer learns less?
# 3. Set `change = {"layers": 4}`. Is LFM closer to end to end?

# %% tags=["hide-input"]
study.stamp()
