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
# # At which layer does alignment peak?
#
# *Section 3.4 and appendix E of {cite:t}`lou2022`: figures 3, 8, tables 1–3.*
#
# ```{note}
# MNIST, Fashion-MNIST and networks of width 100 are the paper's. All profiles
# but `paper` use a part of the images, smaller batches and fewer depths, stop
# at a training loss, and leave out CIFAR-10.
# ```
#
# In a deep network the tangent features of one layer fit the labels best. The
# page before says where that layer should be. Here we measure where it is.

# %% tags=["hide-cell"]
import numpy as np
import pandas as pd
import torch

from repalign import data, models, plots, propagation, study, tangent, train
from repalign.alignment import unit_rows
from repalign.machine import devices
from repalign.papers import lou

study.begin("lou/03_scaling_law")

# %% [markdown]
# ## The idea
#
# Let $\Psi_l$ be the tangent features of layer $l$: derivatives of all outputs
# of a network, for all images, by the weights of that layer. Let $\tilde Y$ be
# the vector of all labels, one-hot and centered, and $C$ the matrix that
# centers. The *alignment* of a layer, and the *peak* of $L$ layers, are
#
# $$
# A_l = \frac{\lVert \Psi_l \tilde Y \rVert^2}{\lVert C \Psi_l^\top \Psi_l C
# \rVert \, \lVert \tilde Y \rVert^2}, \qquad l^* = \arg\max_{l \le L} A_l .
# $$
#
# At initialization, signals lose information on their way forward, gradients
# on their way back. The paper's hypothesis: alignment peaks at the
# *equilibrium layer*, where both losses are equal. For infinite width and very
# large $L$ it grows as $L^{3/5}$: $\log l^* = \frac35 \log L$ + constant. That
# law is a limit. Over the paper's depths, the exact recursions of the page
# before give a slope well above 3/5. Which of the two slopes do networks have?
#
# ## A toy whose answer is known
#
# Neighbors of the highest layer are nearly as high, so we locate a peak in
# three ways: by *argmax*, as the paper; *smoothed*, the argmax after a running
# mean over a tenth of them, at least three; by *centroid*, the mean layer,
# weighted by how far $A_l$ is above half of its maximum. Curves that peak at
# $L^{3/5}$ show what rounding to whole layers does to slopes.

# %%
PLACES = ["argmax", "smoothed", "centroid"]


def places(a):
    """Where alignments a of layers 1, 2, … peak, and how flat they are."""
    half, layers = max(1, len(a) // 20), np.arange(1.0, len(a) + 1)
    mean = np.ones(2 * half + 1) / (2 * half + 1)
    smooth = np.convolve(np.pad(a, half, mode="edge"), mean, "valid")
    weight = np.clip(a - a.max() / 2, 0, None) + 1e-12
    found = layers[a.argmax()], layers[smooth.argmax()]
    found += np.average(layers, weights=weight), (a > 0.95 * a.max()).mean()
    return dict(zip([*PLACES, "flat"], map(float, found)))


def slopes(frame, by, column="argmax", least=2):
    """Slope of log column over log depth for each of by, if depths suffice."""
    logs, keys = np.log(frame[["depth", column]]), [frame[k] for k in by]
    x = logs.depth - logs.depth.groupby(keys).transform("mean")
    top, bottom = ((x * v).groupby(keys).sum() for v in (logs[column], x))
    return (top / bottom)[x.groupby(keys).count() >= least]


toy = []
for L in (10, 16, 25, 40, 63):
    away = np.log(np.arange(1, L + 1)) - 0.6 * np.log(L)
    toy += [dict(depth=L, of="slope", **places(np.exp(-(away**2))))]
toy = pd.DataFrame(toy)
found = pd.DataFrame({k: slopes(toy, ["of"], k) for k in PLACES})
toy = pd.concat([toy.set_index("depth")[PLACES], found])
study.table(toy, "Peaks of known curves by depth; their slopes (true: 0.6).")

# %% [markdown]
# ## The claims of this page

# %% tags=["hide-input"]
study.claims()

# %% [markdown]
# *Stacked* is $A_l$ as above. *Class-traced* takes the kernel between images
# summed over outputs instead. In a last linear layer the stacked alignment is
# at most $1/\sqrt{o(o-1)}$ for $o$ balanced classes, by its definition alone.
#
# ## Settings

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"runs": 2}: replaces values in the table below

# %% tags=["hide-input"]
same = [100] * 10, [100] * 6 + [200] * 2 + [300] * 2
TABLES = dict(  # the paper's: width, epochs, learning rate, test accuracy
    mnist=(*same, [3e-3, 3e-3, 3e-3, 2e-3, 1e-3, 7e-4, 2e-4, 1e-4, 2e-4, 1e-4],
           [97, 97, 96.9, 97.6, 97.6, 97.6, 94.8, 94.4, 96.1, 95.8]),
    fashion_mnist=(
        *same, [3e-3, 4e-3, 4e-3, 2e-3, 1e-3, 7e-4, 3e-4, 2e-4, 1e-4, 7e-5],
        [88.3, 88.6, 89.6, 88.9, 88.4, 87.7, 88.7, 87.9, 87.6, 88]),
    cifar10=([256] * 10, [100, 100, 150, 200, 250, 300, 300, 500, 500, 700],
             [5e-3, 3e-3, 3e-3, 1e-3, 1e-3, 7e-4, 5e-4, 5e-4, 1e-4, 1e-4],
             [56, 58.3, 57.7, 58.7, 58, 58.3, 59.1, 57.2, 56.9, 56]),
)  # fmt: skip
TENS = range(10, 101, 10)
theirs = {k: dict(zip(TENS, zip(*v[:3]))) for k, v in TABLES.items()}
OURS = {3: 0.01, 5: 0.01, 10: 0.012, 16: 0.008, 25: 3e-3, 40: 1.5e-3, 63: 3e-4}
deep, shallow, tiny = (
    {k: {d: (100, 300, OURS[d]) for d in depths} for k in [*TABLES][:2]}
    for depths in ((10, 16, 25, 40, 63), (10, 16, 25), (3, 5))
)
levels = (1.5, 1.0, 0.7, 0.4, 0.2)
same = dict(stop=0.2, losses=levels, batch=64, n=1024)
s = study.settings(
    profile, change,
    smoke=dict(same, nets=tiny, n=64, n_test=64, n_kernel=20, moved=(3, 5),
               losses=(9.0, 0.5), runs=2),
    laptop=dict(same, nets=shallow, n=512, n_test=1000, n_kernel=64,
                moved=(10,), runs=3),
    desktop=dict(same, nets=deep, n_test=2000, n_kernel=128, runs=18,
                 moved=(10, 16)),
    paper=dict(nets=theirs, n=60_000, n_test=10_000, n_kernel=128, stop=0.0,
               losses=(*levels, 0.1), moved=tuple(TENS), batch=128, runs=5),
)  # fmt: skip
where, sets, depths = devices.device(device), [*s.nets], [*s.nets["mnist"]]
s

# %% [markdown]
# `nets` has width, epochs and learning rate for each depth, which counts
# layers of weights. A network trains until the mean loss of an epoch is below
# `stop`, or for its epochs. Alignments are measured on the first `n_kernel`
# images: at initialization, when the loss first falls below each of `losses`,
# and at the end. The paper gives no momentum (here 0.9), weight decay
# (0.0005), runs or images in kernels. Peaks depend on rate and stop: a pilot
# on other seeds, which saw peaks, fixed both by what trains in the time given.
#
# ## Data
#
# Each run draws its own images and first weights. Pixels are shifted and
# scaled to mean 0 and variance 1 over all training images.

# %%
draws = [
    dict(seed=one["seed"], images=data.load(**one, n=s.n, shrink=True),
         test=data.load(**one, split="test", n=s.n_test, shrink=True))
    for one in study.grid(name=sets, seed=study.seeds(s.runs))
]  # fmt: skip
every = [draw[k] for k in ("images", "test") for draw in draws]
for one in every[:: s.runs]:
    study.uses(one)

# %% [markdown]
# ## Run
#
# Networks have no biases; first weights have variance 2 / (inputs of a layer).
# The exact recursions start from `c0`, the mean cosine of two inputs.


# %%
def one_run(images, test, seed, depth, net, rate, more, batch, stop,
            losses, k, device):  # fmt: skip
    """Train a network, and see where its alignment peaks at each loss."""
    mean, std, both = images.x.mean(), images.x.std(), (images, test)
    x, x_test = (((one.x - mean) / std).flatten(1).to(device) for one in both)
    y = images.y.to(device)
    width, epochs, lr = net
    size = dict(depth=depth - 1, width=width, bias=False, init="he")
    net = models.MLP(x.shape[1], 10, **size, seed=seed).to(device)
    n, total = len(x), unit_rows(x.double()).sum(0).square().sum()
    c0 = float((total - n) / (n * (n - 1)))
    balance = float(propagation.equilibrium_layer(c0, depth))
    rows, left = [], sorted(losses, reverse=True)

    def look(stage, reached):
        for outputs, kind in ("all", "stacked"), ("trace", "class-traced"):
            a = tangent.label_alignment(net, x[:k], y[:k], outputs).values()
            a = torch.stack(list(a)).nan_to_num(0).cpu().numpy()
            now = dict(stage=stage, kind=kind)
            peak = dict(now, **places(a), equilibrium=balance)
            rows.extend(dict(peak, loss=level) for level in reached)
            if stage == "end":
                each = enumerate(a.tolist(), 1)
                rows.extend(dict(now, layer=i, alignment=v) for i, v in each)

    def progress(epoch, history):
        if reached := [level for level in left if history.loss[-1] < level]:
            look("passed", reached)
            left[:] = left[len(reached) :]

    look("start", [np.nan])
    how = dict(optimizer="momentum", momentum=0.9, weight_decay=5e-4, at=())
    how |= dict(lr=lr * rate, batch_size=batch * more, stop_loss=stop)
    how |= dict(epochs=int(epochs * max(1 / rate, more)), progress=progress)
    end = dict(stage="network", correlation=c0, width=width, lr=lr * rate)
    try:
        history = train.fit(net, x, y, seed=seed, **how)
    except train.DivergedError:
        return [*rows, dict(end, ended="diverged")]
    look("end", [history.loss[-1]])
    score = train.accuracy(net, x_test, test.y)
    end |= dict(ended=history.stopped, epochs=len(history.loss))
    return [*rows, dict(end, accuracy=100 * score)]


VARIANTS = {(1, 1): "usual", (0.25, 1): "rates / 4", (1, 4): "batches × 4",
            (0.5, 1): "rates / 2", (2, 1): "rates × 2"}  # fmt: skip
moved = [("fashion_mnist", depth) for depth in s.moved]
configs = [
    dict(draw, depth=depth, net=net, rate=rate, more=more)
    for draw in draws
    for rate, more in VARIANTS
    for depth, net in s.nets[draw["images"].name].items()
    if (rate, more) == (1, 1) or (draw["images"].name, depth) in moved
]
fixed = dict(batch=s.batch, stop=s.stop, losses=s.losses, k=s.n_kernel)
runs = study.sweep(one_run, configs, **fixed, device=str(where))
runs["variant"] = [VARIANTS[key] for key in zip(runs.rate, runs.more)]
plain = runs[runs.variant == "usual"]
ends = plain[(plain.stage == "end") & plain.argmax.notna()]

# %% [markdown]
# ## Figure 3

# %% tags=["hide-input"]
size = f"{s.runs} runs, {(n := len(draws[0]['images']))} images. "
keep = ["images", "variant", "seed", "depth", "kind", "layer", "alignment"]
keep += [*PLACES, "equilibrium"]
style = dict(y="alignment", peak="argmax", lines=["equilibrium"], slope=0.6)
table = plain[plain.stage == "end"][keep]
fig = lou.layer_maps(table, row="kind", col="images", **style)
text = f"Figure 3, on fewer images and depths: {size}Color: mean over runs; "
text += "crosses: geometric mean of peaks. If the law holds, crosses follow "
text += "slope 0.6; if the hypothesis holds at these depths, the equilibrium."
study.show(fig, "lou.fig3", text, table=table)
by, peak = ["images", "seed"], ends[ends.kind == "stacked"]
slope, ideal = slopes(peak, by), slopes(peak, by, "equilibrium")
gap = np.log(peak.argmax / peak.equilibrium)
gap = gap.groupby([peak.images, peak.seed]).mean()
told = ideal.groupby("images").mean()
less = "" if profile == "paper" else "{} images, depths to {}, a stop by loss"
rest = dict(stand_in=less.format(n, f"{max(depths)}, no CIFAR-10"), data=every)
rest["size"] = ("n", "n_test", "n_kernel", "batch", "stop", "runs")
c0 = plain.groupby("images").correlation.mean().to_dict()
three = {f"by {k}": slopes(peak, by, k).mean() for k in PLACES}
three |= plain.ended.value_counts().to_dict()
for id, values, low, high, more in (
    ("lou.fig3", slope, 0.5, 0.7, three),
    ("lou.fig3.finite", slope - ideal, -0.1, 0.1, {"predicted": told}),
    ("lou.fig3.layer", gap, -0.25, 0.25, {"mean cosine of inputs": c0}),
):
    effects = {name: study.within(values[name], low, high) for name in sets}
    study.claim(id, effects=effects, measured=more, **rest)

# %% [markdown]
# Slopes when the loss fell below a level, if all networks of a run reached it:

# %% tags=["hide-input"]
passed, by = plain[plain.stage == "passed"], ["images", "kind", "loss", "seed"]
table = {k: slopes(passed, by, k, len(depths)) for k in PLACES}
table = pd.DataFrame(table).reset_index().melt(by, PLACES, "place", "slope")
order = dict(images=sets, kind=["stacked", "class-traced"])
panels = dict(hue="place", style="kind", col="images", order=order)
fig = plots.curves(table, x="loss", y="slope", log="x", **panels)
for ax, name in zip(fig.axes, sets):
    ax.axhline(0.6, color="0.5", ls="--", lw=1)
    ax.axhline(told[name], color="0.5", ls=":", lw=1)
    ax.invert_xaxis()
text = f"Slope of the peak over depth, by training loss at the stop. {size}If "
text += "the stop made no difference, lines would be level. Dashed: 3/5. "
text += "Dotted: slope of the equilibrium layers."
study.show(fig, "lou.fig3.stop", text, table=table)

# %% [markdown]
# How sharp is the peak? All layers, and the share within 5% of the highest:

# %% tags=["hide-input"]
table = plain.dropna(subset="layer")[keep[:7]]
panels = dict(hue="depth", row="kind", col="images", log="x", height=2.5)
fig = plots.curves(table, x="layer", y="alignment", **panels)
for ax in fig.axes[: len(sets)]:
    ax.axhline(90**-0.5, color="0.5", ls="--", lw=1)
text = f"Alignment at the end. {size}Dashed: the last layer's cap for equal "
text += "classes. What also falls in the lower row does not fall by the cap."
study.show(fig, "lou.fig3.layers", text, table=table)
at = dict(index=["images", "depth"], columns="kind", sort=False)
table = {"within 5%": ends.pivot_table("flat", **at)}
table["peak, end"] = ends.pivot_table("argmax", **at)
table["start"] = plain[plain.stage == "start"].pivot_table("argmax", **at)
study.table(pd.concat(table, axis=1), "Means over runs, both alignments.")

# %% [markdown]
# ## Figure 8
#
# Fashion-MNIST, as in the paper, at the same training loss where reached.

# %% tags=["hide-input"]
part = runs[runs.images.str.contains("fash") & runs.depth.isin(s.moved)]
table = part[part.rate.isin([0.25, 1]) & (part.stage == "end")][keep]
fig = lou.layer_maps(table, row="kind", col="variant", **style)
text = f"Figure 8, fewer depths. {size}By the paper, peaks in columns 2 and 3 "
text += "are later than in column 1. Lines and colors as in figure 3."
study.show(fig, "lou.fig8", text, table=table)
level, key = min(s.losses), ["seed", "depth", "rate", "more"]
at = part[(part.loss == level) & part.argmax.notna()]
at = at[at.kind == "stacked"].groupby(key)[PLACES].first()
log = np.log(at.argmax).unstack(["rate", "more"])
rest["data"] = [one for one in every if one.name == "fashion_mnist"]
rest["stand_in"] = less.format(n, max(s.moved))
ended = (part.variant + ", ended by " + part.ended).value_counts().to_dict()
for id, how in (("rate", (0.25, 1)), ("batch", (1, 4))):
    later = (log[how] - log[1, 1]).groupby("seed").mean().dropna()
    effects = {f"Fashion-MNIST, {VARIANTS[how]} − usual": study.above(later)}
    study.claim(f"lou.fig8.{id}", effects=effects, measured=ended, **rest)

# %% tags=["hide-input"]
scan = at.query("more == 1").reset_index()
scan = scan.melt(key, PLACES, "place", "peak layer")
scan["rate"] = scan.rate.map("× {:g}".format)
panels = dict(hue="depth", col="place", sharey=True, height=2.6)
fig = plots.curves(scan, x="rate", y="peak layer", **panels)
text = "Fashion-MNIST: peak of the stacked alignment at a loss of "
text += f"{level:g}, by rate over usual rate. {size}By the paper, lines fall."
study.show(fig, "lou.fig8.scan", text, table=scan)

# %% tags=["hide-input"]
nets = plain[plain.stage == "network"].groupby(["images", "depth"])
here = nets[["width", "epochs", "lr", "accuracy"]].mean()
here["stopped"] = nets.ended.agg(lambda how: (how == "loss").mean())
paper = {k: pd.DataFrame(dict(zip(here, v)), TENS) for k, v in TABLES.items()}
paper = pd.concat(paper, names=here.index.names)
both = pd.concat(dict(here=here, paper=paper), axis=1).sort_index()
told = here.accuracy.unstack(0).to_dict()
study.claim("lou.tab1-3", measured=told, size=rest["size"])
study.table(both, "Tables 1 to 3: test accuracy, share stopped by their loss.")

# %% [markdown]
# ## What differs from the paper, and why
#
# - Fewer images make it possible to train many networks. They also mean fewer
#   steps, so our rates are larger, relative to batches, than the paper's.
# - Depths end at 63: in trials 100 layers did not train. For figure 3 the
#   paper's text gives width 256, its tables 2 and 3 give 100.
# - Figure 8 leaves out deep networks: at a quarter of the rate they take long.
#
# ## Try it
# 1. Set `change = {"stop": 0.02}`. Do slopes come closer to 3/5?
# 2. Set `change = {"n_kernel": 32}`. How much more do peaks scatter?

# %% tags=["hide-input"]
study.stamp()
