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
# # How well does a representation suit a task?
#
# *Sections II and III of {cite:t}`canatar2022`, equations 1 to 4.* Look at the
# kernel of the representation. A task is easy when it points along the few
# directions in which the kernel is strong. Two numbers say how far it does:
# *cumulative power*, which predicts how many samples regression needs, and
# *alignment*, which is one number for the whole task. This page defines both,
# checks the paper's equations, and then tests the prediction.

# %% tags=["hide-cell"]
from functools import partial

import matplotlib.pyplot as plt
import pandas as pd
import torch

from repalign import data, press
from repalign.alignment import cumulative_power
from repalign.kernels import cka, gram, kta
from repalign.papers import canatar

page = press.page("canatar/01_metrics")

# %% [markdown]
# ## The idea
#
# Let $\psi(x)$ be the features that a layer computes from an input $x$. Their
# *kernel* is $K(x, x') = \psi(x)^\top \psi(x')$: how similar two inputs look
# to the layer. It is a sum of *modes* $\phi_\rho$ with eigenvalues $\eta_1 \ge
# \eta_2 \ge \dots$, and a target $\bar f$ can be written in the same modes, up
# to a part $r$ that none of them reaches (equations 1 and 2):
#
# $$
# K(x, x') = \sum_\rho \eta_\rho\, \phi_\rho(x)\, \phi_\rho(x'), \qquad
# \bar f(x) = \sum_\rho a_\rho\, \phi_\rho(x) + r(x).
# $$
#
# Modes are orthonormal in the mean over inputs. On a sample of $n$ inputs they
# are $\sqrt n$ times the eigenvectors of the matrix $K / n$. The vector
# $a_\rho$ has one number for each output of the target, and $\|a_\rho\|^2$ is
# the *power* of the target in mode $\rho$. *Cumulative power* is the share of
# all power in the first $\rho$ modes (equation 3):
#
# $$
# C(\rho) = \frac{\sum_{\gamma \le \rho} \|a_\gamma\|^2}
# {\sum_\gamma \|a_\gamma\|^2}.
# $$
#
# Regression with a kernel learns its strong modes first. A task whose
# $C(\rho)$ rises early therefore needs few samples.
#
# *Kernel-target alignment* (KTA, equation 4) puts the match into one number:
# the cosine of the angle between two kernels, read as long vectors,
#
# $$
# A(K_1, K_2) = \frac{\mathrm{Tr}(K_1 K_2)}
# {\sqrt{\mathrm{Tr}(K_1^2)\, \mathrm{Tr}(K_2^2)}},
# $$
#
# where the kernel of the target is $\bar f(x)^\top \bar f(x')$. *CKA* is the
# same cosine after both kernels are *centered*: the mean over inputs is taken
# away from the features.

# %% [markdown]
# ## A toy whose answer is known
#
# Take four inputs. The features are the patterns $+\,+\,-\,-$ and
# $+\,-\,+\,-$ over these inputs, the first twice as large as the second. The
# kernel then has two modes, with eigenvalues 4 and 1. If the task is the first
# pattern, all its power is in mode 1, and its KTA is $4/\sqrt{4^2 + 1^2} =
# 0.970$. If the task is the second pattern, its KTA is a quarter of that.
#
# Now add a feature that is 3 for every input. It says nothing about any task,
# but it adds a mode with eigenvalue 9, and KTA falls to $4/\sqrt{98} = 0.404$.
# CKA does not notice the constant.

# %%
patterns = torch.tensor([[1.0, 1, 1], [1, -1, 1], [-1, 1, 1], [-1, -1, 1]])
features = patterns * torch.tensor([2.0, 1, 3])
without = features[:, :2]


@page.table("Two tasks on one kernel, without and with a constant feature.")
def toy():
    rows = {}
    for name, column in {"first pattern": 0, "second pattern": 1}.items():
        task = patterns[:, [column]]
        rows[name] = {
            "C(1)": cumulative_power(without, task)[0],
            "KTA": kta(gram(without), gram(task)),
            "KTA, with the constant": kta(gram(features), gram(task)),
            "CKA": cka(without, task),
            "CKA, with the constant": cka(features, task),
        }
    return pd.DataFrame(rows).T.astype(float)


# %% [markdown]
# ## What is computed
#
# Four sweeps follow. The first two check the equations on random features of
# three shapes: more inputs than features, fewer, and a rank below both. The
# third looks at two tasks on the pixels of handwritten digits: their ten
# classes, and the same labels shuffled. The fourth runs kernel regression on
# many training sets and compares its test error with the predicted one.

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # this page computes on the processor
change = {}  # for example {"runs": 2}: replaces values in the table below

# %% tags=["hide-input"]
settings = page.settings(
    profile,
    change,
    smoke=dict(n=200, trials=5, runs=3, draws=4),
    laptop=dict(n=500, trials=50, runs=10, draws=20),
    desktop=dict(n=1000, trials=200, runs=20, draws=50),
    paper=dict(n=1000, trials=200, runs=20, draws=50),
)
settings

# %%
checks = page.sweep(
    canatar.identities,
    press.grid(shape=canatar.SHAPES.keys(), seed=range(settings.trials)),
)
optimum = page.sweep(canatar.best_kernel, press.grid(seed=range(10)))
tasks = page.sweep(
    canatar.tasks_on_pixels,
    press.grid(task=["classes", "shuffled"]),
    data=partial(data.load, "mnist", n=settings.n, shrink=True),
    seed=0,
)
curves = page.sweep(
    canatar.learning_curves,
    press.grid(seed=settings.seeds),
    draws=settings.draws,
)

# %% [markdown]
# ## Equations 1 to 4
#
# Each card lists statements with the largest deviation over all trials, and
# what rounding is allowed. A textbook decomposition of the kernel stands on
# one side, the measures of the package on the other.


# %% tags=["hide-input"]
def statements(checks, claim):
    """One exact effect for each statement of a claim."""
    of_claim = checks[checks["claim"] == claim]
    for statement, part in of_claim.groupby("statement", sort=False):
        limit = part["limit"].iloc[0]
        yield press.at_most(statement, part["deviation"], limit)


@page.claim("canatar.eq1", checks)
def modes_add_up(checks):
    return statements(checks, "eq1")


@page.claim("canatar.eq3", checks)
def cumulative_power_is_a_share(checks):
    return statements(checks, "eq3")


@page.claim("canatar.eq4", checks)
def a_constant_moves_kta_and_not_cka(checks):
    return statements(checks, "eq4")


# %% [markdown]
# A cosine is largest between a matrix and itself. The best kernel for a scalar
# target $y$ is therefore $yy^\top$. It has one mode, the target, and
# regression with it needs one sample. That is Cauchy and Schwarz; the card
# below only makes sure that nothing in the code disagrees. It also tries
# random kernels with more or less of $yy^\top$ mixed in, and gradient ascent
# from random starts, in search of a better one.


# %% tags=["hide-input"]
@page.claim("canatar.eq4.optimum", optimum)
def nothing_beats_the_target(optimum):
    return statements(optimum, "optimum")


# %% [markdown]
# ## Two tasks on one kernel
#
# The left panel reads the kernel of pixels mode by mode. Its circles are the
# alignment of chapter 1, $\sum_{\sigma_i \ge \tau} (u_i^\top y)^2$ as a share
# of its value at $\tau = 0$, with $u_i$ and $\sigma_i$ the singular vectors
# and values of the features. As $\sigma_i^2 = n\,\eta_i$ and
# $(u_i^\top y)^2 = n\,a_i^2$, it is cumulative power read from the other side:
# chapter 1 asks how *large* the singular values are that carry the labels,
# equation 3 only in which *order* they come.


# %% tags=["hide-input"]
@page.figure(
    "canatar.eq4",
    "Two tasks on the kernel of pixels. Left: the earlier a curve rises, the "
    "better the task is aligned; circles are the alignment of chapter 1. "
    "Right: as a constant feature grows, KTA (solid) goes to one value for "
    "both tasks, and CKA (dashed) stays.",
    tasks,
)
def two_tasks(tasks):
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.2))
    colors = {"classes": "C0", "shuffled": "C1"}
    for task, part in tasks.groupby("task"):
        power = part[part["what"] == "power"]
        left.semilogx(power["at"], power["value"], colors[task], label=task)
        some = power.iloc[::3]
        style = dict(color=colors[task], mfc="none", ls="none", marker="o")
        left.semilogx(some["at"], some["alignment"], **style)
        for what, line in (("KTA", "-"), ("CKA", "--")):
            grown = part[part["what"] == what]
            label = what if task == "classes" else None
            style = dict(color=colors[task], ls=line, label=label)
            right.semilogx(grown["at"], grown["value"], **style)
    left.set(xlabel="modes ρ", ylabel="cumulative power C(ρ)")
    right.set(xlabel="size of a constant feature", ylabel="alignment")
    left.legend(title="task")
    right.legend()
    return figure


# %% [markdown]
# ## What cumulative power says about learning
#
# Kernel regression on $P$ samples with labels $y$ and ridge $\lambda$ predicts
# $k(x)^\top (K + \lambda I)^{-1} y$ for a new input $x$, where $k(x)$ is the
# kernel between $x$ and the samples. {cite:t}`canatar2021`, on whom the paper
# builds, derive its mean squared error $E$ on new inputs. Let $s^2$ be the
# variance of label noise, and let $q_\rho = P\eta_\rho / (\kappa +
# P\eta_\rho)$ be the share of mode $\rho$ that is learned. Then
#
# $$
# E = \frac{1}{1 - \gamma} \Bigl( \sum_\rho (1 - q_\rho)^2 \|a_\rho\|^2
# + \gamma s^2 \Bigr), \qquad \gamma = \frac1P \sum_\rho q_\rho^2, \qquad
# \kappa = \lambda + \frac{\kappa}{P} \sum_\rho q_\rho .
# $$
#
# A mode is learned when $P\eta_\rho$ is far above $\kappa$. The factor
# $1/(1-\gamma)$ is the price of noise, and power in modes that are not learned
# acts as noise, too. The package computes $E$ as
# `repalign.alignment.predicted_error`.
#
# We run regression on Gaussian modes, where its error over all inputs is a sum
# of squares and needs no test set. First the modes come in groups of 5, 25 and
# 125, far apart, with a third of the power in each group, and the ridge lies
# between two groups: then everything above the ridge should be learned, and
# the error should be $1 - C(\rho^*)$ with $\rho^*$ the number of modes above
# it. Then eigenvalues and power fall as power laws, without any gap.


# %% tags=["hide-input"]
@page.figure(
    "canatar.curve",
    "Lines: predicted test error. Circles: measured, the mean over runs, each "
    "on many training sets. The unit is the power below the ridge, 1 − C(ρ*), "
    "in the upper panels, and all power of the target in the lower ones.",
    curves,
)
def predicted_and_measured(curves):
    figure, axes = plt.subplots(2, 2, figsize=(8.4, 5.4))
    groups = curves[curves["spectrum"] == "groups"]
    laws = curves[curves["spectrum"] == "power law"]
    panels = [(f"groups, ρ* = {k}", p) for k, p in groups.groupby("learned")]
    panels += [
        (f"power law, ridge {k:g}", p) for k, p in laws.groupby("ridge")
    ]
    for ax, (title, part) in zip(axes.flat, panels, strict=True):
        for i, (noise, line) in enumerate(part.groupby("noise")):
            mean = line.groupby("samples")[["predicted", "measured"]].mean()
            color = f"C{i}"
            ax.plot(mean["predicted"], color=color, label=f"noise {noise:g}")
            ax.plot(mean["measured"], "o", color=color, mfc="none")
        if "law" in title:
            ax.set(xscale="log", yscale="log")
            ax.legend()
        ax.set(title=title, xlabel="samples", ylabel="test error")
        ax.set_xticks(mean.index, mean.index)
        ax.minorticks_off()
    return figure


@page.claim("canatar.sec3.error", curves)
def error_is_the_power_that_is_left(curves):
    groups = curves[curves["spectrum"] == "groups"]
    enough = groups[groups["samples"] == 20 * groups["learned"]]
    for learned, part in enough.groupby("learned"):
        yield press.within(
            f"ρ* = {learned}", part["measured"], 0.9, 1.15, paper=1.0
        )


@page.claim("canatar.curve", curves)
def spectrum_and_power_give_the_error(curves):
    laws = curves[curves["spectrum"] == "power law"]
    cases = laws.groupby(["noise", "ridge", "samples"])
    for (noise, ridge, samples), part in cases:
        # The mean over runs is in the denominator of the criterion.
        quotient = part["measured"] / part["predicted"]
        name = f"noise {noise:g}, ridge {ridge:g}, {samples} samples"
        yield press.within(name, quotient, 1 / 1.1, 1 / 0.9, paper=1.0)


# %% [markdown]
# ## What differs from the paper
#
# The paper states all this without numbers or data: the random features, the
# Gaussian modes and the digits are ours. Its equation 3 sums over $\gamma <
# \rho$; here mode $\rho$ itself is included. It speaks of modes far apart and
# of $P \approx 1/\eta_{\rho^*}$ samples; here a ridge between groups of modes
# says which of them are learned.
#
# ## Try it
#
# 1. Set `change = {"draws": 5}`. Which of the cases is the first to be open?
# 2. In `papers/canatar`, set both ridges of the power law to 1e-9. At which
#    number of samples is the error largest, and why is it not the smallest?
#
# The next page leaves Gaussian modes and asks the same of the layers of
# trained networks: [](02_layers_and_targets).

# %% tags=["hide-input"]
page.end()
