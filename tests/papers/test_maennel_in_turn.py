"""Two tasks in turn: the paper's recipe, layers that keep their norms, and the area of a curve."""

import pytest
import torch

from repalign import data, models, train
from repalign.papers import maennel
from repalign.train import History


def network(outputs=5, seed=0, **options):
    return models.SimpleCNN((1, 8, 8), outputs, convs=2, filters=4, units=16, seed=seed, **options)


@pytest.fixture
def task():
    x = torch.randn(300, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return x, data.random_labels(300, 5, seed=1)


def test_pretraining_gives_a_trained_copy_with_the_norms_of_the_start(task):
    net = network()
    start = {name: value.clone() for name, value in net.state_dict().items()}
    trained = maennel.pretrain(net, *task, epochs=3, lr=0.02, seed=0)
    assert all(torch.equal(start[name], value) for name, value in net.state_dict().items())
    assert maennel.norms(trained) == pytest.approx(maennel.norms(net), rel=1e-5)
    loose = maennel.pretrain(net, *task, epochs=3, lr=0.02, seed=0, rescale=False)
    for name, weight in loose.named_parameters():
        if name.endswith("weight"):
            assert not torch.allclose(weight, start[name], rtol=1e-3)
            other = dict(trained.named_parameters())[name]
            cosine = torch.nn.functional.cosine_similarity(weight.flatten(), other.flatten(), dim=0)
            assert cosine.item() == pytest.approx(1, abs=1e-5)


def test_it_is_the_papers_recipe(task):
    """Momentum 0.9, batches of 256, a third of the rate after each third of the steps."""
    by_hand, net = network(), network()
    how = dict(optimizer="momentum", momentum=0.9, batch_size=256, schedule="thirds")
    train.fit(by_hand, *task, epochs=6, lr=0.02, seed=3, **how)
    trained = maennel.pretrain(net, *task, epochs=6, lr=0.02, seed=3, rescale=False)
    assert all(torch.equal(a, b) for a, b in zip(by_hand.parameters(), trained.parameters(), strict=True))
    history = maennel.learning_curve(net, *task, epochs=6, lr=0.02, seed=3)
    assert history.lr == pytest.approx([0.02, 0.02, 0.02 / 3, 0.02 / 3, 0.02 / 9, 0.02 / 9])
    assert history.train_accuracy[-1] == train.accuracy(trained, *task)
    slower = maennel.learning_curve(net, *task, epochs=2, lr=0.02, batch_size=100, seed=3)
    assert slower.steps == [0, 3, 6]


def test_a_residual_network_is_not_rescaled(task):
    net = models.resnet18_v2(5, width=4, groups=2, channels=1)
    with pytest.raises(ValueError, match="leave it out"):
        maennel.pretrain(net, *task, epochs=1, lr=0.01, seed=0)
    trained = maennel.pretrain(net, *task, epochs=1, lr=0.01, seed=0, rescale=False)
    assert not torch.equal(trained.stem.weight, net.stem.weight)


def test_a_narrow_residual_network_has_its_widths():
    net = models.resnet18_v2(width=8, groups=4)
    assert [net.stem.out_channels, net.head.in_features] == [8, 64]
    with pytest.raises(ValueError, match="groups should divide width"):
        models.resnet18_v2(width=8)


def test_the_area_is_the_mean_height_over_steps():
    assert maennel.curve_area(History(steps=[0, 1, 9], train_accuracy=[0.1, 0.5, 0.5])) == pytest.approx(
        (0.3 + 8 * 0.5) / 9
    )
    both = History(steps=[0, 4], train_accuracy=[0.0, 1.0], test_accuracy=[0.2, 0.4])
    assert maennel.curve_area(both, "test_accuracy") == pytest.approx(0.3)
    # A constant curve has its height as area, however it is sampled.
    assert maennel.curve_area(History(steps=[0, 1, 5, 6], train_accuracy=[0.7] * 4)) == pytest.approx(0.7)
    for few in (History(), History(steps=[0], train_accuracy=[1.0]), History(steps=[0, 1])):
        with pytest.raises(ValueError, match="two times or more"):
            maennel.curve_area(few)


def test_a_network_that_diverges_counts_as_guessing(task):
    x, y = task
    net, how = network(), dict(epochs=2, seed=0, guess=0.2)
    found = maennel.learning_areas(net, x, y, lr=0.02, test=(x[:50], y[:50]), **how)
    history = maennel.learning_curve(net, x, y, lr=0.02, epochs=2, seed=0)
    assert found.pop("test") > 0
    assert found == dict(area=maennel.curve_area(history), diverged=False)
    assert maennel.learning_areas(net, x, y, lr=1e9, **how) == dict(area=0.2, diverged=True)
    assert maennel.learning_areas(None, x, y, test=(x, y), **how) == dict(area=0.2, test=0.2, diverged=True)
