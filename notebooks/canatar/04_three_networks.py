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
# # Do the labels move into few modes?
#
# *Section V of {cite:t}`canatar2022`, second half, figures 3 to 5.* Three
# networks fit their training images. One predicts worst, one best, and one
# poorly although its last layers resemble the labels. In which of them do the
# labels come to lie in few modes of the last layers' kernels?

# %% tags=["hide-cell"]
import math

import numpy as np
import pandas as pd
import torch

from repalign import press
from repalign.alignment import cumulative_power
from repalign.kernels import center, cka, effective_rank, gram
from repalign.papers import canatar

page = press.page(
    "canatar/04_three_networks",
    answer="canatar.sec5.power",
    figure="canatar.fig4",
)

# %% [markdown]
# ## The idea
#
# The kernel of a layer is a sum of modes with eigenvalues $\eta_1 \ge \eta_2
# \ge \dots$, and the labels have a share $C(\rho)$ of their power in the first
# $\rho$ modes ([](01_metrics)). Two numbers say how many modes count. The
# *effective rank* is
#
# $$
# \mathrm{erank}(K) = \exp\Bigl(-\sum_\rho p_\rho \log p_\rho\Bigr), \qquad
# p_\rho = \frac{\eta_\rho}{\sum_\gamma \eta_\gamma},
# $$
#
# which is $r$ when $r$ eigenvalues are equal and all others are 0. Labels of
# ten classes have a kernel with ten equal eigenvalues, and with nine after
# centering. The *gap* says how far these nine stand out: by how many powers of
# ten the first nine eigenvalues lie above the next twenty-one, in the
# geometric mean. A gap of 1 means ten times as large. It does not change when
# all eigenvalues grow by the same factor. A layer that has become like the
# labels has an effective rank of about 9, a wide gap, and $C(10)$ near 1.
#
# Effective rank and gap are those of centered kernels. Eigenvalues and power
# in the figures are those of kernels as they are, as in the paper; the first
# of their modes is mostly the mean of the features over images.

# %% [markdown]
# ## A toy whose answer is known
#
# A hundred images, ten of each class. In the first representation the features
# are the labels: nine equal eigenvalues. In the second, every image also gets
# a feature of its own. Now the nine eigenvalues are 11, beside ninety equal to
# one. The labels still lie in ten modes, and CKA is hardly lower, but the
# effective rank is 53.8. It sees many small eigenvalues; CKA does not.

# %%
labels = torch.eye(10).repeat_interleave(10, dim=0).double()
own = torch.eye(100).double()


@page.table("Two representations of a hundred images.")
def toy():
    rows = {}
    features = {"labels": labels, "and one each": torch.cat([labels, own], 1)}
    for name, phi in features.items():
        rows[name] = {
            "effective rank": effective_rank(center(gram(phi))),
            "C(10)": cumulative_power(phi, labels)[9],
            "CKA with the labels": cka(phi, labels),
        }
    return pd.DataFrame(rows).T.astype(float)


# %% [markdown]
# ## The experiment
#
# The networks are those of [](02_layers_and_targets), trained once. The
# sixteen networks of one seed form a group: they have the same images, the
# same first weights and the same batch size, and no other group has them. In
# every group, of the networks
# that fit their training images, the *worst* and the *best* are those with the
# lowest and the highest test accuracy. *Aligned but poor* is, in the half with
# the lower accuracy and without the worst, the one whose layers 9 and 10 have
# the highest CKA with the labels of training images.

# %% tags=["parameters", "hide-input"]
profile = "laptop"  # smoke, laptop, desktop or paper
device = "auto"  # auto, cpu, cuda or mps
change = {}  # for example {"runs": 3}: replaces values in the table below

# %% tags=["hide-input"]
settings = page.settings(
    profile, change, **canatar.SETTINGS, work=canatar.work
)
settings

# %%
networks = page.sweep(canatar.network, **canatar.forty_eight(settings, device))

# %% [markdown]
# The three networks of all groups, in the mean. The paper's have test
# accuracies of 58%, 75% and 95%, and all fit their training images.


# %% tags=["hide-input"]
@page.table("Means over groups.", networks)
def who_they_are(networks):
    three = canatar.three(networks)
    fitted = three.groupby("role")["fitted"].mean()
    tested = canatar.accuracies(three).mean()
    cka = canatar.spectra(three, "target").mean().unstack()
    table = pd.DataFrame({"training": fitted, "test": tested}).join(cka)
    names = ["training accuracy", "test accuracy", "CKA, 9", "CKA, 10"]
    order = [canatar.WORST, canatar.POOR, canatar.BEST]
    return table.loc[order].set_axis(names, axis=1)


# %% tags=["hide-input"]
@page.figure(
    "canatar.through_time",
    "Gap (top) and effective rank (bottom) of layers 9 and 10 on training "
    "images: before training, early in it, and at the end. Mean over groups, "
    "and standard error. Dotted: the nine of the centered labels.",
    networks,
)
def through_time(networks):
    return canatar.through_time(canatar.three(networks))


# %% [markdown]
# The paper's first observation from these spectra is that the labels move into
# few modes in training, in all three networks.


# %% tags=["hide-input"]
@page.claim("canatar.sec5.power", networks)
def labels_move_into_ten_modes(networks):
    three = canatar.three(networks)
    start = canatar.spectra(three, "ten", time="start")
    rise = canatar.spectra(three, "ten") - start
    for role in (canatar.WORST, canatar.POOR, canatar.BEST):
        for layer in (9, 10):
            name = f"{role}, layer {layer}: C(10), end − start"
            yield press.above(name, rise[role][layer])


# %% [markdown]
# ## The worst network
#
# By the paper, eigenvalues grow in training but keep their shape, so that many
# modes stay large. The labels move into ten modes of layer 10, and hardly in
# layer 9.


# %% tags=["hide-input"]
@page.figure(
    "canatar.fig3",
    "Figure 3, the worst network: eigenvalues (top) and cumulative power of "
    "the labels (bottom) on training images, mean over networks. The dotted "
    "line is at ten modes.",
    networks,
)
def worst(networks):
    return canatar.lens(canatar.three(networks), canatar.WORST)


# %% tags=["hide-input"]
def apart(three):
    """The condition that the best network predicts better than the worst."""
    tested = canatar.accuracies(three)
    ahead = tested[canatar.BEST] - tested[canatar.WORST]
    yield press.condition("accuracy, best − worst", ahead, above=0.05)


def less_aligned(three):
    """The condition that the worst is less aligned, as the paper's is."""
    resemblance = canatar.spectra(three, "target")
    less = resemblance[canatar.BEST][10] - resemblance[canatar.WORST][10]
    name = "layer 10: CKA with the labels, best − worst"
    yield press.condition(name, less, above=0)


def widening(three, role):
    """By how much the gap is wider at the end than at the start."""
    start = canatar.spectra(three, "gap", time="start")[role]
    return canatar.spectra(three, "gap")[role] - start


# %% tags=["hide-input"]
@page.table(
    "The worst network of every group, and layer 9 on training images.",
    networks,
)
def worst_of_groups(networks):
    return canatar.groups(canatar.three(networks))


# %% tags=["hide-input"]
@page.claim("canatar.fig3", networks)
def labels_move_in_layer_10_alone(networks):
    three = canatar.three(networks)
    yield from apart(three)
    yield from less_aligned(three)
    end = canatar.spectra(three, "ten")
    rise = end - canatar.spectra(three, "ten", time="start")
    rise = rise[canatar.WORST]
    worst, best = end[canatar.WORST], end[canatar.BEST]
    yield press.above("layer 10 of the worst: C(10)", worst[10], 0.8)
    less = best[10] - worst[10]
    yield press.within("layer 10: C(10), best − worst", less, -0.1, 0.1)
    less = best[9] - worst[9]
    yield press.above("layer 9: C(10), best − worst", less, 0.1)
    half = rise[9] - 0.5 * rise[10]
    yield press.below("worst: rise in 9 − half of that in 10", half)


@page.claim("canatar.fig3.rank", networks)
def the_worst_keeps_its_many_modes(networks):
    three = canatar.three(networks)
    yield from apart(three)
    yield from less_aligned(three)
    wider = widening(three, canatar.WORST)
    for layer in (9, 10):
        name = f"layer {layer}: gap, end − start"
        yield press.within(name, wider[layer], -0.3, 0.3, unit="decades")


@page.claim("canatar.fig3.size", networks)
def eigenvalues_grow_in_the_worst(networks):
    three = canatar.three(networks)
    yield from apart(three)
    start = canatar.spectra(three, "size", time="start")[canatar.WORST]
    end = canatar.spectra(three, "size")[canatar.WORST]
    for layer in (9, 10):
        name = f"layer {layer}: eigenvalues, end over start"
        yield press.ratio(name, end[layer], start[layer], above=2)


# %% [markdown]
# ## The best network
#
# By the paper, both layers end with about as many modes as there are classes,
# and the labels lie in those.


# %% tags=["hide-input"]
@page.figure(
    "canatar.fig4",
    "Figure 4, the best network: eigenvalues (top) and cumulative power of "
    "the labels (bottom) on training images, mean over networks. The dotted "
    "line is at ten modes.",
    networks,
)
def best(networks):
    return canatar.lens(canatar.three(networks), canatar.BEST)


# %% tags=["hide-input"]
@page.claim("canatar.fig4", networks)
def the_best_comes_close_to_the_labels(networks):
    three = canatar.three(networks)
    yield from apart(three)
    ten = canatar.spectra(three, "ten")[canatar.BEST]
    wider = widening(three, canatar.BEST)
    for layer in (9, 10):
        name = f"layer {layer}: gap, end − start"
        yield press.above(name, wider[layer], 0.3, unit="decades")
        yield press.above(f"layer {layer}: C(10)", ten[layer], 0.8)


def falls_to_nine(three, layer):
    """Effective rank near that of the labels, where it had room to fall."""
    yield from apart(three)
    start = canatar.spectra(three, "rank", time="start")[canatar.BEST][layer]
    yield press.condition("effective rank at the start", start, above=13.5)
    rank = canatar.spectra(three, "rank")[canatar.BEST][layer]
    octaves = np.log2(rank / 9)
    half = math.log2(1.5)
    name = "effective rank over 9"
    yield press.within(name, octaves, -half, half, unit="octaves")


@page.claim("canatar.fig4.rank9", networks)
def layer_9_falls_to_nine(networks):
    return falls_to_nine(canatar.three(networks), 9)


@page.claim("canatar.fig4.rank10", networks)
def layer_10_falls_to_nine(networks):
    return falls_to_nine(canatar.three(networks), 10)


@page.claim("canatar.fig4.worst", networks)
def the_worst_keeps_more_modes(networks):
    three = canatar.three(networks)
    yield from apart(three)
    yield from less_aligned(three)
    worst = widening(three, canatar.WORST)
    best = widening(three, canatar.BEST)
    for layer in (9, 10):
        name = f"layer {layer}: widening of the gap, best − worst"
        less = best[layer] - worst[layer]
        yield press.above(name, less, 0.3, unit="decades")


# %% [markdown]
# ## Aligned but poor
#
# By the paper, this network looks like the best one, apart from layer 9: there
# more small eigenvalues are left, too small for CKA to notice.


# %% tags=["hide-input"]
@page.figure(
    "canatar.fig5",
    "Figure 5, aligned but poor: eigenvalues (top) and cumulative power of "
    "the labels (bottom) on training images, mean over networks. The dotted "
    "line is at ten modes.",
    networks,
)
def poor(networks):
    return canatar.lens(canatar.three(networks), canatar.POOR)


# %% tags=["hide-input"]
@page.claim("canatar.fig5", networks)
def small_eigenvalues_are_left_in_layer_9(networks):
    three = canatar.three(networks)
    yield from apart(three)
    resemblance = canatar.spectra(three, "target")[canatar.POOR]
    for layer in (9, 10):
        name = f"layer {layer}: CKA with the labels, poor"
        yield press.condition(name, resemblance[layer], above=0.8)
    tested = canatar.accuracies(three)
    behind = tested[canatar.BEST] - tested[canatar.POOR]
    half = (tested[canatar.BEST] - tested[canatar.WORST]) / 2
    name = "accuracy, best − poor, beyond half of best − worst"
    yield press.condition(name, behind - half, above=0)
    ten = canatar.spectra(three, "ten")
    for layer in (9, 10):
        less = ten[canatar.POOR][layer] - ten[canatar.BEST][layer]
        name = f"layer {layer}: C(10), poor − best"
        yield press.within(name, less, -0.1, 0.1)
    gap = canatar.spectra(three, "gap")
    poor, best = gap[canatar.POOR], gap[canatar.BEST]
    name = "layer 10: gap, poor − best"
    less = poor[10] - best[10]
    yield press.within(name, less, -0.2, 0.2, unit="decades")
    name = "layer 9: gap, best − poor"
    yield press.above(name, best[9] - poor[9], 0.2, unit="decades")
    name = "layer 9 of the poor: gap, end − start"
    wider = widening(three, canatar.POOR)
    yield press.above(name, wider[9], unit="decades")


# %% [markdown]
# ## What differs from the paper
#
# The paper picks one network of each kind out of all, by eye where it is not
# the best or the worst; here a rule picks one out of every group. *Close to
# ten* and *high rank* are put into numbers by effective rank and gap, which
# the paper does not use. It shows eigenvalues, and calls the number of
# features, 512 and 256, the rank at the start. In the strict sense these
# kernels have that rank before and after training; what changes is how fast
# eigenvalues fall. Ours have 128 and 64 features. Even an untrained layer has
# a share of the labels in its first ten modes, so rises count from there. The
# early look is after a tenth of training, where the paper's is after 25 of
# 5000 epochs. Sizes and training: [](02_layers_and_targets).
#
# ## Try it
#
# 1. Call `canatar.spectra(three, "rank", images="test")`. Do the three
#    networks also differ on images that they have not seen?
# 2. Set `change = {"early": 0.5}`. Does the best network's layer 9 have its
#    lowest rank in the middle of training, or at its end?
#
# A kernel with few modes and the labels in them should need few samples. How
# few, the next page computes: [](05_learning_curves).

# %% tags=["hide-input"]
page.end()
