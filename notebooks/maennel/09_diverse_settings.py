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
# # Diverse settings
#
# *Appendix B of {cite:t}`maennel2020`: figures 12 to 15.*
#
# ```{note}
# Figures 14 and 15 are on ImageNet in the paper. In all profiles but `paper`,
# CIFAR-10 takes its place, images are smaller, networks narrower, and examples
# and epochs fewer, by the factors in the settings.
# ```
#
# Does pre-training on random labels help only at a few lucky settings? The
# paper draws settings at random and puts all of them into one plot.

# %% tags=["hide-cell"]
import numpy as np
import pandas as pd
import torch

from repalign import covariance, data, models, plots, study, train
from repalign.machine import devices
from repalign.papers import maennel

study.begin("maennel/09_diverse_settings")

# %% [markdown]
# ## The idea
#
# A *group* $g$ is one random choice of the hyper-parameters. Within a group,
# networks differ only in their seed and in where they start. With $a(t)$ the
# training accuracy after a share $t$ of the training, and the mean
# $\langle\cdot\rangle$ over the seeds of the group, its *gain* is
#
# $$
# \mathrm{gain}(g) = \Bigl\langle \int_0^1 a_{\text{pre-trained}}(t)\,dt -
# \int_0^1 a_{\text{scratch}}(t)\,dt \Bigr\rangle :
# $$
#
# above zero where pre-training makes the network learn faster. In the paper's
# plots a group is a dot, with the first area on the horizontal axis and the
# second on the vertical one: dots *below* the diagonal gain.
#
# ## A toy whose answer is known
#
# How many groups have to gain before the 95% interval of their share lies
# above one half, a coin's? By Wilson's formula 9 of 10, or 15 of 20.

# %%
least = {n: next(k for k in range(n) if study.share(k, n).answer == "yes")
         for n in (10, 20)}  # fmt: skip
study.table(pd.DataFrame({"have to gain": least}).rename_axis("groups"))

# %% [markdown]
# ## The claims of this page

# %% tags=["hide-input"]
study.claims()

# %% [markdown]
# ## Settings

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"groups": (4, 4)}: replaces values in the table

# %% tags=["hide-input"]
small = dict(imagenet="cifar10", classes_by=(1, 100), inits=(1, 1), look=2)
few = dict(small, groups=(2, 2), units_by=4, filters_by=2, batch=32)
s = study.settings(
    profile, change,
    smoke=dict(
        few, pixels=8, width=4, examples_by=(250, 2000), epochs_by=(99, 50),
        epochs_up_by=(99, 50), draw_from=1000, n_test=50),
    laptop=dict(
        few, pixels=16, width=8, examples_by=(200, 1500), epochs_by=(24, 12),
        epochs_up_by=(6, 6), draw_from=10_000, n_test=200),
    desktop=dict(
        few | dict(groups=(20, 10)), pixels=16, width=8, examples_by=(40, 200),
        epochs_by=(14, 7), epochs_up_by=(3, 3), draw_from=50_000, n_test=500),
    paper=dict(
        imagenet="imagenet", classes_by=(1, 1), inits=(2, 5), groups=(20, 10),
        pixels=None, width=64, filters_by=1, units_by=1, examples_by=(1, 1),
        epochs_by=(1, 1), epochs_up_by=(1, 1), batch=256, look=1,
        draw_from=300_000, n_test=10_000),
)  # fmt: skip
where = devices.device(device)
s

# %% [markdown]
# Two values in brackets are for CIFAR's and for ImageNet's experiments.
# `examples_by`, `epochs_by` (second task), `epochs_up_by` (random labels),
# `classes_by`, `filters_by` and `units_by` divide the numbers below; `width`
# is that of VGG16's and ResNet18's first layer. Accuracies are taken every
# `look` epochs. Images of ImageNet stay in their files, read batch by batch.
#
# These are the paper's distributions: a pair in round brackets is the range of
# a log-uniform draw, a list is a uniform choice, anything else is fixed.

# %%
CIFAR_A = dict(
    n=25_000, epochs=200, init="he", scale=(0.5, 1.35), lr=(0.008, 0.0125),
    n_up=[5000, 10000, 15000, 20000, 25000], classes=[2, 5, 10, 25, 50, 100],
    epochs_up=[20, 40, 80, 100, 120, 150, 200],
    convs=[1, 2, 3, 4, 5], units=[64, 128, 256, 512, 1024], filters=[16, 32],
)  # fmt: skip
CIFAR_B = dict(CIFAR_A, init=["he", "orthogonal"], scale=(0.5, 2.0),
               lr=(0.005, 0.02), units=[512, 1024, 2048])  # fmt: skip
IMAGENET_A = dict(
    n=200_000, epochs=100, init="he", scale=(0.5, 1.5), lr=(0.008, 0.0125),
    n_up=[50_000, 100_000], classes=1000, epochs_up=100, convs=[1, 2, 3],
    units=[32, 64, 128, 256, 512, 1024], filters=[16, 32, 64],
)  # fmt: skip
IMAGENET_B = dict(IMAGENET_A, n=50_000, n_up=[25_000, 50_000])
TABLES = {"CIFAR A": CIFAR_A, "CIFAR B": CIFAR_B,
          "ImageNet A": IMAGENET_A, "ImageNet B": IMAGENET_B}  # fmt: skip
NETWORKS, KINDS = ("Simple CNN", "VGG16", "ResNet18"), ("real", "random")


def draw(table, i, rng):
    """One choice of all, divided by CIFAR's (i = 0) or ImageNet's factors."""
    by = dict(n=s.examples_by[i], n_up=s.examples_by[i], units=s.units_by,
              epochs=s.epochs_by[i], epochs_up=s.epochs_up_by[i],
              filters=s.filters_by, classes=s.classes_by[i])  # fmt: skip
    for name, value in table.items():
        if isinstance(value, tuple):
            value = float(np.exp(rng.uniform(*np.log(value))))
        elif isinstance(value, list):
            value = value[rng.integers(len(value))]
        if name in by:
            value = max(1, round(value / by[name]))
        yield name, value


# %% [markdown]
# ## Data
#
# Each network draws its own images for the two tasks, without a common one.
# Pixels go from $-1$ to 1; smaller images are averages over blocks of them.

# %%
FILES, sizes = s.imagenet == "imagenet", (s.draw_from, s.n_test)
kind = dict(dtype=torch.uint8, shrink=True)
pairs = zip(("train", "test"), sizes)
two = [data.load("cifar10", split, n=n, **kind) for split, n in pairs]
SETS, TOLD = {"C": two, "I": two}, {"C": two, "I": two}
if FILES:  # brought to 256 pixels, of which the middle 224 are cut out
    pairs, how = zip(("train", "val"), sizes), dict(size=256)
    SETS["I"] = [data.image_files("imagenet", *one, **how) for one in pairs]
    TOLD["I"] = [data.load("imagenet", n=100)]
study.uses(two[0])

# %% [markdown]
# ## Run
#
# One cell of the sweep is one seed of one group. A network is pre-trained and,
# but for ResNet18, scaled back layer by layer. Then the second task is learned
# from scratch, with the first layer transferred (CIFAR's experiments only) and
# with all layers but the head, each with real and with random labels. Finished
# cells are kept: a stopped sweep goes on where it was. Diverged networks count
# as guessing; cards say how many there are.


# %%
def build(network, outputs, p, side, width, seed):
    """A network with the hyper-parameters ``p``."""
    by = dict(init=p["init"], init_scale=p["scale"], seed=seed)
    if network == "ResNet18":
        groups = 32 if width % 32 == 0 else 4
        return models.resnet18_v2(outputs, width=width, groups=groups, **by)
    by |= dict(image=(3, side, side), outputs=outputs)
    if network == "VGG16":
        return models.VGG("vgg16", width=width, **by)
    own = {size: p[size] for size in ("convs", "filters", "units")}
    return models.SimpleCNN(**own, **by)


def one_seed(experiment, network, group, seed, p, sets, side, files, width,
             batch, every, device):  # fmt: skip
    """Areas with real and random labels, from scratch and transferred."""
    y, n = torch.cat([one.y for one in sets]).to(device), len(sets[0])
    rows, outputs = torch.arange(len(y), device=device), len(sets[0].classes)
    x_up, x = data.disjoint(rows[:n], p["n_up"], p["n"], seed=seed)
    own, test = y[x], (rows[n:], y[n:])
    made = (p, side, width)
    net = build(network, p["classes"], *made, seed=seed + 3).to(device)
    new = build(network, outputs, *made, seed=seed + 4).to(device)
    y_up = data.random_labels(len(x_up), p["classes"], seed=seed + 1)
    random = data.random_labels(len(x), outputs, seed=seed + 2)
    look = maennel.ImageRows(sets, side=side, device=device)
    some = look(x_up[:5000])
    if files:  # read batch by batch: the network is given their numbers
        net, new = (torch.nn.Sequential(look, one) for one in (net, new))
    else:
        x_up, x, test = look(x_up), look(x), (look(rows[n:]), y[n:])
    moved = {"scratch": 0, "all": len(maennel.layers(new)) - 1}
    moved |= {"one": 1} if experiment.startswith("CIFAR") else {}
    how = dict(lr=p["lr"], batch_size=batch, seed=seed)
    again = dict(rescale=network != "ResNet18", epochs=p["epochs_up"])
    try:
        old = maennel.pretrain(net, x_up, y_up, **again, **how)
        tilt = covariance.tilt(maennel.first_transfer_function(old, some))
        starts = {name: maennel.copy_layers(old, new, k)
                  for name, k in moved.items()}  # fmt: skip
    except train.DivergedError:  # nothing to start from but scratch
        starts, tilt = {**dict.fromkeys(moved), "scratch": new}, None
    how |= dict(guess=1 / outputs, epochs=p["epochs"])
    how["at"] = sorted({*range(0, p["epochs"], every), p["epochs"]})
    rows = []
    for name, start in starts.items():
        for labels, y in (("real", own), ("random", random)):
            how["test"] = test if labels == "real" else None
            found = maennel.learning_areas(start, x, y, **how)
            row = dict(start=name, tilt=tilt, diverged=found.pop("diverged"))
            row["curve"] = f"training, {labels} labels"
            rows.append(dict(row, area=found["area"]))
            if "test" in found:
                row["curve"] = "test, real labels"
                rows.append(dict(row, area=found["test"]))
    return rows


configs = []
for i, (experiment, table) in enumerate(TABLES.items()):
    for j, network in enumerate(NETWORKS):
        for group in study.seeds(s.groups[i // 2]):
            rng = np.random.default_rng([group, i, j])
            own = dict(experiment=experiment, network=network, group=group)
            own["p"] = dict(draw(table, i // 2, rng))
            kind = experiment[0]
            own |= dict(sets=SETS[kind], files=FILES and kind == "I")
            own["side"] = s.pixels or (224 if own["files"] else 32)
            many = rng.integers(2**31, size=s.inits[i // 2]).tolist()
            configs += [dict(own, seed=seed) for seed in many]
how = dict(width=s.width, batch=s.batch, every=s.look)
runs = study.sweep(one_seed, configs, **how, device=str(where))

# %% [markdown]
# ## Figures 12 to 15
#
# The paper's rows are columns here. An effect is the share of groups that gain
# with all layers, or the gain with all layers less that with one.

# %% tags=["hide-input"]
group = ["experiment", "network", "group"]
wide = runs.pivot_table("area", [*group, "curve"], "start", sort=False)
wide = wide.rename(columns={"scratch": "from scratch"}).reset_index()
dots = wide.melt([*group, "curve", "from scratch"], ["all", "one"],
                 "layers", "pre-trained").dropna()  # fmt: skip
dots["gain"] = dots["pre-trained"] - dots["from scratch"]


def result(id, experiment, effects):
    """The card of a claim, and before the first of a figure the figure."""
    one, initial = runs.experiment == experiment, experiment[0]
    swap = f"networks of width {s.width}, images of {s.pixels} pixels, fewer "
    swap = f"{swap}examples and epochs" if s.width < 64 else ""
    if initial == "I" and s.imagenet != "imagenet":
        swap = f"CIFAR-10 in place of ImageNet; {swap}"
    frame = dots[dots.experiment == experiment]
    if "." not in id:
        fig = plots.scatter(
            frame, x="pre-trained", y="from scratch", hue="network",
            style="layers", col="curve", diagonal=True, size=(3.1, 2.9),
        )  # fmt: skip
        text = f"Figure {id[3:]}, experiments {experiment}: areas of curves "
        text += "of accuracy. A dot is a group; below the diagonal it learns "
        text += f"faster pre-trained. In this run: {swap or 'all as there'}."
        study.show(fig, f"maennel.{id}", text, table=frame)
    trained = frame.layers.eq("all") & frame.curve.str.startswith("training")
    low = frame["from scratch"][trained] < 1.5 / len(TOLD[initial][0].classes)
    ended = {"curves": one.sum(), "diverged": runs.diverged[one].sum()}
    ended["areas from scratch below 1.5 × guessing"] = low.mean()
    study.claim(f"maennel.{id}", effects=effects, measured=ended,
                stand_in=swap, data=TOLD[initial])  # fmt: skip


def gained(experiment, networks, labels, **side):
    """The share of groups that gain with all layers, of the networks named."""
    part = dots[(dots.experiment == experiment) & (dots.layers == "all")]
    part = part[part.curve == f"training, {labels} labels"]
    gain = part.gain[[name in networks for name in part.network]]
    return study.share(int((gain > 0).sum()), len(gain), **side)


PAIRS = [(network, kind) for network in NETWORKS for kind in KINDS]
for id, experiment in (("fig12", "CIFAR A"), ("fig13", "CIFAR B")):
    found = {", ".join(pair): gained(experiment, *pair) for pair in PAIRS}
    result(id, experiment, found)
wide = dots.query("experiment == 'CIFAR A' and curve != 'test, real labels'")
wide = wide.pivot(index=["curve", *group], columns="layers", values="gain")
more = (wide["all"] - wide["one"]).groupby("curve")
found = {f"{curve}: all less one": study.above(v) for curve, v in more}
result("fig12.layers", "CIFAR A", found)
own = {f"ResNet18, {kind}": gained("ImageNet A", "ResNet18", kind, paper=1.0)
       for kind in KINDS}  # fmt: skip
result("fig14", "ImageNet A", own)
own = {"ResNet18, real": gained("ImageNet B", "ResNet18", "real", paper=1.0)}
both = gained("ImageNet B", "Simple CNN VGG16", "real", below=0.5)
result("fig15", "ImageNet B", own | {"the others, real": both})

# %% tags=["hide-input"]
shares = {e: {pair: gained(e, *pair) for pair in PAIRS} for e in TABLES}
text = "{:.2f} ({:.2f} to {:.2f})".format
shares = pd.DataFrame(shares).map(lambda one: text(one.mean, *one.interval))
study.table(shares, "Share of groups that gain, with Wilson's 95% interval.")

# %% [markdown]
# ## What goes with a gain?

# %% tags=["hide-input"]
full = dots.query("layers == 'all' and curve == 'training, real labels'")
full = full.merge(runs.groupby(group).tilt.mean().reset_index(), on=group)
drawn = pd.DataFrame([{**one["p"], **one} for one in configs])
full = full.merge(drawn.drop_duplicates(group)[[*group, *CIFAR_A]], on=group)
table, cifar = {}, full[full.experiment.str.startswith("CIFAR")]
for network, part in cifar.groupby("network", sort=False):
    varied = ["scale", "lr", "n_up", "classes", "epochs_up"]
    varied += ["convs", "units"] * (network == "Simple CNN")
    told = {name: study.spearman(part[name], part.gain) for name in varied}
    table[network] = {name: value for name, (value, _, _) in told.items()}
text = "Spearman's correlation with the gain, all layers, real labels, CIFAR."
study.table(pd.DataFrame(table), text)

# %% [markdown]
# ## Beyond the paper: can the gain be told beforehand?
#
# Let $\sigma_i$ be the standard deviation of image patches along their $i$-th
# eigenvector, and $\tau_i$ that of the pre-trained first layer's filters about
# zero. If filters along strong directions bring the gain, their *tilt* should
# announce it: the logarithm of a quotient, $\tau$ over the third of directions
# with the largest $\sigma$ by that with the smallest (root mean squares).

# %% tags=["hide-input"]
seen = full.dropna(subset=["tilt"])
rows = {
    name: [*study.spearman(part.tilt, part.gain), len(part)]
    for name, part in [("all", seen), *seen.groupby("network", sort=False)]
}
labels = dict(tilt="tilt of the first layer", gain="gain in area, real labels")
fig = plots.scatter(seen, x="tilt", y="gain", hue="network", labels=labels)
text = "The gain against what the first layer told before the second task. A "
text += "dot is a group of any experiment. Where an interval in the table "
text += "holds 0, the first layer alone does not tell."
study.show(fig, "maennel.predicted_gain", text, table=seen)
found = pd.DataFrame(rows, ["correlation", "from", "to", "groups"]).T
study.table(found, "Spearman's correlation, 95% bootstrap interval.")

# %% [markdown]
# ## What differs from the paper, and why
#
# - Outside of `paper` all is smaller, and there is one seed a group.
# - “More than half” is our bar for “many”; `draw_from` and `n_test` are ours.
# - A network that hardly learns gains or loses by accident; cards count those.
#
# ## Try it
#
# 1. Set `change = {"epochs_up_by": (20, 20)}`. Which networks still gain?
# 2. Set `change = {"units_by": 1, "filters_by": 1}`. Do wider networks gain?

# %% tags=["hide-input"]
study.stamp()
