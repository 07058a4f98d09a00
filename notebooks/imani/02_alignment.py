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
# # Representation alignment
#
# *Section 4 of {cite:t}`imani2022`: equations 1, 2, figures 2 (a, b), 3, 4.*
#
# Two representations can both fit the labels exactly, and still differ in how
# easily they do it. This page defines the quantity that tells them apart,
# and measures it on the paper's own data, handwritten digits.

# %% tags=["hide-cell"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from repalign import data, plots, study
from repalign.alignment import alignment, spectrum, unit_rows
from repalign.machine import devices

study.begin("imani/02_alignment")

# %% [markdown]
# ## The idea
#
# A representation is a matrix $\Phi$ with one row for each of $n$ samples, and
# $y$ is the vector of their labels. Write $\Phi = U \Sigma V^\top$, with
# singular values $\sigma_1 \ge \sigma_2 \ge \dots$, of which $r$ are not
# zero: the columns $u_i$ of $U$ are directions in the space of samples, the
# columns $v_i$ of $V$ in the space of features. With $w_i^V = v_i^\top w$, the
# squared loss of a linear model with weights $w$ falls apart (eq. 1):
#
# $$
# \|\Phi w - y\|^2
# = \sum_{i=1}^{r} \bigl(\sigma_i\, w_i^V - u_i^\top y\bigr)^2
# + \sum_{i=r+1}^{n} \bigl(u_i^\top y\bigr)^2 .
# $$
#
# If $u_i^\top y$ is large where $\sigma_i$ is small, the weight $w_i^V$ has to
# grow very large to remove that piece. A good representation has the labels'
# *power* $(u_i^\top y)^2$ along its large singular values. *Alignment* at a
# threshold $\tau$ says how much of it is there (eq. 2):
#
# $$
# \mathrm{Alignment}(\Phi, y, \tau)
# = \sum_{i\,:\,\sigma_i \ge \tau} \bigl(u_i^\top y\bigr)^2 .
# $$
#
# ## A toy whose answer is known
#
# Two features that do not mix: the singular values are 2 and 1, and the labels
# have power 9 along the first and 16 along the second. So the alignment is 25
# up to $\tau = 1$, then 9 up to $\tau = 2$, then 0.

# %%
toy = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
steps = pd.Index([0.0, 1.0, 1.5, 2.5], name="τ")
found = alignment(toy, torch.tensor([3.0, 4, 5]), torch.tensor(steps)).numpy()
study.table(pd.DataFrame({"alignment": found}, steps), "The toy.")

# %% [markdown]
# No threshold recovers the third label, outside the range of $\Phi$. The curve
# starts at the *projection* of $y$ on that range, which is $\|y\|^2$ only if a
# linear model can fit the labels exactly.
#
# ## The claims of this page

# %% tags=["hide-input"]
study.claims()

# %% [markdown]
# ## Settings
#
# The paper shows one sample; an interval needs several, also in its column.

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"runs": 2}: replaces values in the table below

# %% tags=["hide-input"]
s = study.settings(
    profile,
    change,
    smoke=dict(n=400, runs=2, circle_n=1000, draws=10),
    laptop=dict(n=10_000, runs=5, circle_n=1000, draws=100),
    desktop=dict(n=10_000, runs=10, circle_n=1000, draws=100),
    paper=dict(n=10_000, runs=10, circle_n=1000, draws=100),
)
s

# %% [markdown]
# ## Data
#
# Zeros and ones of MNIST, as many of one as of the other, with labels $+1$ and
# $-1$; each run draws its own. An image is a row of $\Phi$. Before scaling, a
# constant feature is appended to every representation, as in the authors'
# demonstration code; rows then have length one.

# %%
seeds = study.seeds(s.runs)
pair = dict(name="mnist", n=s.n, classes=("0", "1"), shrink=True)
samples = [data.load(**pair, seed=seed) for seed in seeds]
digits = samples[0]
study.uses(digits)

# %% tags=["hide-input"]
tens = [digits.x[digits.y == label][:10, 0] for label in (0, 1)]
fig, ax = plt.subplots(figsize=(7.2, 1.6))
ax.imshow(torch.cat([torch.cat([*ten], 1) for ten in tens]), cmap="gray_r")
ax.axis("off")
study.show(fig, "imani.data", "The first ten images of each class.")

# %% [markdown]
# ## Run
#
# One decomposition gives the singular values and the power of the labels along
# each direction. The true and the shuffled labels are two columns of the same
# $y$; a run's seed chooses its images and its shuffle. A row of the result is
# one direction, and the first 60 are kept.


# %%
def true_and_shuffled(sample, seed, modes, device):
    """σᵢ and (uᵢᵀy)² of one sample, for its true and for shuffled labels."""
    phi = unit_rows(sample.x.to(device).flatten(1).double(), constant=True)
    y = 1.0 - 2.0 * sample.y.double()
    order = torch.Generator().manual_seed(seed)
    mixed = y[torch.randperm(len(y), generator=order)]
    spec = spectrum(phi, torch.stack([y, mixed], dim=1).to(device))
    sigma, powers = spec.sigma.tolist(), spec.power.mT.tolist()
    return [
        dict(labels=name, index=i + 1, sigma=sigma[i], power=power[i])
        for name, power in zip(("true", "shuffled"), powers)
        for i in range(modes)
    ]


cells = [dict(sample=x, seed=seed) for x, seed in zip(samples, seeds)]
where = str(devices.device(device))
runs = study.sweep(true_and_shuffled, cells, modes=60, device=where)

# %% [markdown]
# ## Figure 2 (a, b)

# %% tags=["hide-input"]
names = {"true": "(a) true labels", "shuffled": "(b) shuffled labels"}
names |= dict(sigma="singular value $\\sigma_i$", power="$(u_i^\\top y)^2$")
look = dict(col="labels", hue="quantity", log="y", sharey=True)
look["labels"] = {"index": "index $i$", "value": "", "quantity": ""}
drawn = runs.melt(["labels", "seed", "index"], ["sigma", "power"], "quantity")
fig = plots.modes(drawn.replace(names), y="value", **look)
seen = f"""Figure 2 (a, b): {len(digits)} images, mean and standard error over
{s.runs} samples. If the claim holds, true labels project most on the first few
singular vectors, and shuffled labels about evenly on all."""
study.show(fig, "imani.fig2", seen, table=drawn)

# %% [markdown]
# What share of $\|y\|^2$ do the top 1% of the directions hold? Spread evenly,
# each of the $n$ directions of the space of samples would hold $1/n$ of it.
# Runs of 10,000 images share most of them; what varies is the shuffle.

# %% tags=["hide-input"]
n = len(digits)
top = int(np.ceil(0.01 * min(n, digits.x[0].numel() + 1)))
held = runs[runs["index"] <= top].groupby(["labels", "seed"])["power"].sum()
ratio = np.log10(held["true"] / held["shuffled"])
study.claim(
    "imani.fig2.true",
    effects={"log₁₀(true / shuffled)": study.above(ratio, 1)},
    measured={f"share, {k}": held[k].mean() / n for k in ("true", "shuffled")},
    data=samples,
    size=("n", "runs"),
)

# %% [markdown]
# ## Equations 1 and 2, twice
#
# The fast route above never forms the singular vectors. Here is the dense one,
# on a thousand of the images: a full SVD, random weights, and the sum of
# equation 2 written out. Its curve is flat between two singular values, and
# compared at the middle, where rounding cannot decide what counts.

# %%
few = slice(None, None, max(1, n // 1000))
phi = unit_rows(digits.x[few].flatten(1).double(), constant=True)
y = 1.0 - 2.0 * digits.y[few].double()
u, sv, vh = torch.linalg.svd(phi, full_matrices=True)
y_u, k = (u.mT @ y)[:, None], len(sv)
random = torch.Generator().manual_seed(0)
w = torch.randn(phi.shape[1], 20, generator=random, dtype=phi.dtype)
left = (phi @ w - y[:, None]).square().sum(0)
right = (sv[:, None] * (vh @ w)[:k] - y_u[:k]).square().sum(0)
right += y_u[k:].square().sum()
eq1_off = float(((left - right).abs() / left).max())
curve, r = spectrum(phi, y).curve(), torch.linalg.matrix_rank(phi)
middle = (curve.tau[1:] + curve.tau[:-1]) / 2
dense = (y_u[:r].square() * (sv[:r, None] >= middle)).sum(0)
apart = curve.tau.diff() > 1e-9 * curve.tau[-1]
fit = phi @ torch.linalg.lstsq(phi, y[:, None], driver="gelsd").solution
start = float((curve.value[0] - fit.square().sum()).abs() / len(y))
inner = float((dense - curve.value[1:])[apart].abs().max() / len(y))
rise = float(curve.value.diff().max().clamp(min=0) / len(y))

# %% tags=["hide-input"]
about = dict(data=[digits], seeds=seeds[:1], size=())
off = {"largest relative error": eq1_off}
study.claim("imani.eq1", measured=off, holds=eq1_off < 1e-10, **about)
off, holds = dict(start=start, curve=inner, rise=rise), rise == 0
holds = holds and max(start, inner) < 1e-10
study.claim("imani.eq2", measured=off, holds=holds, **about)

# %% [markdown]
# ## Figure 3
#
# The paper draws figure 3 by hand. It can be built: labels have much power
# along the first of 200 directions, little along the last. Good has its
# singular values from the largest on, bad in reverse; neither has a constant.

# %%
random = torch.Generator().manual_seed(1)
noise = torch.randn(200, 200, generator=random, dtype=torch.float64)
basis = torch.linalg.qr(noise).Q
scale = torch.logspace(1, -0.3, 200, dtype=torch.float64)
y = basis @ (scale / scale.norm())  # power falls from the first to the last
tau = torch.linspace(0, 10, plots.POINTS, dtype=torch.float64)
built = pd.DataFrame({"tau": tau})
for name, sigma in (("good", scale), ("bad", scale.flip(0))):
    built[name] = spectrum(basis * sigma, y).curve(tau).value
built = built.melt("tau", ["good", "bad"], "representation", "alignment")
words = {"alignment": "alignment / $\\|y\\|^2$"}
fig = plots.alignment(built, hue="representation", labels=words)
seen = """Figure 3, built and not drawn by hand. Both curves start at ‖y‖². The
good one keeps its height to a large threshold, the bad one does not."""
study.show(fig, "imani.fig3", seen, table=built)
study.claim("imani.fig3", data=[], seeds=[], size=())

# %% [markdown]
# ## Figure 4
#
# Points on a circle, half of them around the angle $\pi/4$ and half around
# $-3\pi/4$, drawn anew in each run. Left, the classes are the two clusters;
# right, each cluster is cut in half. A line through the origin separates both.
# The points have length one as they are, and get no constant feature.

# %%
spread = 0.297  # gives the ratio of the paper's two singular values
COLUMNS = ("σ₁", "σ₂", "left", "right")


def circle(points, seed):
    """The points of figure 4, (n, 2), and its two labelings, (n, 2)."""
    noise = np.random.default_rng(seed).standard_normal(points)
    center = np.where(np.arange(points) % 2, np.pi / 4, -3 * np.pi / 4)
    angle = center + spread * noise
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return x, np.sign(x @ np.array([[1, 1], [1, -1]]))


circles = pd.DataFrame(columns=COLUMNS, dtype=float)
for seed in seeds:
    spec = spectrum(*circle(s.circle_n, seed))
    # Between σ₂ and σ₁ the curve is flat: one number for each labeling.
    share = spec.alignment(float(spec.sigma.mean())) / s.circle_n
    circles.loc[seed] = [*spec.sigma, *share]

# %% tags=["hide-input"]
x, sides = circle(s.circle_n, seeds[0])
v = np.linalg.svd(x, full_matrices=False).Vh
x, sides = x[::3], sides[::3]  # enough to see
fig, axes = plt.subplots(1, 2, figsize=(7, 3.5))
for k, ax in enumerate(axes):
    for side, color in ((1, study.PALETTE[4]), (-1, study.PALETTE[3])):
        ax.scatter(*x[sides[:, k] == side].T, s=8, color=color)
    for i, arrow in enumerate(v * np.sign(v[:, :1]), 1):
        ax.arrow(0, 0, *(0.65 * arrow), head_width=0.05, color="#7d7d7d")
        ax.text(*(0.85 * arrow), f"$v_{i}$", ha="center", va="center")
    ax.set(aspect="equal", title=f"classes along $v_{k + 1}$")
    ax.set_axis_off()
seen = """Figure 4. The same points with two labelings, both separable by a
line; one point in three is drawn. Arrows: the right singular vectors."""
drawn = pd.DataFrame(np.hstack([x, sides]), columns=[*"xy", *COLUMNS[2:]])
study.show(fig, "imani.fig4", seen, table=drawn)
held, effects = ": share of ‖y‖² between σ₂ and σ₁", {}
effects["left" + held] = study.above(circles["left"], 0.9)
effects["right" + held] = study.below(circles["right"], 0.1)
about = dict(data=[], size=("circle_n", "runs"))
study.claim("imani.fig4", effects=effects, **about)

# %% [markdown]
# **How many points?** The paper prints $\sigma_1 = 9.58$ and $\sigma_2 = 2.84$
# for 1000 points of length one. But $\sum_i \sigma_i^2 = \|\Phi\|_F^2$ is the
# sum of the squared lengths of the rows: $n$, however the angles are spread.
# As $9.58^2 + 2.84^2 = 99.8$, these belong to about 100 points: to 100 if cut
# off after two digits; if rounded, to none (99.72 to 99.97). Of which $n$ are
# they an ordinary sample? A run draws `draws` of each size; an ordinary value
# has a good part of them on its rarer side.

# %%
paper = {"σ₁": 9.58, "σ₂": 2.84}
effects = {
    name: study.within(circles[name], 0.9 * value, 1.1 * value, paper=value)
    for name, value in paper.items()
}
study.claim("imani.fig4.sigma", effects=effects, **about)
draws = [[seed, k] for seed in seeds for k in range(1, s.draws + 1)]
effects, many = {}, len(draws)
for n in (90, 100, 110, 1000):
    drawn = np.stack([circle(n, draw)[0] for draw in draws])
    larger = np.linalg.svd(drawn, compute_uv=False) > [*paper.values()]
    σ1, σ2 = np.minimum(larger.sum(0), many - larger.sum(0))
    if n == 100:
        effects["σ₁ inside at 100"] = study.share(σ1, many, above=0.025)
        effects["σ₂ inside at 100"] = study.share(σ2, many, above=0.025)
    else:
        hits = study.share(min(σ1, σ2), many, below=0.025)
        effects[f"one or both outside at {n}"] = hits
about["size"] = ("draws", "runs")
study.claim("imani.fig4.sigma.hundred", effects=effects, **about)

# %% [markdown]
# ## What differs from the paper, and why
#
# - The paper shows one sample of 10,000 images; this page repeats it with
#   other shuffles, on samples that overlap, for an interval.
# - The spread of the angles in figure 4 is not given. Ours gives the printed
#   singular values' ratio; their size then tests the number of points alone.
#
# ## Try it
#
# 1. Set `change = {"n": 200}`. Which of the two shares under figure 2 moves?
# 2. Replace the classes `("0", "1")` by `("4", "9")`. Are they aligned better?
# 3. Change `spread`. When are the two labelings equally aligned?

# %% tags=["hide-input"]
study.stamp()
