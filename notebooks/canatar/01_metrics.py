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
# # Kernels, modes and power
#
# *Sections II and III of {cite:t}`canatar2022`: equations 1 to 4.*
#
# ```{note}
# The paper states what is checked here without numbers or data. The random
# matrices, the Gaussian samples and the digits of the first figure are ours.
# ```
#
# How well does a representation suit a task? This chapter asks its kernel:
# here are the measures, and what they tell about learning.

# %% tags=["hide-cell"]
import math
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from repalign import data, plots, study
from repalign.alignment import cumulative_power, predicted_error, spectrum
from repalign.kernels import center, cka, gram, kta

study.begin("canatar/01_metrics")

# %% [markdown]
# ## The idea
#
# Let $\psi(x)$ be the features that a layer computes from an input $x$. Its
# *kernel* is $K(x, x') = \psi(x)^\top \psi(x')$, on a sample of $n$ inputs a
# matrix. It is a sum of *modes* $\phi_\rho$ with eigenvalues $\eta_1 \ge
# \eta_2 \ge \dots$, and so is any target $\bar f$, up to a part $r$ that no
# mode reaches (equations 1 and 2):
#
# $$
# K(x, x') = \sum_\rho \eta_\rho\, \phi_\rho(x)\, \phi_\rho(x'), \quad
# \bar f(x) = \sum_\rho a_\rho\, \phi_\rho(x) + r(x), \quad
# C(\rho) = \frac{\sum_{\gamma \le \rho} \|a_\gamma\|^2}
# {\sum_\gamma \|a_\gamma\|^2} .
# $$
#
# Modes are orthonormal in the mean over inputs: on a sample, $\sqrt n$ times
# the eigenvectors of $K / n$. The vector $a_\rho$ has a number for each output
# of the target; its square is the target's *power* in the mode. *Cumulative
# power* $C(\rho)$ (equation 3) is the share of it in the first $\rho$ modes.
# Regression with a kernel learns strong modes first, so a task whose $C(\rho)$
# rises early needs few samples.
#
# *Kernel-target alignment* (KTA, equation 4) is the cosine of the angle
# between a kernel and that of the target, $\bar f(x)^\top \bar f(x')$: $A(K_1,
# K_2) = \mathrm{Tr}(K_1 K_2) / \sqrt{\mathrm{Tr}(K_1^2)\,
# \mathrm{Tr}(K_2^2)}$. CKA is the same for *centered* kernels, those of
# features whose mean is removed.
#
# ## A toy whose answer is known
#
# Four samples; as features the patterns $++--$ and $+-+-$, the first twice as
# large: two modes with eigenvalues 4 and 1. As a task, the first pattern has
# all power in mode 1 and a KTA of $4/\sqrt{4^2 + 1^2}$, or 0.970; the second
# has a quarter of it. A constant feature of size 3 adds a mode of eigenvalue
# 9. KTA becomes $4/\sqrt{98}$, or 0.404, and a quarter of it; CKA stays.

# %%
toy = torch.tensor([[1.0, 1, 1], [1, -1, 1], [-1, 1, 1], [-1, -1, 1]])
three, rows = toy * torch.tensor([2.0, 1, 3]), {}
for name, y in {"++--": toy[:, :1], "+-+-": toy[:, 1:2]}.items():
    rows[name] = {"C(1)": cumulative_power(three[:, :2], y)[0]}
    for what, x in (("", three[:, :2]), (", constant added", three)):
        rows[name] |= {f"KTA{what}": kta(gram(x), gram(y))}
        rows[name] |= {f"CKA{what}": cka(x, y)}
study.table(pd.DataFrame(rows).T.astype(float), "Two tasks on one kernel.")

# %% [markdown]
# ## The claims of this page
#
# Ridge and predicted error are defined before the last figure. Predicted over
# mean measured error: cards have its inverse, which each run has.

# %% tags=["hide-input"]
study.claims()

# %% [markdown]
# ## Settings
#
# `n` digits make the first figure, `trials` matrices try exact statements, and
# a run is a mean over `draws` training sets. The paper's column has ours.

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"runs": 2}: replaces values in the table below

# %% tags=["hide-input"]
s = study.settings(
    profile, change,
    smoke=dict(n=200, trials=5, runs=3, draws=4),
    laptop=dict(n=500, trials=50, runs=10, draws=20),
    desktop=dict(n=1000, trials=200, runs=20, draws=50),
    paper=dict(n=1000, trials=200, runs=20, draws=50),
)  # fmt: skip
seeds = study.seeds(s.runs)
s

# %% [markdown]
# ## Data
#
# A kernel to look at: pixels of MNIST. Two tasks: its ten classes, and the
# same labels shuffled. Chapter 1 measured $\sum_{\sigma_i \ge \tau} (u_i^\top
# y)^2$: the power of labels along singular vectors $u_i$ of the features with
# a singular value of at least $\tau$. As $\sigma_i^2 = n\,\eta_i$ and
# $(u_i^\top y)^2 = n\,a_i^2$, this is $C(\rho)$ read over $\sigma$ from the
# right, times its value at $\tau = 0$; $C(\rho)$ forgets how large $\eta$ is.

# %%
digits = data.load("mnist", n=s.n, seed=seeds[0], shrink=True)
study.uses(digits)
x, n = digits.x.flatten(1).double(), len(digits)
tasks = {"classes": digits.y, "shuffled": data.shuffled(digits.y, seed=0)}
tasks = {k: data.one_hot(y).double() for k, y in tasks.items()}

# %% tags=["hide-input"]
fig, (a, b) = plt.subplots(1, 2, figsize=(8.4, 3.2))
sizes = np.geomspace(0.5, 500, 30)
grown = [torch.cat([x, torch.full((n, 1), c).double()], 1) for c in sizes]
for i, (task, y) in enumerate(tasks.items()):
    spec = spectrum(x, y)
    imani = spec.curve().value.sum(1).flip(0)  # at σ₁, σ₂, … and 0
    at = plots.spread(len(imani) - 1, 25)
    a.semilogx(at, spec.cumulative()[at - 1], label=task)
    a.semilogx(at, imani[at - 1] / imani[-1], "o", color=f"C{i}", mfc="none")
    b.semilogx(sizes, [kta(gram(g), gram(y)) for g in grown], color=f"C{i}")
    b.semilogx(sizes, [cka(g, y) for g in grown], "--", color=f"C{i}")
a.set(xlabel="modes ρ", ylabel="cumulative power C(ρ)")
b.set(xlabel="size of a constant feature", ylabel="alignment with the task")
_ = a.legend(title="task"), b.legend(b.lines[:2], ["KTA", "CKA"])
caption = "Two tasks on the kernel of pixels. Left: the earlier a curve rises "
caption += "the better the task is aligned; circles are Imani's alignment at "
caption += "singular values. Right: a growing constant feature takes KTA to "
caption += "one value for both tasks, and leaves CKA (dashed) as it is."
study.show(fig, "canatar.eq4", caption)

# %% [markdown]
# ## Equations 1 to 4, on random matrices
#
# Random features have more samples than features, or fewer, or a rank below
# both; targets have three outputs. A textbook decomposition and the package's
# measures are compared; one vector is added to all features, 5 to targets.


# %%
normal = partial(torch.randn, dtype=torch.float64)


def far(a, b):
    """The largest difference; ``a`` may be a list of numbers."""
    a = torch.stack(a) if isinstance(a, list) else a
    return float((a - b).abs().max())


def deviations(n, d, rank, seed):
    """By how much three claims are missed: (claim, what, limit) to value."""
    torch.manual_seed(seed)
    x, y = normal(n, rank), normal(n, 3)
    x = x if rank == d else x @ normal(rank, d)
    K, L, c, one = gram(x), gram(y), spectrum(x, y), spectrum(x, y[:, 0])
    eta, u = torch.linalg.eigh(K / n)
    phi = math.sqrt(n) * u[:, eta > 1e-12 * eta[-1]]
    eta, a = eta[eta > 1e-12 * eta[-1]], phi.T @ y / n
    c, sigma, eye = c.cumulative(), one.sigma[one.sigma > 0], torch.eye(len(a))
    imani = one.alignment((sigma[1:] + sigma[:-1]) / 2) / one.alignment(0.0)
    turned, moved = x @ torch.linalg.qr(normal(d, d)).Q, x + 5 * normal(d)
    A, B, centered = kta(K, L), cka(x, y), kta(center(K), center(L))
    moves = kta(gram(moved), gram(y + 5))
    as_cka = [centered, cka(7.3 * x, y), cka(turned, y), cka(moved, y + 5)]
    return {
        ("eq1", "modes are orthonormal", 1e-8): far(phi.T @ phi / n, eye),
        ("eq1", "sum of modes", 1e-8): far((phi * eta) @ phi.T / n, K / n),
        ("eq1", "modes in the rest", 1e-8): far(phi.T @ (y - phi @ a) / n, 0),
        ("eq3", "falls", 0): max(0, float(-c.diff().min())),
        ("eq3", "end", 1e-10): far(c[-1], 1),
        ("eq3", "kernel", 1e-8): far(cumulative_power(K, y)[: len(c)], c),
        ("eq3", "Imani", 1e-8): far(one.cumulative()[: len(imani)], imani),
        ("eq4", "beyond 0 to 1", 1e-12): far([A, B], 0.5) - 0.5,
        ("eq4", "with itself", 1e-10): far([kta(K, K), cka(x, x)], 1),
        ("eq4", "KTA, scaled", 1e-8): far(kta(7.3 * K, L), A),
        ("eq4", "KTA, rotated", 1e-8): far(kta(gram(turned), L), A),
        ("eq4", "CKA, centered, moved", 1e-8): far(as_cka, B),
        ("eq4", "0.01 − move of KTA", 0): 0.01 - far(moves, A),
    }


SHAPES = ((30, 12, 12), (12, 30, 12), (30, 20, 5))  # n, d and rank
trials = [(*size, 9 * i) for size in SHAPES for i in range(s.trials)]
checks = [deviations(*trial) for trial in trials]
worst = {key: max(one[key] for one in checks) for key in checks[0]}
exact = dict(data=[], seeds=[], size=("trials",))
for claim in ("eq1", "eq3", "eq4"):
    part = {key[1:]: v for key, v in worst.items() if key[0] == claim}
    found = {what: value for (what, _), value in part.items()}
    ok = all(value <= limit for (_, limit), value in part.items())
    study.claim(f"canatar.{claim}", measured=found, holds=ok, **exact)

# %% [markdown]
# A cosine is largest, 1, between a matrix and itself: the best kernel for a
# scalar target is $yy^\top$. It has one mode, the target, and regression with
# it needs one sample. Random kernels with more or less of $yy^\top$ mixed in,
# and ascents from random starts, look for a better one.


# %%
def ascended(a, goal):
    """KTA of AAᵀ with the goal, after gradient ascent on A."""
    climb = torch.optim.Adam([a.requires_grad_()], lr=0.3, maximize=True)
    for _ in range(300):
        climb.zero_grad()
        kta(a @ a.T, goal).backward()
        climb.step()
    return float(kta(a @ a.T, goal).detach())


torch.manual_seed(0)
y, mix = normal(20), np.geomspace(1e-3, 1e3, 1000)
goal, YY = torch.outer(y, y), gram(torch.eye(10).repeat(5, 1))
tried = [float(kta(m * goal + gram(normal(20, 20)), goal)) for m in mix]
ends = min(ascended(normal(20, 20), goal) for _ in range(10))
wrong = far(goal[:, 0] / goal[0, 0] * y[0], y)  # from the first sample
ranks = [int(torch.linalg.matrix_rank(K)) for K in (YY, center(YY))]
found = {"largest KTA of 1000": max(tried), "ascents end at, least": ends}
found |= {"error from one sample": wrong, "ranks of ten classes": ranks}
ok = max(tried) <= 1 + 1e-12 and far(kta(goal, goal), 1) < 1e-12
ok &= ends > 1 - 1e-4 and wrong < 1e-8 and ranks == [10, 9]
study.claim("canatar.eq4.optimum", measured=found, holds=ok, **exact)

# %% [markdown]
# ## What power says about learning
#
# Kernel regression on $P$ samples with labels $y$ and ridge $\lambda$ predicts
# $k(x)^\top (K + \lambda I)^{-1} y$; $k(x)$ is the kernel of $x$ with them.
# {cite:t}`canatar2021`, the paper's reference 9, derive its mean squared error
# $E$ on new inputs. With $s^2$ the variance of label noise, and with $q_\rho =
# P\eta_\rho / (\kappa + P\eta_\rho)$, the share of a coefficient learned,
#
# $$
# E = \frac{1}{1 - \gamma} \Bigl( \sum_\rho (1 - q_\rho)^2 \|a_\rho\|^2
# + \gamma s^2 \Bigr), \qquad \gamma = \frac1P \sum_\rho q_\rho^2, \qquad
# \kappa = \lambda + \frac{\kappa}{P} \sum_\rho q_\rho .
# $$
#
# A mode is learned when $P\eta_\rho$ is far above $\kappa$. The factor
# $1/(1-\gamma)$ is the price of noise, and modes that are not learned are
# noise, too. This is `repalign.alignment.predicted_error`. Regression itself
# is run on Gaussian modes, where the error over all inputs is a sum of
# squares. First there are groups of modes far apart, a third of the power in
# each, and a ridge between two of them: $P\eta_\rho/\lambda$ is at least 100
# above it and at most 1/100 below. Then eigenvalues and power have no gap.


# %%
def regression(eta, power, p, ridge, noise, draws, g):
    """Test error of kernel regression on p samples: its mean over draws."""
    like, a = dict(generator=g, dtype=torch.float64), power.sqrt()
    phi = torch.randn(draws, p, len(eta), **like)
    y = phi @ a + math.sqrt(noise) * torch.randn(draws, p, **like)
    K = (phi * eta) @ phi.mT + ridge * torch.eye(p).double()
    learned = eta * (phi.mT @ torch.linalg.solve(K, y[..., None])).squeeze(2)
    return float((learned - a).square().sum(1).mean())


def one_run(seed, draws):
    """Errors measured and predicted, a row for every case of two claims."""
    k, g = torch.arange(1, 201).double(), torch.Generator().manual_seed(seed)
    group = torch.repeat_interleave(torch.tensor([5, 25, 125])).double()
    steps, thirds = 1e-4**group, 1 / (3 * 5 ** (group + 1))
    rows = study.grid(rho=(5, 30), each=(3, 5, 10, 20, 40), noise=[0.0])
    for row in rows:
        rho, row["samples"] = row["rho"], row["rho"] * row["each"]
        row["ridge"] = row["samples"] * math.sqrt(steps[rho - 1] * steps[rho])
    law = dict(ridge=(0.001, 0.1), samples=(40, 80, 160, 320))
    for row in (rows := rows + study.grid(rho=[0], noise=(0.0, 0.1), **law)):
        eta, power = (steps, thirds) if row["rho"] else (k**-1.5, k**-1.2)
        unit, rest = float(power.sum()), float(power[row["rho"] :].sum())
        how = dict(ridge=row["ridge"], noise=row["noise"] * unit)
        told = predicted_error(eta, power, row["samples"], **how)
        row["predicted"] = float(told) / rest
        found = regression(eta, power, row["samples"], **how, draws=draws, g=g)
        row["measured"] = found / rest
    return rows


runs = study.sweep(one_run, study.grid(seed=seeds), draws=s.draws)
gaps, laws = runs[runs["rho"] > 0], runs[runs["rho"] == 0]

# %% tags=["hide-input"]
panel = "groups, ρ* = " + runs["rho"].map(str)
panel.update("power laws, ridge " + laws["ridge"].map(str))
fig = plots.curves(
    runs.assign(panel=panel), x="samples", y="predicted", hue="noise",
    col="panel", wrap=2, height=2.3, aspect=1.5, labels={"predicted": "error"},
)  # fmt: skip
for ax, (name, part) in zip(fig.axes, runs.groupby(panel, sort=False)):
    ax.set(xscale="log", yscale="log" if "law" in name else "linear")
    ax.set_xticks(part["samples"].unique(), part["samples"].unique())
    ax.minorticks_off()
    for i, (_, line) in enumerate(part.groupby("noise")):
        mean = line.groupby("samples")["measured"].mean()
        ax.plot(mean, "o", color=f"C{i}", mfc="none")
caption = f"Lines: predicted test error. Circles: mean of {s.runs} runs of "
caption += f"kernel regression on {s.draws} training sets. Unit: for groups "
caption += "the power below the ridge, 1 − C(ρ*); for power laws all power."
study.show(fig, "canatar.curve", caption, table=runs)

# %% tags=["hide-input"]
by = dict(data=[], size=("runs", "draws"))
group = gaps[gaps["each"] == 20].groupby("rho")
found = dict(group["predicted"].mean().add_prefix("predicted, ρ* = "))
effects = {
    f"ρ* = {k}": study.within(v, 0.9, 1.15) for k, v in group["measured"]
}
study.claim("canatar.sec3.error", effects=effects, measured=found, **by)
case = [laws[name] for name in ("noise", "ridge", "samples")]
ratio = laws["measured"].div(laws["predicted"]).groupby(case)
found = {"predicted / mean measured": (1 / ratio.mean()).tolist()}
name, near = "noise {}, ridge {}, {} samples", (1 / 1.1, 1 / 0.9)
effects = {name.format(*k): study.within(v, *near) for k, v in ratio}
study.claim("canatar.curve", effects=effects, measured=found, **by)

# %% [markdown]
# ## What differs from the paper, and why
#
# - Equation 3 sums over $\gamma < \rho$; here mode $\rho$ is included.
# - The paper has modes far apart and $P \approx 1/\eta_{\rho^*}$ samples. Here
#   modes come in groups, and a ridge says which of them are learned.
#
# ## Try it
#
# In `law`, set both ridges to 1e-9. Which number of samples is worst, and why?

# %% tags=["hide-input"]
study.stamp()
