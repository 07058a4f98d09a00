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
# # What tells the accuracy of a network?
#
# *Section V of {cite:t}`canatar2022`, table I and figure 6.* The networks of
# [](02_layers_and_targets) predict more or less well. The paper correlates
# their test accuracy with how they were made and with how much their layers
# resemble the labels. Its conclusion: the mean over all layers tells more than
# the last layer.

# %% tags=["hide-cell"]
import pandas as pd

from repalign import press
from repalign.papers import canatar

page = press.page(
    "canatar/03_what_tells_accuracy",
    answer="canatar.fig6",
    figure="canatar.tab1",
)

# %% [markdown]
# ## The idea
#
# For two quantities $u$ and $v$, one value each for every configuration,
# Pearson's correlation is
#
# $$
# r(u, v) = \frac{\sum_i (u_i - \bar u)(v_i - \bar v)}
# {\sqrt{\sum_i (u_i - \bar u)^2 \sum_i (v_i - \bar v)^2}},
# $$
#
# where the sums run over configurations and $\bar u$, $\bar v$ are means. It
# is 1 when one is a rising straight line of the other, and 0 when knowing one
# does not help to guess the other along a line. Here $u$ is a property of the
# network, such as whether its images were augmented (1) or not (0), and $v$ is
# the accuracy on test images.
#
# Correlations between a dozen properties of the same networks are easily
# misread, for two reasons. Where all networks have nearly the same value,
# chance decides; so we train several networks of each configuration and ask
# first whether they agree with each other. And where one choice, say
# augmentation, moves both $u$ and $v$, the two are correlated whatever $u$ has
# to do with $v$; so we also look at configurations that share that choice.

# %% [markdown]
# ## A toy whose answer is known
#
# Eight configurations: four without augmentation have accuracies 1, 2, 3, 4,
# four with it 5, 6, 7, 8. Some measure is 1, 2, 1, 2 in the first four and 5,
# 6, 5, 6 in the others. Over all eight it correlates strongly with accuracy.
# Within each four the correlation is $1/\sqrt5 = 0.447$: most of what
# the measure told was the augmentation.

# %%
toy = pd.DataFrame(
    {
        "augment": [0, 0, 0, 0, 1, 1, 1, 1],
        "accuracy": [1, 2, 3, 4, 5, 6, 7, 8],
        "measure": [1, 2, 1, 2, 5, 6, 5, 6],
    }
)


@page.table("Correlation of the measure with accuracy.")
def correlation_of_the_toy():
    rows = {"all eight": toy["measure"].corr(toy["accuracy"])}
    for augment, part in toy.groupby("augment"):
        name = f"augmentation {augment}"
        rows[name] = part["measure"].corr(part["accuracy"])
    return pd.DataFrame({"correlation": rows})


# %% [markdown]
# ## The experiment
#
# The networks are those of [](02_layers_and_targets): the same sweep, whose
# networks are trained once and read here again. Everything on that page about
# data, sizes and what differs from the paper holds here, too. Again a
# configuration counts when all of its networks fit their training images, and
# has their mean. Before a quantity is correlated, we ask whether its
# differences between configurations are there again with other seeds, when
# the means over augmentation and batch size have been taken off.

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
# ## Figure 6
#
# The upper panel shows how well each configuration predicts. The lower panel
# shows its *average CKA*: the CKA of a layer's kernel with the kernel of the
# labels, averaged over the ten layers. By the paper, it rises with accuracy.


# %% tags=["hide-input"]
@page.figure(
    "canatar.fig6",
    "Figure 6: accuracy of the configurations, worst test accuracy on the "
    "left, and their average CKA with the target.",
    networks,
)
def accuracy_and_average(networks):
    table = canatar.configurations(networks)
    return canatar.accuracy_and_average(table)


# %% [markdown]
# ## Table I
#
# Each dot of the next figure is a cell of the paper's table I. *CKA* without
# more is that of the last layer. Dots on the dashed line have the correlation
# that the paper has.


# %% tags=["hide-input"]
@page.figure(
    "canatar.tab1",
    "Table I: Pearson's correlations over configurations, here and in the "
    "paper. The mark is the column of the table.",
    networks,
)
def ours_and_printed(networks):
    found = canatar.correlations(canatar.configurations(networks))
    return canatar.ours_and_printed(found, canatar.table_one())


@page.table("Table I, with the paper's values.", networks)
def table_one(networks):
    found = canatar.correlations(canatar.configurations(networks))
    return found.round(3), canatar.table_one()


# %% [markdown]
# The paper reads three things from this table. First: CKA on test images tells
# accuracy better than CKA on training images, the average over layers better
# than the last layer, and high CKA alone does not imply high accuracy.


# %% tags=["hide-input"]
# What a column of the table is, as a value of every layer or network.
COLUMNS = {
    "tested": "test accuracy",
    "last_training": "last layer, training images",
    "last_test": "last layer, test images",
    "average_training": "average, training images",
    "average_test": "average, test images",
}


def no_accident(networks, *columns):
    """Conditions that configurations differ by more than seeds do."""
    for column in columns:
        if column == "tested":
            values = canatar.accuracy_by_seed(networks)
        else:
            images = column.rpartition("_")[2]
            layer = {"last": 10, "average": 0}[column.partition("_")[0]]
            values = canatar.by_seed(networks, "target", images, layer)
        found = press.correlation(
            f"{COLUMNS[column]}: one seed and the others",
            canatar.replicates(values),
            "one",
            "other",
            above=0.5,
        )
        yield press.required(found)


@page.claim("canatar.tab1.test", networks)
def test_images_tell_more(networks):
    yield from no_accident(networks, "tested", "last_test", "last_training")
    yield press.correlation(
        "last layer: test images − training images",
        canatar.configurations(networks),
        "last_test",
        "tested",
        less=("last_training", "tested"),
        paper=0.322,
    )


@page.claim("canatar.fig6", networks)
def average_tells_more_than_the_last_layer(networks):
    yield from no_accident(networks, *COLUMNS)
    table = canatar.configurations(networks)
    for images, paper in {"test": 0.070, "training": 0.300}.items():
        yield press.correlation(
            f"{images} images: average − last layer",
            table,
            f"average_{images}",
            "tested",
            less=(f"last_{images}", "tested"),
            paper=paper,
        )


@page.claim("canatar.tab1.not_enough", networks)
def high_cka_is_not_enough(networks):
    for images in ("training", "test"):
        lost = canatar.lost_by_resemblance(networks, images)
        name = f"accuracy lost, CKA on {images} images"
        yield press.above(name, lost, 0.02)


# %% [markdown]
# Second: augmentation goes with accuracy, momentum with CKA. Third: batch size
# and skip connections matter less.


# %% tags=["hide-input"]
@page.claim("canatar.tab1.augmentation", networks)
def augmentation_goes_with_accuracy(networks):
    yield from no_accident(networks, "tested", "last_training", "last_test")
    table = canatar.configurations(networks)
    yield press.correlation(
        "augmentation and accuracy",
        table,
        "augment",
        "tested",
        above=0.5,
        paper=0.806,
    )
    for images, paper in {"training": 0.644, "test": 0.277}.items():
        yield press.correlation(
            f"with accuracy − with CKA on {images} images",
            table,
            "augment",
            "tested",
            less=("augment", f"last_{images}"),
            paper=paper,
        )


@page.claim("canatar.tab1.momentum", networks)
def momentum_goes_with_cka(networks):
    yield from no_accident(networks, "tested", "last_training", "last_test")
    table = canatar.configurations(networks)
    for images, paper in {"training": 0.936, "test": 0.823}.items():
        yield press.correlation(
            f"momentum and the last layer's CKA on {images} images",
            table,
            "momentum",
            f"last_{images}",
            above=0.5,
            paper=paper,
        )
    yield press.correlation(
        "with CKA on training images − with accuracy",
        table,
        "momentum",
        "last_training",
        less=("momentum", "tested"),
        paper=0.488,
    )


@page.claim("canatar.tab1.weak", networks)
def batches_and_skips_matter_less(networks):
    yield from no_accident(networks, "tested")
    table = canatar.configurations(networks)
    factors = {"skip": -0.782, "batch": -0.559}
    for factor in factors:
        yield press.correlation(
            f"size of the correlation: {factor}",
            table,
            factor,
            "tested",
            absolute=True,
            below=0.5,
        )
    for factor, paper in factors.items():
        yield press.correlation(
            f"size of the correlation: {factor} − augmentation",
            table,
            factor,
            "tested",
            less=("augment", "tested"),
            absolute=True,
            below=0,
            paper=paper,
        )


# %% [markdown]
# ## A higher loss with a higher accuracy?
#
# In table I the training loss has a correlation of $+0.38$ with test accuracy:
# networks that fit worse predict better. And it has one of $+0.34$ with
# augmentation. The paper does not speak of it, nor does it say which loss it
# means; in our first edition, where the loss was that on images as they are,
# the first correlation was negative. If it is the loss that training reports,
# on images as they were augmented, then augmentation raises it, since those
# images are harder to fit, and raises accuracy as well. Among networks that
# are alike in augmentation a higher loss should then go with a lower accuracy.
# The figure shows the loss of the trained networks twice: on images that are
# augmented once more, and on the same images as they are. Were the choice of
# the loss the reason, the two panels would lean in opposite directions.


# %% tags=["hide-input"]
@page.figure(
    "canatar.tab1.loss",
    "Test accuracy against the loss of the trained network on its training "
    "images: augmented as in training, and as they are. A dot is a "
    "configuration.",
    networks,
)
def loss_and_accuracy(networks):
    return canatar.loss_and_accuracy(canatar.configurations(networks))


@page.claim("canatar.tab1.loss", networks)
def worse_fits_predict_better(networks):
    yield from no_accident(networks, "tested")
    table = canatar.configurations(networks)
    yield press.correlation(
        "loss and accuracy", table, "loss", "tested", paper=0.384
    )
    yield press.correlation(
        "loss and augmentation", table, "loss", "augment", paper=0.335
    )


@page.claim("canatar.tab1.loss.plain", networks)
def alike_in_augmentation_worse_fits_predict_worse(networks):
    yield from no_accident(networks, "tested")
    table = canatar.within(canatar.configurations(networks))
    yield press.correlation(
        "loss and accuracy", table, "loss", "tested", below=0
    )


# %% [markdown]
# ## Does CKA say more than the augmentation does?
#
# The last two questions are ours. Plain CKA is too high on few images; is the
# order of correlations the same with debiased CKA? And does average CKA still
# tell accuracy when the means over augmentation and batch size are taken off?


# %% tags=["hide-input"]
@page.claim("canatar.tab1.debiased", networks)
def debiased_cka_tells_the_same(networks):
    yield from no_accident(networks, *COLUMNS)
    table = canatar.configurations(networks)
    yield press.correlation(
        "last layer: test images − training images",
        table,
        "last_test_debiased",
        "tested",
        less=("last_training_debiased", "tested"),
    )
    for images in ("test", "training"):
        yield press.correlation(
            f"{images} images: average − last layer",
            table,
            f"average_{images}_debiased",
            "tested",
            less=(f"last_{images}_debiased", "tested"),
        )


@page.claim("canatar.tab1.within", networks)
def average_cka_tells_within_augmentation(networks):
    yield from no_accident(
        networks, "tested", "average_test", "average_training"
    )
    table = canatar.within(canatar.configurations(networks))
    for images in ("test", "training"):
        yield press.correlation(
            f"average CKA on {images} images, and accuracy",
            table,
            f"average_{images}",
            "tested",
        )


# %% [markdown]
# ## What differs from the paper
#
# The paper has one network of each configuration, and its correlations are
# over networks; here they are over configurations, and conditions ask whether
# networks of one configuration agree. It does not say which loss it reports,
# nor on which images. The choices of a configuration are not quite independent
# of each other here, since some combinations never fit. Networks of different
# batch size have learned different images, so that a part of what batch size
# seems to do is the choice of images. Sizes and training:
# [](02_layers_and_targets).
#
# ## Try it
#
# 1. Draw `average_test` against `tested` with a color for each batch size.
#    What would you have concluded from one batch size alone?
# 2. Set `change = {"runs": 3}`. Which intervals become shorter, and why do
#    others hardly change?
#
# The paper now takes three networks out of the row and asks what their last
# layers look like inside: [](04_three_networks).

# %% tags=["hide-input"]
page.end()
