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
# # The equilibrium of two losses
#
# *Section 3, appendices A and B of {cite:t}`lou2022`: equation 9, theorems 1
# and 2, corollary 1.*
#
# ```{note}
# The recursions are the paper's, for infinite width, to a million layers. The
# networks of finite width have the sizes of its figures 1 and 2 in all
# profiles but `smoke`. Of its data sets KMNIST is left out; no claim needs it.
# ```
#
# Which layer of a deep network is best placed to align with the labels? The
# paper's answer: the one where information about the input, lost on the way
# forward, and information about the output, lost on the way back, are equal.

# %% tags=["hide-cell"]
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from torch import func

from repalign import data, models, plots, propagation, study, tangent
from repalign.machine import devices

study.begin("lou/02_equilibrium")

# %% [markdown]
# ## The idea
#
# A network has $L$ layers, $z_1 = W_1 x$ and $z_l = W_l\,\phi(z_{l-1})$, with
# $\phi(v) = \max(v, 0)$ and weights of variance 2 / fan-in. Its output is $f$.
# The tangent kernel of layer $l$ for two inputs $x$, $x'$ is $K_l = \nabla_{
# W_l} f(x) \cdot \nabla_{W_l} f(x')$. A gradient with respect to a weight is
# what enters it, $\phi(z_{l-1})$, times the gradient at what leaves it. So the
# kernel, divided by its number of weights, is a product (equation 9),
#
# $$
# \bar K_l = \overrightarrow K_l \circ \overleftarrow K_l , \qquad
# \overrightarrow K_l = \tfrac1{N_{l-1}}\, \phi(z_{l-1}) \cdot \phi(z_{l-1}') ,
# \quad \overleftarrow K_l = \tfrac1{N_l}\, \tfrac{\partial f}{\partial z_l}
# \cdot \tfrac{\partial f}{\partial z_l'} ,
# $$
#
# where $N_l$ counts the units of layer $l$, a prime marks what belongs to
# $x'$, and $\circ$ multiplies entry by entry.
#
# Let the widths grow, and let $c_0$ be the correlation (cosine) of $x$ and
# $x'$. After each layer it is $c_l = g(c_{l-1})$, $g(c) = (c \arcsin c +
# \sqrt{1 - c^2})/\pi + c/2$. The *forward information* is $I^f_l =
# c_{l-1}/2$, for inputs scaled so that $z_l$ has variance 1. The *backward
# information* is $I^b_l = \prod_{k=l}^{L-1} g'(c_{k-1})$, which is 1 at the
# last layer. All correlations tend to 1, so $I^f_l$ tends to 1/2 whatever the
# inputs were: $1/2 - I^f_l$ is the forward loss. Far from the last layer,
# $I^b_l$ tends to 0 whatever they were: $I^b_l$ itself is the backward loss.
#
# ## A toy whose answer is known
#
# One layer and $c_0 = -1, 0, 1$. For opposite inputs a unit is never active
# for both: $g = g' = 0$. For orthogonal ones $g(0) = 1/\pi$; a quarter of the
# units is active for both, so with the weights' factor 2, $g'(0) = 1/2$. Equal
# inputs stay equal: $g = g' = 1$. Averages over random units should agree.

# %%
c = torch.tensor([-1.0, 0.0, 1.0]).double()
a, b = torch.randn(2, 100_000, generator=torch.Generator().manual_seed(0))
z = (c[:, None] * a + (1 - c**2).sqrt()[:, None] * b).double()
toy = {"g, known": [0, 1 / np.pi, 1], "g′, known": [0, 0.5, 1]}
toy["g, recursion"] = propagation.correlations(c, 1)[:, 1]
toy["g′, recursion"] = propagation.backward_information(c, 2)[:, 0]
toy["g, units"] = 2 * (a.relu() * z.relu()).mean(1)
toy["g′, units"] = 2 * ((a > 0) & (z > 0)).double().mean(1)
toy = pd.DataFrame(toy, pd.Index(c.tolist(), name="c₀"))
study.table(toy, "One layer: correlation g after it, factor g′ on the way")

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
same = dict(deepest=10**6, c0=(0.0, 0.3, 0.6, 0.9))
own = dict(same, nets=((10, 256), (20, 256)))
tiny = dict(same, nets=((4, 16), (6, 16)))
s = study.settings(
    profile, change,
    smoke=dict(tiny, n=100, others=((4, 8),), inits=3, runs=2),
    laptop=dict(own, n=500, others=((10, 64),), inits=50, runs=3),
    desktop=dict(own, n=2000, others=((10, 64), (10, 512)), inits=250, runs=5),
    paper=dict(own, n=5000, others=((10, 1024),), inits=1000, runs=10),
)  # fmt: skip
where = devices.device(device)
s

# %% [markdown]
# `nets` are depth and width of the networks of the claim, outside of `smoke`
# those of the paper's figures 2 and 1; `others` are drawn beside them. A run
# is the mean over `inits` of each. The paper measures no such mean.
#
# ## Data
#
# The recursions need $c_0$. What is it for images, less the mean over pixels?

# %%
load = partial(data.load, n=s.n, shrink=True)
sets = [load(name) for name in ("mnist", "fashion_mnist", "cifar10")]
images, (fig, ax) = {}, plt.subplots(figsize=(6.4, 2.6))
for one in sets:
    study.uses(one)
    x = torch.nn.functional.normalize((one.x - one.x.mean()).flatten(1))
    cosine = (x @ x.T)[~torch.eye(len(x), dtype=torch.bool)]
    ax.hist(cosine, 60, density=True, histtype="step", lw=2, label=one.name)
    images[one.name] = float(cosine.mean())
ax.set(xlabel="correlation $c_0$ of two images", ylabel="density")
ax.legend()
text = "Correlations of pairs of images, with which they enter a network."
study.show(fig, "lou.correlations", text)

# %% [markdown]
# ## Equation 9
#
# Networks of three hidden layers on ten images, with one output and with
# three. For each layer of weights: the kernel from the Jacobian $J$ (a row for
# each image and output), the package's, and the product. For several outputs
# the forward kernel is repeated for every pair of outputs.

# %%
x, off = sets[0].x[:10].double() - sets[0].x.mean(), {}
for o in (1, 3):
    net = models.MLP(784, o, depth=3, width=30, bias=False, seed=o).double()
    theta = dict(net.requires_grad_(False).named_parameters())
    f = partial(func.functional_call, net, args=(x,))
    jacobian, kernel = func.jacrev(f)(theta), tangent.layer_kernels(net, x)
    for layer, (forward, backward) in tangent.forward_backward(net, x).items():
        J = jacobian[f"{layer}.weight"].flatten(2).flatten(0, 1)
        again = forward.repeat_interleave(o, 0).repeat_interleave(o, 1)
        both = again * backward * J.shape[1], kernel[layer]
        far = max(float((v - J @ J.T).abs().max()) for v in both)
        off[f"{layer}, outputs: {o}"] = far / float((J @ J.T).abs().max())
by = dict(data=[sets[0]], seeds=[1, 3], size=(), measured=off)
study.claim("lou.eq9", holds=max(off.values()) < 1e-8, **by)

# %% [markdown]
# ## Run: theorems 1 and 2 in a million layers
#
# One recursion serves all depths: the backward information of layer $l$ in a
# network of $L$ layers is that of layer $l$ in the deepest, divided by that of
# its layer $L$. Near 1 a correlation has no digits left, so the package recurs
# in the gap $1 - c_l$; the forward loss is half of it.


# %%
def slope(x, y):
    """Slope of log y over log x, by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def spaced(low, high, count=41):
    """Multiples of 4, evenly spread on a logarithmic axis."""
    return np.unique(np.geomspace(low, high, count).astype(int) // 4 * 4)


def to_limit(i, share, depths):
    """|backward information − α³| L / log L at layer αL, for start i."""
    at = (share * depths).astype(int)
    found = back[i, at - 1] / back[i, depths - 1]
    return abs(found - share**3) * depths / np.log(depths)


starts, top = np.array(s.c0), s.deepest
loss = propagation.gaps(1 - starts, top - 1) / 2  # (starts, layers 1 to top)
back = propagation.backward_information(starts, top)
early, deep = spaced(1e3, 1e4), spaced(1e4, top)
names = {f"c₀ = {c:g}": i for i, c in enumerate(s.c0)}

# %% tags=["hide-input"]
rows, ticks, every = [], plots.spread(top, 90), spaced(8, top, 90)
for start, i in names.items():
    lines = {"forward loss over l": (ticks, loss[i, ticks - 1])}
    lines["backward information over L/l"] = top / ticks, back[i, ticks - 1]
    lines["its distance to α³, over L"] = every, to_limit(i, 0.5, every)
    for k, v in lines.items():
        rows += [dict(start=start, panel=k, x=a, y=b) for a, b in zip(*v)]
shown = dict(hue="start", col="panel", labels=dict(start="", x="", y=""))
rows, ends = pd.DataFrame(rows), np.array([1e2, 1e6])
fig = plots.curves(rows, x="x", y="y", **shown, log="xy", aspect=1.1)
fig.axes[0].plot(ends, 9 * np.pi**2 / 4 / ends**2, "--", color="0.5")
fig.axes[1].plot(ends, ends**-3.0, "--", color="0.5")
text = "Theorems 1 and 2. Dashed: 9π²/4 l⁻² and (L/l)⁻³. Right: for α = 1/2, "
text += "times L / log L: level by theorem 2."
study.show(fig, "lou.thm1", text, table=rows)
one = {k: slope(deep, loss[i, deep - 1]) for k, i in names.items()}
two = {k: slope(top / early, back[i, early - 1]) for k, i in names.items()}
three = {f"α = {a:g}, {k}": slope(deep, to_limit(i, a, deep))
         for a in (0.25, 0.5, 0.75) for k, i in names.items()}  # fmt: skip
by = dict(data=[], seeds=[], size=("deepest", "c0"))
bounds = {"thm1": (one, -2, 0.05), "thm2.early": (two, -3, 0.05)}
for id, (of, at, near) in (bounds | {"thm2.share": (three, 0, 0.1)}).items():
    holds = all(abs(v - at) <= near for v in of.values())
    study.claim(f"lou.{id}", holds=holds, measured={"slopes": of}, **by)

# %% [markdown]
# ## Corollary 1: where the losses are equal
#
# From theorems 1 and 2, $l^{-2} = (L/l)^{-3}$ at the equilibrium, so $l =
# L^{3/5}$, up to a factor. The curves below come from the recursions and do
# not use the theorems. The slope is that of $\log l$ over $\log L$.

# %% tags=["hide-input"]
few = np.arange(10, 101, 10)  # the depths of the paper's figure 3
depths = np.unique(np.concatenate([few, deep, plots.spread(top, 90)[15:]]))
layer = propagation.equilibrium_layer(starts, depths)
fits, rows = {}, []
for some in (few, deep):
    at = layer[:, np.isin(depths, some)]
    fits[some[0]] = {k: slope(some, at[i]) for k, i in names.items()}
for start, i in names.items():
    local = np.gradient(np.log(layer[i]), np.log(depths))
    rows += [dict(start=start, L=k, panel=panel, y=v)
             for panel, of in (("layer l", layer[i]), ("slope", local))
             for k, v in zip(depths, of)]  # fmt: skip
rows = pd.DataFrame(rows)
fig = plots.curves(rows, x="L", y="y", **shown, log="x", aspect=1.4)
(left, right), second = fig.axes, [*names][1]
for some in (few, deep):
    fit, ends = fits[some[0]][second], some[[0, -1]]
    first = layer[1, depths == some[0]]
    left.plot(ends, 2 * first * (ends / some[0]) ** fit, "--", color="0.4")
    left.annotate(f"{fit:.2f}", (some[0], 5 * first[0]))
    right.axvspan(*ends, color="0.5", alpha=0.15, lw=0)
right.axhline(0.6, ls="--", color="0.4")
right.set(ylim=(0.4, 1.4))
left.set(yscale="log")
text = "Left: layer of equal losses; dashed, moved up: the slopes fitted for "
text += f"{second} over L = 10 to 100 and 10⁴ to 10⁶ (shaded, right). "
text += "Right: local slope; dashed, 3/5, which deep networks should reach."
study.show(fig, "lou.cor1", text, table=rows)
finite, deepest = fits.values()
holds = all(abs(v - 0.6) <= 0.02 for v in deepest.values())
study.claim("lou.cor1", holds=holds, measured={"slopes": deepest}, **by)
holds, own = min(finite.values()) > 0.7, np.array([*images.values()])
at = [slope(few, v) for v in propagation.equilibrium_layer(own, few)]
told = {"slopes": finite, "mean c₀ of images": images}
told["slopes there"] = dict(zip(images, at))
study.claim("lou.cor1.finite", holds=holds, measured=told, **by)

# %% [markdown]
# A straight line through depths of 10 to 100 is thus no test of the exponent
# 3/5: the recursions have another slope there. (For $c_0 = 0.9$ and few layers
# the losses cross before the first layer, and the layer counts as 1.)
#
# ## Networks of finite width
#
# Each network gets one input and four partners, whose correlations with it are
# the `c0` above, of squared length $d/2$ in $d$ dimensions: then $z_l$ has
# variance 1. Forward and backward kernels are those of equation 9, the latter
# summed over units, so that it is 1 at the last layer. A run is the mean over
# `inits` networks. Its *deviation* is |mean / recursion − 1|, averaged over
# layers and correlations. Two values are known in advance and left out: the
# forward kernel of layer 1 is that of the inputs, the last backward one is 1.


# %%
def one_run(seed, net, c0, inits, device):
    """Information by layer, mean over networks, beside the recursion's."""
    (depth, width), d, total = net, 8, 0
    c = torch.tensor(c0).double()
    x = torch.zeros(1 + len(c), d)
    x[0, 0], x[1:, 0], x[1:, 1] = 1, c, (1 - c**2).sqrt()
    x, kind = x.to(device) * (d / 2) ** 0.5, dict(depth=depth - 1, width=width)
    for k in range(inits):
        net = models.MLP(d, 1, **kind, bias=False, seed=100_000 * seed + k)
        found = tangent.forward_backward(net.to(device), x)
        both = [torch.stack([a[0, 1:], b[0, 1:]]) for a, b in found.values()]
        both = torch.stack(both, 2).double()
        both[1, :, :-1] *= width  # the last layer has one unit, the output
        total = total + both / inits
    exact = propagation.forward_information, propagation.backward_information
    return [
        dict(c0=c0[i], layer=k + 1, kind=kind, information=float(mean[i, k]),
             exact=v, known=k == (0 if kind == "forward" else depth - 1))
        for kind, mean, of in zip(("forward", "backward"), total, exact)
        for i, line in enumerate(of(c, depth).tolist())
        for k, v in enumerate(line)
    ]  # fmt: skip


grid = study.grid(net=(*s.nets, *s.others), seed=study.seeds(s.runs))
fixed = dict(c0=s.c0, inits=s.inits, device=str(where))
wide = study.sweep(one_run, grid, **fixed)
wide["depth"] = wide["net"].map("{0[0]} layers".format)
wide["width"] = wide["net"].map("width {0[1]}".format)

# %% tags=["hide-input"]
drawn = wide[wide["c0"] == s.c0[1]]
exact = drawn.drop_duplicates(["depth", "kind", "layer"])
exact = exact.assign(width="infinite", information=exact["exact"])
drawn = pd.concat([drawn, exact])
fig = plots.curves(
    drawn, x="layer", y="information", hue="width", row="kind", col="depth",
    height=2.4, aspect=1.5, labels={"width": ""},
)  # fmt: skip
plt.setp(fig.axes[2:], yscale="log")
text = f"Information by layer, c₀ = {s.c0[1]:g}: mean and standard error of "
text += f"{s.runs} runs of {s.inits} networks, beside the recursion's. If the "
text += f"claim holds, curves of {s.nets} lie near that of infinite width."
study.show(fig, "lou.width", text, table=drawn)
wide["of"] = wide["kind"] + ", " + wide["depth"] + ", " + wide["width"]
new = wide[~wide["known"]]
ratio = new["information"] / new["exact"]
off = (ratio - 1).abs().groupby([new["of"], new["net"], new["seed"]]).mean()
effects = {f"{of}: deviation": study.below(part, 0.1)
           for (of, net), part in off.groupby(level=[0, 1], sort=False)
           if net in s.nets}  # fmt: skip
told = {"deviation": off.groupby(level=0).mean().to_dict()}
first = ratio[(new["layer"] == 1) & (new["c0"] == s.c0[1])].groupby(new["of"])
told["layer 1, relative to the recursion"] = first.mean().to_dict()
by = dict(data=[], size=("nets", "c0", "inits", "runs"))
study.claim("lou.width", effects=effects, measured=told, **by)

# %% [markdown]
# Two things can move a curve away. Lengths of $z_l$ and of gradients vary from
# net to net, more at a larger depth / width, so means need many of them. And
# correlations vary: a product of many factors, as backward, should feel that.
#
# ## What differs from the paper, and why
#
# - The paper takes inputs of squared length $d$ and a variance of 1 for $z_1$,
#   which do not go together with weights of variance $2/d$. We take $d/2$.
# - Slopes over its own depths, 10 to 100, and finite widths are not in it.
#
# ## Try it
#
# 1. Set `change = {"c0": (-0.5, 0.1, 0.8)}`. Which start is the slowest?
# 2. Set `change = {"others": ((10, 16), (10, 128))}`. How does the deviation
#    of the backward information fall with the width?

# %% tags=["hide-input"]
study.stamp()
