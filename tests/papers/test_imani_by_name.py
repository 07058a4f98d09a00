"""Features of images: designed ones fitted to training images, and a network's last hidden layer."""

from dataclasses import replace

import pytest
import torch

from repalign import features, models
from repalign.papers import imani


def images(n=12, seed=0):
    return torch.rand(n, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def network(complete=True):
    return replace(models.first_available("random"), complete=complete)


@pytest.mark.parametrize("kind", imani.DESIGNED)
def test_other_images_are_described_as_the_training_images_are(kind):
    x = images()
    describe = imani.designed(kind, x, words=8)
    whole = describe(x)
    assert whole.shape[0] == 12
    assert whole.ndim == 2
    torch.testing.assert_close(describe(x[:5]), whole[:5])


def test_designed_features_are_those_of_their_own_functions():
    x, other = images(), images(5, seed=1)
    assert torch.equal(imani.designed("HOG", x)(other), imani.hog(other))
    assert torch.equal(imani.designed("pixels", x)(other), other.flatten(1))
    assert torch.equal(imani.designed("RBF", x)(x), imani.rbf(x.double()))
    counted = imani.sift_bag_of_words(x, 8, seed=3)
    assert torch.equal(imani.designed("SIFT", x, words=8, seed=3)(x), counted)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="one of pixels, HOG, SIFT, RBF, but is 'hog'"):
        imani.designed("hog", images())


def test_the_last_hidden_layer_is_what_the_classifier_sees():
    net, x = network(), images()
    found = imani.last_hidden(net, x, batch_size=5)
    expected = features.extract(net.module, net.preprocess(x), "dense_relu")["dense_relu"]
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad
    assert not any(part._forward_pre_hooks for part in net.module.modules())


def test_without_a_classifier_it_is_the_output():
    net, x = network(complete=False), images()
    torch.testing.assert_close(imani.last_hidden(net, x), net.module(net.preprocess(x)).detach())


def test_images_come_to_the_size_asked_for():
    net, x = network(), images(4)
    small = imani.last_hidden(net, torch.nn.functional.interpolate(x, (40, 40)), size=32)
    assert small.shape == imani.last_hidden(net, x).shape


def pooled_network():
    """A convolution and its mean over positions, without a classifier."""
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, stride=4), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    )
    return replace(network(complete=False), module=module, name="small")


def test_the_mean_of_the_last_map_is_the_last_hidden_layer():
    net, x = pooled_network(), images()
    found = imani.last_map(net, x, batch_size=5)
    assert found.shape == (12, 4, 8, 8)
    assert not found.requires_grad
    torch.testing.assert_close(found, net.module[0](net.preprocess(x)).detach())
    torch.testing.assert_close(found.mean((2, 3)), imani.last_hidden(net, x))
    assert imani.last_map(net, x, size=16).shape == (12, 4, 4, 4)
    assert not any(part._forward_pre_hooks for part in net.module.modules())


def test_the_last_layer_is_a_map_only_of_vgg16_without_its_dense_layers():
    net, x = pooled_network(), images()
    torch.testing.assert_close(imani.last_layer(net, x), imani.last_hidden(net, x))
    headless = replace(net, name="vgg16")
    torch.testing.assert_close(imani.last_layer(headless, x), imani.last_map(headless, x).flatten(1))
    whole = replace(network(), name="vgg16")
    torch.testing.assert_close(imani.last_layer(whole, x), imani.last_hidden(whole, x))


def test_a_network_without_a_pool_has_no_last_map():
    with pytest.raises(ValueError, match="random has no AdaptiveAvgPool2d"):
        imani.last_map(network(), images())
