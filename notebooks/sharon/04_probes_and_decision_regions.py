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
# # Probes and decision regions through training
#
# *Section 4 of {cite:t}`sharon2024`: equations 3 to 5, figures 4–6 and 18.*
#
# ```{note}
# The architectures are the paper's, a pre-activation ResNet18 and a vision
# transformer. All profiles but `paper` have narrower layers, and small images
# of MNIST digits in place of CIFAR-10: fewer of them, for fewer epochs, at a
# higher rate, and fewer planes. The transformer has fewer blocks.
# ```
#
# To compare a layer at two epochs, train a linear classifier on each. How
# often do they decide alike? And which share the network's double descent?

# %% tags=["hide-cell"]
import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch.nn.functional import adaptive_avg_pool2d

from repalign import models, plots, study
from repalign.machine import devices
from repalign.papers import sharon
from repalign.probes import decision_region_similarity, fit_probes, planes
from repalign.study.known import above_where_known as above

study.begin("sharon/04_probes_and_decision_regions")

# %% [markdown]
# ## The idea
#
# Let $\phi_t(x)$ be the output of a layer at epoch $t$ for the image $x$. A
# *probe* is a linear classifier on it, with weights $W$ and biases $b$ of its
# own (equations 3 and 4): $c_t(x) = \operatorname{argmax}_j\,(W \phi_t(x) +
# b)_j$ is the class it gives to $x$. Three training images span a plane in the
# space of images. Let $P$ be the points of a grid on many such planes, $|P|$
# their number. The similarity of decision regions of two epochs is the share
# of points to which both probes give the same class,
#
# $$
# \operatorname{DRS}(s, t) = \frac1{|P|} \sum_{x \in P}
# \mathbb 1\,[c_s(x) = c_t(x)] . \qquad (5)
# $$
#
# It depends on what can be read from a layer, not on which unit holds it.
#
# ## A toy whose answer is known
#
# Inputs fill the square $[-1, 1]^2$; their class is the sign of $x_1$. One
# epoch of a layer sees $(x_1, x_2)$, another the same rotated and scaled. Both
# probes tell the classes apart, so they agree. A third sees $x_1 - x_2$ alone.
# Its probe must cut along the diagonal, and agrees with the others on three
# quarters of the square, up to points on the diagonal.

# %%
corners = torch.tensor([[-1.0, -1], [1, -1], [-1, 1]])
first = torch.tensor([[0, 1, 2]])
square = planes(corners, first, resolution=40, margin=0.0).flatten(0, 2)
seen = torch.tensor([[[1.0, 0], [0, 1]], [[6, -8], [8, 6]], [[1, 0], [-1, 0]]])
toy = square @ seen
told = fit_probes(toy, (square[:, 0] > 0).long()).predict(toy)
toy = dict(known=[1, 1, 0.75], measured=decision_region_similarity(told)[0])
toy = pd.DataFrame(toy, index=["itself", "rotated", "difference alone"])
study.table(toy, "Decision regions of the first epoch beside those of each.")

# %% [markdown]
# ## The claims of this page
#
# Batch norm gathers its statistics while weights change. *Recomputed* ones are
# those of all training images, unmoved, for the weights as they are.

# %% tags=["hide-input"]
study.claims()

# %% [markdown]
# ## Settings

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"runs": 2}: replaces values in the table below

# %% tags=["hide-input"]
small = dict(images="mnist", pixels=8, width=8, lr=0.001, batch=64, shift=0,
             patch=4, depth=3, hidden=48, together=13, probe_epochs=10,
             probe_batch=16)  # fmt: skip
s = study.settings(
    profile, change,
    smoke=dict(small, width=4, hidden=12, n=60, n_test=60, epochs=4, looks=4,
               triplets=4, resolution=5, cka=40, runs=2),
    laptop=dict(small, n=200, n_test=300, epochs=80, looks=12, triplets=12,
                resolution=8, cka=200, probe_epochs=40, runs=2),
    desktop=dict(small, pixels=10, batch=128, patch=5, n=1000, n_test=1000,
                 epochs=150, looks=26, triplets=50, resolution=10, cka=500,
                 probe_epochs=62, runs=6),
    paper=dict(images="cifar10", pixels=32, width=64, lr=0.0001, batch=128,
               shift=4, patch=16, depth=12, hidden=768, probe_epochs=10,
               probe_batch=128, n=50_000, n_test=10_000, epochs=4000,
               looks=[[(0, 300, 1), (300, 900, 3), (900, 4000, k)]
                      for k in (5, 10)], together=1, triplets=500,
               resolution=50, cka=2048, runs=3),
)  # fmt: skip
where = devices.device(device)
s

# %% [markdown]
# The ResNet18 has `width` filters at first, the transformer `depth` blocks of
# width `hidden` on patches of `patch` pixels. Images move by up to `shift`
# pixels; `paper` mirrors half of them. There are `looks` at a network, evenly
# spread on a log axis, or those of appendix F.3. Probes see all training
# images, unmoved, with the labels that the network sees, for `probe_epochs` in
# batches of `probe_batch`, by Adam at a rate of 0.0001. Each of `triplets`
# planes has `resolution`² points. CKA is that of `cka` test images, in groups
# of at most 512.
#
# The paper does not say how large batches, grids and the transformer's images
# are; we take values of the studies that it follows. Its ten epochs are then
# 3,910 steps of a probe; so are those of `desktop`, in smaller batches. The
# paper has one network of each kind; an interval needs `runs`.
#
# ## Data
#
# Pixels are from $-1$ to 1; small images are averages. Each run draws its own
# images (`paper` takes all), wrong labels, weights and triplets. In a run, the
# networks with and without noise have the same first weights and planes.

# %%
draws = sharon.train_test(s.images, s.n, s.n_test, study.seeds(s.runs))
used = [one[k] for one in draws for k in ("sample", "test")]
for one in used[:2]:
    study.uses(one)
x = adaptive_avg_pool2d(used[0].x[:10], s.pixels)
row = planes(x, first, resolution=10)[0, 1]
text = "Ten images, as used, and points of the plane through the first three."
study.show(plots.strips({"images": x, "plane": row}), "sharon.planes", text)

# %% [markdown]
# ## Equation 5: all pairs of random classes, at once and in a loop

# %%
g = torch.Generator().manual_seed(0)
told = torch.randint(10, (40, 999), generator=g)
loop = [[int((a == b).sum()) / 999 for a in told] for b in told]
same = decision_region_similarity(told).tolist() == loop
study.claim("sharon.eq5", holds=same, data=[], seeds=[0], size=())

# %% [markdown]
# ## Run
#
# `probed` trains a network and puts a copy aside at each logged epoch. Probes
# of `together` copies train at once, layer by layer. Then test images and the
# points of planes go through each copy. Only the classes that probes give them
# are kept. A second set of probes, not in the paper, trains until its gradient
# vanishes, with a small penalty without which there may be no minimum.

# %%
kinds = {
    "stopped": dict(classes=10, epochs=s.probe_epochs, lr=0.0001,
                    batch_size=s.probe_batch),
    "converged": dict(classes=10, ridge=0.001, tolerance=1e-4, max_steps=9999),
}  # fmt: skip
LAYERS = ["first layer", *(f"block {k}" for k in range(1, 5))]
BLOCKS = [f"block {k}" for k in range(1, s.depth + 1)]


def one_run(sample, test, seed, noise, net, names, pixels, shift, how, device):
    """What probes find in one network while it trains."""
    task = dict(pixels=pixels, noise=noise, seed=seed, device=device)
    both, colors = sharon.noisy_task(sample, test, **task), sample.x.shape[1]
    make = models.preact_resnet18 if "k" in net else models.vit_small
    model = make(channels=colors, seed=seed, **net).to(device)
    moves = sharon.usual(colors, shift)
    how = dict(how, augment=moves, seed=seed, names=names)
    return sharon.probed(model, *both, **how)._asdict()


both = [s.looks] * 2 if isinstance(s.looks, int) else s.looks
at = [sharon.logged(s.epochs, looks) for looks in both]
same = ("epochs", "lr", "triplets", "resolution", "together", "cka")
how = {k: getattr(s, k) for k in same} | dict(kinds=kinds, batch_size=s.batch)
how["part"] = min(s.cka, 512)
wide = dict(image_size=s.pixels, patch=s.patch, depth=s.depth, width=s.hidden)
wide["heads"] = max(3, s.hidden // 64)
res = dict(net={"k": s.width}, names=LAYERS, how=how | {"at": at[0]})
vit = dict(net=wide, names=BLOCKS, how=how | {"at": at[1]})
kind = {"none": (res, 0.0), "20%": (res, 0.2), "ViT": (vit, 0.0)}
cells = [dict(d, noise=k, **of) for of, k in kind.values() for d in draws]
nets = study.sweep(one_run, cells, pixels=s.pixels, shift=s.shift,
                   device=str(where))  # fmt: skip

# %% [markdown]
# ## Numbers of the maps
#
# A run that never fits its labels has no start of perfect fitting. It is left
# out, and the share of the others is one more effect. (`smoke`: any error is
# perfect.)

# %%
perfect = 1.0 if s.profile == "smoke" else 0.005
which = [(name, d["seed"]) for name in kind for d in draws]
v = [dict(row, net=name, seed=k) for (name, k), net in zip(which, nets)
     for row in sharon.told_by_probes(net, perfect=perfect)]  # fmt: skip
v = pd.DataFrame(v).set_index(["kind", "net", "layer", "seed"]).sort_index()
FIRST, LAST = LAYERS[0], LAYERS[-1]


def found(probes):
    """The effects of all claims, for one kind of probe."""
    u, two = v.loc[probes], ("none", "20%")
    near, turn, fall = u["near"], u["change"], u["descent"]
    last = fall["20%", LAST]
    rest = {f"{LAST} less {k}": last - fall["20%", k] for k in LAYERS[:-1]}
    rest["20% less none"] = last - fall["none", LAST]
    return {
        "fig4.first": above({"fit less best": near["none", FIRST]}),
        "fig4.temporary": above({
            f"noise {k}: fit less last": u["gone"][k, FIRST] for k in two}),
        "fig4.range": above({
            f"noise {k}: less CKA": u["wider"][k, FIRST] for k in two}),
        "fig5.first": above({"fit less best": near["20%", FIRST]}),
        "fig5.deep": above({
            f"{k}: 20% less none": turn["20%", k] - turn["none", k]
            for k in LAYERS[3:]}),
        "fig6": above({LAST: last}, 0.01) | above(rest),
        "fig18": above({
            "ResNet18 less ViT":
            near["none", FIRST] - near["ViT", BLOCKS[0]]}),
    }  # fmt: skip


effects, slow = found("stopped"), found("converged")
effects["fig6.converged"] = slow["fig6"]

# %% [markdown]
# ## Figures 4, 5 and 18: colors of a layer are the same in 4 and 5

# %% tags=["hide-input"]
swap = f"{len(used[0])} {s.images} images of {s.pixels} pixels, {s.triplets} "
swap += f"planes, width {s.width} (ViT: {s.hidden}), {s.epochs} epochs"
whole = s.images, s.width, s.epochs, len(used[0])
swap = "" if whole == ("cifar10", 64, 4000, 50_000) else swap
also = f"{swap}." if swap else ""
by = dict(stand_in=swap, data=used)
maps = [net["maps"]["stopped"] for net in nets[:: s.runs]]
span = sharon.shared_limits(*maps[:2])
says = {
    "fig4": "the first layer comes back near the white line, and leaves",
    "fig5": "so it does with noise, and blocks 3 and 4 are darker",
    "fig18": "the transformer differs from the residual network",
}
for k, (id, text) in enumerate(says.items()):
    net, name, layer = nets[k * s.runs], list(kind)[k], (LAYERS, BLOCKS)[k > 1]
    at = [row["epoch"] for row in net["errors"]][::2]
    start = v["start"]["stopped", name, layer[0]]
    own = v["own_descent"]["stopped", name, layer[0]].tolist()
    fig = sharon.with_errors(maps[k], at, net["errors"], mark=start.iloc[0],
                            limits=span if k < 2 else None)  # fmt: skip
    about = f"Figure {id[3:]} ({name if k > 1 else f'label noise {name}'}), "
    about += f"first of {s.runs} runs: similarity of decision regions of all "
    about += "pairs of epochs; errors. White: perfect fitting starts. By the "
    text = f"{about}paper, {text}. {also}"
    study.show(
        fig, f"sharon.{id}", text, table=sharon.layer_table(maps[k], at)
    )
    for claim in [c for c in effects if c.split(".")[0] == id]:
        more = {f"{a}, converged": e.mean for a, e in slow[claim].items()}
        more |= {"start of perfect fitting": start.tolist(), "descent": own}
        by["measured"] = more
        study.claim(f"sharon.{claim}", effects=effects[claim], **by)

# %% [markdown]
# ## Figure 6: test errors of probes, and what all this costs

# %% tags=["hide-input"]
rows = [
    {"label noise": name, "seed": seed, "probe": probes, "layer": layer,
     "epoch": at, "error": e}
    for (name, seed), net in zip(which, nets) if name != "ViT"
    for probes, layers in net["wrong"].items()
    for layer, errors in layers.items()
    for at, e in zip([row["epoch"] for row in net["errors"]][::2], errors)
]  # fmt: skip
rows = pd.DataFrame(rows)
for id, probes in (("fig6", "stopped"), ("fig6.converged", "converged")):
    drawn, of = rows[rows["probe"] == probes], v["descent"][probes]
    draw = dict(hue="layer", col="label noise", sharey=True)
    fig = plots.curves(drawn, x="epoch", y="error", **draw)
    plt.setp(fig.axes, xscale="symlog")
    text = f"Figure 6, test error of probes ({probes}), by layer; mean and "
    text += f"standard error of {s.runs} runs. By the paper, only block 4 "
    text += f"falls, rises and falls again, and only with noise. {also}"
    study.show(fig, f"sharon.{id}", text, table=drawn)
    told = of.groupby(["net", "layer"]).mean().items()
    by["measured"] = {f"descent, {a}, {b}": x for (a, b), x in told}
    study.claim(f"sharon.{id}", effects=effects[id], **by)
cost = pd.DataFrame([net["cost"] for net in nets]).mean().to_frame("here")
cost["paper"] = ["900", "4320, twelve GPUs", "–"]
study.table(cost, "Cost of a network, and of one of the paper's.")

# %% [markdown]
# ## What differs from the paper, and why
#
# - Images, width, length of training, number of planes: see the settings. By
#   CKA, the paper finds the return only in networks of width 52 and more.
# - What probes are when they stop depends on the scale of features, and on the
#   draw and the batches, the same for all. Cards also say what converged ones
#   give. The paper does not say which labels its probes see; all its networks
#   have the same planes.
# - The paper says that the transformer differs; that its similarity to
#   initialization grows less is how we read figure 18.
#
# ## Try it
#
# 1. Set `change = {"probe_epochs": 10}`. How far are errors from converged?
# 2. Set `change = {"resolution": 4}`. Do coarse grids give the same maps?

# %% tags=["hide-input"]
study.stamp()
