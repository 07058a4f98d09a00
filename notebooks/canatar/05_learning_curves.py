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
# # Does the spectrum of a kernel foretell its error?
#
# *Section III of {cite:t}`canatar2022` and its last section.* The paper looks
# at spectra because they foretell learning: the eigenvalues of a kernel and
# the power of the target along its modes give the test error of regression at
# any number of samples. Do they, and also for the layers of a trained network?

# %% tags=["hide-cell"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from repalign import press
from repalign.alignment import predicted_error
from repalign.papers import canatar

page = press.page(
    "canatar/05_learning_curves",
    answer="canatar.curve.layers",
    figure="canatar.curve.layers",
)

# %% [markdown]
# ## The idea
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

# %% [markdown]
# ## A toy whose answer is known
#
# A kernel with a single mode, $\eta_1 = 1$, a target of power 1 along it, no
# noise and the ridge $\lambda = 1$. With $P$ samples $q_1 = P / (\kappa + P)$
# and $\kappa = 1 + \kappa q_1 / P = 1 + \kappa / (\kappa + P)$. For large $P$
# nothing is left to learn but what the ridge takes: the error goes to 0 like
# $1 / P^2$.


# %%
@page.table("Predicted test error of one mode; the last column goes to 1.")
def toy():
    one = torch.ones(1, dtype=torch.float64)
    rows = {}
    for samples in (1, 10, 100, 1000):
        error = float(predicted_error(one, one, samples, ridge=1.0).sum())
        rows[samples] = {"error": error, "error × P²": error * samples**2}
    return pd.DataFrame(rows).T.rename_axis("samples P")


# %% [markdown]
# ## The experiment
#
# We run regression on Gaussian modes, where its error over all inputs is a sum
# of squares and needs no test set. First the modes come in groups of 5, 25 and
# 125, far apart, with a third of the power in each group, and the ridge lies
# between two groups: then everything above the ridge should be learned, and
# the error should be $1 - C(\rho^*)$ with $\rho^*$ the number of modes above
# it. Then eigenvalues and power fall as power laws, without any gap.
#
# After that the same question is asked of the layers of the networks of
# [](02_layers_and_targets), which are trained once and read here again. Images
# that a network has not learned are the whole population: their kernel gives
# eigenvalues and power. On every layer a ridge regression of the labels learns
# a hundred images, drawn from them with replacement, and its error is that
# over all of them.

# %% tags=["parameters", "hide-input"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"trials": 5}: replaces values in the table below

# %% tags=["hide-input"]
curves_too = dict(
    smoke=dict(trials=3, sets=4),
    laptop=dict(trials=10, sets=20),
    desktop=dict(trials=20, sets=50),
    paper=dict(trials=20, sets=50),
)
settings = page.settings(
    profile,
    change,
    **{name: canatar.SETTINGS[name] | curves_too[name] for name in curves_too},
    work=canatar.work,
)
settings

# %%
first = settings.seeds[0]
curves = page.sweep(
    canatar.learning_curves,
    press.grid(seed=range(first, first + settings.trials)),
    draws=settings.sets,
)
networks = page.sweep(canatar.network, **canatar.forty_eight(settings, device))

# %% [markdown]
# ## Modes that are known
#
# If the prediction is right, circles lie on their lines. If the paper's rule
# is right, the error in the upper panels is about 1 once there are many more
# samples than modes above the ridge.


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
            ax.set_yscale("log")
            ax.legend()
        ax.set(title=title, xlabel="samples", ylabel="test error")
        ax.set_xscale("log")
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
        quotient = part["measured"] / part["predicted"]
        name = f"noise {noise:g}, ridge {ridge:g}, {samples} samples"
        yield press.within(name, quotient, 1 / 1.1, 1 / 0.9, paper=1.0)


# %% [markdown]
# ## Layers of trained networks
#
# Each dot is a layer of one network. If spectrum and power are all that
# counts, dots lie on the dashed line.


# %% tags=["hide-input"]
@page.figure(
    "canatar.curve.layers",
    "Test error of ridge regression on the features of a layer, as a share of "
    "the power of the labels: measured, and predicted from spectrum and "
    "power. The darker a dot, the deeper the layer.",
    networks,
)
def probes(networks):
    return canatar.probes(networks)


@page.claim("canatar.curve.layers", networks)
def layers_foretell_their_probes(networks):
    rows = canatar.probe_errors(networks)
    logs = np.log(rows[["measured", "predicted"]])
    logs["seed"] = rows["seed"]
    last = logs[rows["layer"] == 10]
    # The relative error of a mean over draws is the error of its logarithm.
    noise = (rows["uncertain"] / rows["measured"])[last.index] ** 2
    spread = last["measured"] - last.groupby("seed")["measured"].transform(
        "mean"
    )
    by_seed = pd.DataFrame(
        {
            "seed": last["seed"],
            "noise": noise,
            "spread": spread**2,
            "missed": (last["measured"] - last["predicted"]) ** 2,
        }
    ).groupby("seed")
    found = by_seed.mean()
    name = "last layer: variance over that of draws"
    yield press.required(
        press.ratio(name, found["spread"], found["noise"], above=4)
    )
    for name, part in {"all layers": logs, "last layer": last}.items():
        yield press.correlation(
            f"{name}: measured and predicted",
            part,
            "predicted",
            "measured",
            unit="seed",
            above=0.8,
        )
    yield press.ratio(
        "last layer: missed, of what a constant would miss",
        found["missed"],
        found["spread"],
        below=0.5,
    )
    quotient = (rows["measured"] / rows["predicted"]).groupby(rows["seed"])
    yield press.within("measured over predicted", quotient.mean(), 0.9, 1.1)


# %% [markdown]
# ## What differs from the paper
#
# The paper states the rule without numbers: the Gaussian modes are ours. It
# speaks of modes far apart and of $P \approx 1/\eta_{\rho^*}$ samples; here a
# ridge between groups of modes says which of them are learned. Regression on
# the layers of networks is what its section VI asks for and does not show.
#
# ## Try it
#
# 1. Set `change = {"sets": 5}`. Which of the cases is the first to be open?
# 2. In `papers/canatar/modes.py`, set both ridges of the power law to 1e-9. At
#    which number of samples is the error largest, and why is it not the
#    smallest?
#
# All kernels so far were those of layers. Gradient descent itself has a
# kernel, too, which mixes all layers: [](06_tangent_kernel).

# %% tags=["hide-input"]
page.end()
