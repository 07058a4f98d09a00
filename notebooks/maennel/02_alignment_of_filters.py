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
# # Do filters align with the data?
#
# *Section 2, appendices A.6, A.7, C and D.1 of {cite:t}`maennel2020`:
# proposition 1, figures 2 and 3, the second table of D.1.*
#
# ```{note}
# Images are CIFAR-10, as in the paper. Outside of `paper` a CNN of stride 3 on
# fewer images and a narrow ResNet on 16 pixels stand in for the paper's.
# ```
#
# Random labels tell a network nothing. Yet, says the paper, its first weights
# come to vary along directions that the data single out.

# %% tags=["hide-cell"]
import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch.nn.functional import avg_pool2d

from repalign import covariance, data, models, plots, study, train
from repalign.covariance import misalignment_scores, random_basis
from repalign.machine import devices

study.begin("maennel/02_alignment_of_filters")

# %% [markdown]
# ## The idea
#
# Inputs $x_j \in \mathbb R^d$ (or patches of images) have covariance
# $\Sigma_x$, the weights $w_i \in \mathbb R^d$ of the first layer's units have
# covariance $\Sigma_w$. The layer sees only the products $\langle w_i,
# x_j\rangle$, which do not change if an orthogonal matrix $G$ is applied to
# both: under gradient descent, rotated inputs and weights train to the rotated
# network. If $G$ also leaves the distributions of inputs and initial weights
# as they are, then that of trained weights over runs, too. For Gaussian
# inputs and random labels, eigenspaces of $\Sigma_x$ then lie inside those of
# $\Sigma_w$: they are *aligned* (proposition 1). The misalignment in a basis
# $v_1, \dots, v_d$ is
#
# $$M = \sum_{i=1}^d \Bigl(\sqrt{(v_i^\top \Sigma_w v_i)
# (v_i^\top \Sigma_w^{-1} v_i)} - 1\Bigr) \ge 0,$$
#
# with the eigenvectors of $\Sigma_x$ as $v_i$, or a random basis to compare.
# With $\Sigma_w$ estimated from $m$ independent Gaussian weights, perfect
# alignment scores about $d(d-1)/2m$ on average: the *floor*. The *excess* is
# score minus floor. Trained units are not independent and may go below it.
#
# ## A toy whose answer is known
#
# Of 100 Gaussian weights in 10 dimensions, those with a diagonal covariance of
# different entries score the floor in the basis of the axes, more in a random
# one. Isotropic ones, as a fresh network's, score the floor in *every* basis.

# %%
rng, ramp, toy = torch.Generator().manual_seed(0), torch.arange(1, 11.0), {}
for name, spread in (("aligned", ramp), ("isotropic", ramp**0)):
    drawn = [torch.randn(100, 10, generator=rng) * spread for _ in range(40)]
    each = [misalignment_scores(ramp.diag(), w, bases=1) for w in drawn]
    toy[name] = pd.DataFrame(each).mean()
study.table(pd.DataFrame(toy).T, "In the data's basis, in a random one, floor")

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
small = dict(mlps=4, cnn=(256, 3, 0.3), net=(1, 1), shrink=2)
s = study.settings(
    profile, change,
    smoke=dict(
        small, runs=2, mlp=((64, 16), 0.3, "momentum"), mlp_n=200,
        mlp_how=(0.05, 100, 2), images=1000, cnn_n=100, cnn_how=(0.02, 50, 2),
        pairs=2, nets=2, net_n=64, net_how=(0.05, 32, 1)),
    laptop=dict(
        small, runs=3, mlp=((256, 64), 0.3, "momentum"), mlp_n=1000,
        pairs=3, nets=4, mlp_how=(0.05, 100, 30), images=5000, cnn_n=512,
        cnn_how=(0.02, 64, 20), net_n=512, net_how=(0.05, 32, 2)),
    desktop=dict(
        small, runs=8, mlp=((256, 256), 0.3, "momentum"), mlp_n=2000,
        pairs=5, nets=8, mlp_how=(0.05, 100, 60), images=20_000, cnn_n=2560,
        cnn_how=(0.01, 256, 40), net_n=1280, net_how=(0.05, 32, 8)),
    paper=dict(
        runs=5, mlps=1, mlp=((256, 256), 1.0, "sgd"), mlp_n=2000, pairs=5,
        mlp_how=(0.1, 2000, 5000), cnn=(256, 1, 1.0), cnn_n=50_000, nets=35,
        cnn_how=(0.01, 256, 40, "thirds"), net=(4, 4), shrink=1, net_n=50_000,
        net_how=(0.005, 256, 1800, "thirds"), images=50_000),
)  # fmt: skip
where = str(devices.device(device))
HOW = ("lr", "batch_size", "epochs", "schedule")
s

# %% [markdown]
# `mlp` is of proposition 1: hidden widths, scale of initial weights, optimizer
# (`paper`: right of figure 20; rate and epochs are not given). `cnn` is of
# figure 2: filters, stride, scale (not given). `net` is of figure 3: blocks
# per stage, width factor. `…_how`: rate, batch, epochs, schedule. Figure 3
# has 70 networks, D.1 a pair of groups of 30; `paper` five pairs of 35.
#
# ## Data
#
# Gaussian inputs with independent entries of variances 0.1, 0.2, … 3.0, and
# CIFAR-10 in $[-1, 1]$, averaged over `shrink` × `shrink` pixels for figure 3.
# Runs draw their inputs, CNNs their images, networks their labels.


# %%
def draw(images, n, seed, device, shrink):
    """Images in [−1, 1] and random labels."""
    x, *_ = data.disjoint(images.x, min(n, len(images)), seed=seed)
    y = data.random_labels(len(x), 10, seed=seed)
    return avg_pool2d(x / 127.5 - 1, shrink).to(device), y.to(device)


seeds = study.seeds(s.runs)
gaussians = [data.load("gaussian", "right", s.mlp_n, seed=k) for k in seeds]
images = data.load("cifar10", n=s.images, shrink=True, dtype=torch.uint8)
for one in (gaussians[0], images):
    study.uses(one)
study.show(plots.strips({"": images.x[:9]}), "maennel.images_nine", "Images.")

# %% [markdown]
# ## Appendix C: rotate, train, rotate back
#
# 200 inputs of 12 dimensions have two different variances, in a basis that is
# not that of the coordinates. We rotate inputs and initial weights by *any*
# orthogonal matrix, and by one that leaves $\Sigma_x$ as it is, a rotation
# *inside* its eigenspaces (all in float64). Appendix C counts Adam and AdaGrad
# in, yet they scale each coordinate of the gradient by its own past.


# %%
def turned_run(seed, method):
    """How far a network is from the rotated one, rotated back."""
    sizes = enumerate((12, 12, 6, 6))
    axes, turn, *two = (random_basis(d, seed=4 * seed + k) for k, d in sizes)
    inside = axes @ torch.block_diag(*two) @ axes.mT
    x = torch.randn(200, 12, generator=torch.Generator().manual_seed(seed))
    x = x.double() * torch.tensor([3.0, 1.0]).repeat_interleave(6) @ axes.mT
    y = data.random_labels(len(x), 10, seed=seed)
    how = dict(optimizer=method, lr=0.01, epochs=20, seed=seed)
    if method == "weight decay":
        how |= dict(optimizer="sgd", weight_decay=0.01)

    def trained(G):
        net = models.MLP(12, 10, width=(64, 32), seed=seed).double()
        net.fc1.weight.data @= G.mT
        train.fit(net, x @ G.mT, y, **how)
        net.fc1.weight.data @= G
        weights = [p.detach().flatten() for p in net.parameters()]
        return weights[0], torch.cat(weights)

    plain, rows = trained(torch.eye(12).double()), []
    for name, G in (("any", turn), ("inside", inside)):
        both = zip(plain, trained(G))
        logs = [float(((a - b).norm() / a.norm()).log10()) for a, b in both]
        rows.append(dict(turn=name, first=logs[0], all=logs[1]))
    return rows


METHODS = ("sgd", "momentum", "nesterov", "weight decay", "adam", "adagrad")
turned = study.sweep(turned_run, study.grid(seed=seeds, method=METHODS))

# %% tags=["hide-input"]
fig = plots.scatter(turned, x="first", y="method", hue="turn", size=(6, 2.6))
fig.axes[0].set(xlabel="log₁₀ of relative difference, first layer", ylabel="")
caption = "Appendix C: how far the first layer, trained on rotated inputs and "
caption += "rotated back, is from the plain one. Rounding is near −16."
study.show(fig, "maennel.appC", caption, table=turned)
by, own = dict(size=["runs"], data=[]), turned["method"].isin(METHODS[4:])
top = turned[~own].groupby("method")["all"].max().to_dict()
study.claim("maennel.appC", holds=max(top.values()) < -8, measured=top, **by)
logs = turned[own].groupby(["method", "turn"])["first"]
effects = {", ".join(k): study.below(v, -6) for k, v in logs}
study.claim("maennel.appC.adaptive", effects=effects, **by)

# %% [markdown]
# ## Proposition 1: Gaussian inputs
#
# A run trains `mlps` networks on its sample and pools their first layers.


# %%
def mlp_run(sample, seed, mlps, mlp, options, device):
    """Scores of the pooled first layers after training."""
    own, x = [1000 * seed + k for k in range(mlps)], sample.x.to(device)
    y = torch.stack([data.random_labels(len(x), 10, seed=k) for k in own])
    kind = dict(width=mlp[0], init_scale=mlp[1])
    nets = [models.MLP(30, 10, **kind, seed=k).to(device) for k in own]
    train.fit_many(nets, x, y.to(device), **options, seeds=own)
    w = torch.cat([net.fc1.weight for net in nets])
    cov = torch.arange(1, 31.0).diag() / 10
    return [misalignment_scores(cov, w, seed=seed)._asdict()]


def below(end, share):
    """Effects and numbers of a claim: lower by score, and by excess."""
    ours, other = end["data"] - end["floor"], end["random"] - end["floor"]
    told = end[["data", "random", "floor"]].mean().to_dict()
    told["excess, and in random bases"] = ours.mean(), other.mean()
    told["ratio of the two, with interval"] = study.ratio(ours, other)
    effects = {"score, less that in random bases": study.below(ours - other)}
    less = study.below(ours - share * other)
    effects[f"excess, less {share} of theirs"] = less
    return dict(effects=effects, measured=told)


grid = [dict(sample=g, seed=k) for g, k in zip(gaussians, seeds)]
how = dict(zip(HOW, s.mlp_how), optimizer=s.mlp[2])
fixed = dict(mlp=s.mlp, mlps=s.mlps, options=how, device=where)
gauss = study.sweep(mlp_run, grid, **fixed)
by = dict(data=gaussians[:1], size=("mlp", "mlps", "mlp_n", "mlp_how", "runs"))
study.claim("maennel.prop1", **below(gauss, 0.25), **by)

# %% [markdown]
# ## Figure 2: a CNN on CIFAR-10
#
# A convolution of 3×3 filters ($d = 27$) and a dense layer of 64 units learn
# random labels; after each epoch we score the filters in the basis of the
# run's own patches. Initial filters are isotropic and score the floor on
# average, in every basis: to fall, the data's score would have to pass it.


# %%
def cnn_run(images, seed, n, cnn, options, device):
    """Scores of the filters after each epoch."""
    x, y = draw(images, n, seed, device, 1)
    kind = dict(zip(("filters", "stride", "init_scale"), cnn))
    kind["padding"] = "same" if kind["stride"] == 1 else "valid"
    cov = covariance.patch_covariance(x.cpu(), 3, stride=kind["stride"])
    net = models.SimpleCNN(convs=1, units=64, **kind, seed=seed).to(device)

    def look(net, epoch):
        return misalignment_scores(cov, net.conv0.weight, seed=seed)._asdict()

    how = dict(options, optimizer="momentum", measure=look, seed=seed)
    seen = train.fit(net, x, y, **how).measured
    return [dict(epoch=epoch, **found) for epoch, found in seen.items()]


fixed = dict(images=images, options=dict(zip(HOW, s.cnn_how)), device=where)
grid = study.grid(seed=seeds)
cnns = study.sweep(cnn_run, grid, n=s.cnn_n, cnn=s.cnn, **fixed)

# %% tags=["hide-input"]
drawn = cnns.melt(["seed", "epoch"], None, "basis", "misalignment")
fig = plots.curves(drawn, x="epoch", y="misalignment", hue="basis", aspect=1.6)
swap = f"stride 3 and {min(s.cnn_n, len(images))} images in place of "
swap = "" if s.cnn[1] == 1 else swap + "stride 1 and 50,000"
caption = "Figure 2: misalignment in the data's and in random bases, and the "
caption += "floor. By the paper, the data's falls and stays below. " + swap
study.show(fig, "maennel.fig2", caption, table=drawn)
by = dict(stand_in=swap, data=[images], size=("cnn_n", "cnn", "cnn_how"))
last = cnns["epoch"].max()
end = below(cnns[cnns["epoch"] == last], 0.5)
study.claim("maennel.fig2.below", **end, **by)
at = cnns.pivot(index="seed", columns="epoch", values="data")
falls = {f"end, less epoch {k}": study.below(at[last] - at[k]) for k in (1, 0)}
by["measured"] = {"score after epoch": at[[0, 1, last]].mean().to_dict()}
study.claim("maennel.fig2.decreases", effects=falls, **by)

# %% [markdown]
# ## Figure 3 and the table of D.1: a residual network
#
# Its first filters are 5×5 ($d = 75$). A group of networks pools its filters;
# two groups form a pair. If $U$ and $V$ have orthonormal bases of two spaces
# of $k$ dimensions as columns, $\|U^\top V\|_F^2/k$ is the mean squared cosine
# of the angles between them. The table has $|\langle e_i, e_i'\rangle|$ of
# the two groups of a pair, and of random halves of the images.


# %%
def stem(images, own, n, shrink, net, options, device):
    """The first filters of one trained network."""
    x, y = draw(images, n, own, device, shrink)
    kind = dict(zip(("blocks", "width"), net), init_scale=0.01)
    model = models.wide_resnet(**kind, seed=own).to(device)
    train.fit(model, x, y, optimizer="momentum", **options, seed=own)
    return model.stem.weight.detach().flatten(1).double().cpu()


groups = [2 * k + i for k in study.seeds(s.pairs) for i in (0, 1)]
own = [1000 * group + k for group in groups for k in range(s.nets)]
fixed = dict(images=images, n=s.net_n, shrink=s.shrink, device=where)
fixed |= dict(net=s.net, options=dict(zip(HOW, s.net_how)))
stems = study.sweep(stem, study.grid(own=own), **fixed)
stems = torch.stack(stems).view(len(groups), -1, 75)
filters = [covariance.filter_covariance(w) for w in stems]

# %% tags=["hide-input"]
half, pool = len(images) // 2, [images.x]
for k in groups[::2]:
    pool += data.disjoint(images.x, half, half, seed=k)
small = (avg_pool2d(x / 127.5 - 1, s.shrink) for x in pool)
whole, *parts = [covariance.patch_covariance(x, 5).double() for x in small]
both = whole, filters[0] + filters[1]
a, b = (torch.linalg.eigh(cov)[1].mT.flip(0)[:12] for cov in both)
b = b * (a * b).sum(1, keepdim=True).sign()
fig, axes = plt.subplots(2, 12, figsize=(9, 1.9))
for ax, v in zip(axes.flat, torch.cat([a, b])):
    ax.imshow((v / v.abs().max() / 2 + 0.5).view(3, 5, 5).permute(1, 2, 0))
    ax.axis("off")
swap = "one block a group, width factor 1, 16 pixels in place of 4, 4 and 32"
swap = "" if s.net == (4, 4) else swap
caption = "Figure 3: first eigenvectors of patches (above) and of the filters "
caption += "of a pair (below, signs matched), maybe in another order. " + swap
study.show(fig, "maennel.fig3", caption)
ramp, effects, told = torch.arange(75).double().diag(), {}, {}
drawn = [random_basis(75, seed=k) for k in range(100)]
for k in (4, 8, 16):
    sets = ([b @ ramp @ b.mT for b in drawn], filters)
    other, ours = ([covariance.overlap(whole, c, k) for c in v] for v in sets)
    effects[f"first {k}"] = study.above([float(v - max(other)) for v in ours])
    told[f"first {k}, largest random"] = sum(ours) / len(ours), max(other)
size = ("nets", "net", "net_n", "net_how")
by = dict(stand_in=swap, data=[images], size=size)
study.claim("maennel.fig3", effects=effects, measured=told, **by)
cosines, agree = covariance.eigenvector_agreement, {}
for name, v in (("data", parts), ("filters", filters)):
    both = [cosines(a, b)[:12] for a, b in zip(v[::2], v[1::2])]
    agree[name] = torch.stack(both)
four = pd.DataFrame({f"{k}, 1–4": v[:, :4].mean(1) for k, v in agree.items()})
four["filters, 9–12"] = agree["filters"][:, 8:].mean(1).numpy()
study.claim("maennel.tabD1.weights", effects=study.ordered(four, *four), **by)
paper = [0.974, 0.958, 0.916, 0.934, 0.861, 0.861]
paper += [0.906, 0.946, 0.924, 0.811, 0.598, 0.645]
table = {name: v.mean(0) for name, v in agree.items()} | {"paper": paper}
table = pd.DataFrame(table, pd.RangeIndex(1, 13, name="i"))
study.table(table, "Agreement, mean over pairs; the paper's is of filters.")

# %% [markdown]
# ## What differs from the paper, and why
#
# - Networks, samples and initial weights are smaller, the rate is constant:
#   large weights hardly move in so few steps. Small ones may.
# - Every score has its floor beside it, and ten random bases are averaged.
#
# ## Try it
#
# 1. Set `change = {"mlp": ((256, 64), 1.0, "momentum")}`. What is left to see?
# 2. In that, take "adam". Why may it keep the symmetry of these inputs?

# %% tags=["hide-input"]
study.stamp()
