"""Features made by hand."""

import importlib

import numpy as np
import pytest
import torch
from torch import nn

from repalign.models.initialization import generator, normal
from repalign.papers import imani

ROWS = torch.ones(4, 3)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: imani.rbf(ROWS, bandwidth=0.0), "above 0"),
        (lambda: imani.rbf(ROWS, torch.ones(2, 5)), "3 and 5"),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_rbf_is_its_formula():
    x, centers = normal((7, 2, 3), generator(0)), normal((5, 2, 3), generator(1))
    a, b = (v.flatten(1) / v.flatten(1).norm(dim=1, keepdim=True) for v in (x, centers))
    expected = torch.stack([torch.exp(-(a - c).square().sum(1) / (2 * 0.5**2)) for c in b], dim=1)
    torch.testing.assert_close(imani.rbf(x, centers, bandwidth=0.5), expected)
    assert torch.equal(imani.rbf(x).diagonal(), torch.ones(7))
    assert torch.linalg.matrix_rank(imani.rbf(x.double())) == 7  # expressive: any labels can be fitted
    far = torch.exp(-(x.flatten(1)[0] - centers.flatten(1)[0]).square().sum() / 2)
    torch.testing.assert_close(imani.rbf(x, centers, unit=False)[0, 0], far)
    assert isinstance(imani.rbf(x.numpy()), np.ndarray)


def test_a_missing_extra_is_named(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    for call in (imani.hog, imani.sift_vocabulary, imani.sift_bag_of_words):
        with pytest.raises(ImportError, match=r"repalign\[features\]"):
            call(torch.ones(2, 16, 16))


@pytest.fixture
def pictures():
    """Blobs: something for a detector of key points to find."""
    g = generator(0)
    u, v = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    images = torch.zeros(12, 3, 32, 32)
    for image in images:
        for _ in range(6):
            a, b, size = (torch.rand(3, generator=g) * torch.tensor([32.0, 32.0, 4.0])).tolist()
            image += torch.exp(-((u - a) ** 2 + (v - b) ** 2) / (1 + size) ** 2) * torch.rand(
                3, 1, 1, generator=g
            )
    return images.clamp(0, 1)


def test_hog(pictures):
    pytest.importorskip("skimage")
    rows = imani.hog(pictures)
    assert rows.shape == (12, 3 * 3 * 2 * 2 * 9)  # 3 × 3 blocks of 2 × 2 cells with 9 orientations
    assert rows.dtype == torch.float32
    # A ramp has one gradient: all of its weight is in one orientation.
    ramp = np.tile(np.linspace(0, 1, 16), (1, 16, 1))
    cells = imani.hog(ramp).reshape(4, 9)
    assert isinstance(cells, np.ndarray)
    assert ((cells > 1e-6).sum(axis=1) == 1).all()
    # Brighter by a factor: the same, since blocks are normalized.
    np.testing.assert_allclose(imani.hog(0.5 * ramp), imani.hog(ramp), atol=1e-4)
    whole = (255 * pictures).round().to(torch.uint8)
    torch.testing.assert_close(imani.hog(whole), imani.hog(whole.double() / 255).float())


def test_sift_bag_of_words(pictures):
    pytest.importorskip("cv2")
    pytest.importorskip("sklearn")
    words = imani.sift_vocabulary(pictures, 6, seed=1)
    assert words.shape == (6, 128)
    rows = imani.sift_bag_of_words(pictures, 6, seed=1)
    assert rows.shape == (12, 6)
    assert (rows == rows.round()).all()
    assert rows.sum() >= 12
    assert torch.equal(rows, imani.sift_bag_of_words(pictures, vocabulary=words))
    # Each image is described by itself, and nothing to see is a row of zeros.
    assert torch.equal(rows[3:5], imani.sift_bag_of_words(pictures[3:5], vocabulary=words))
    assert not imani.sift_bag_of_words(torch.zeros(2, 1, 32, 32), vocabulary=words).any()
    assert isinstance(imani.sift_bag_of_words(pictures.numpy(), 6), np.ndarray)


def test_dictionary_recovers_sparse_combinations():
    g = generator(0)
    atoms = torch.linalg.qr(normal((12, 12), g, torch.float64)).Q[:8]
    codes = normal((300, 8), g, torch.float64) * (torch.rand(300, 8, generator=g) < 0.2)
    x = codes @ atoms
    # 100 passes found them all with two of five seeds, here and in scikit-learn; 400 do with all five.
    learned = imani.learn_dictionary(x, 8, alpha=0.3, passes=400, seed=0)
    assert learned.shape == (8, 12)
    overlap = nn.functional.normalize(learned) @ atoms.mT
    assert float(overlap.abs().max(dim=0).values.min()) > 0.9  # every true direction is found
    phi = imani.dictionary(x, learned=learned, alpha=0.02)
    assert phi.shape == (300, 8)
    # The code solves the lasso: no coordinate could improve it.
    slope = (x - phi @ learned) @ learned.mT
    assert float(slope.abs().max()) < 0.02 + 1e-4
    on = phi != 0
    torch.testing.assert_close(slope[on], 0.02 * phi[on].sign(), atol=1e-4, rtol=0)


def test_dictionary_has_more_atoms_than_inputs_and_follows_its_seed():
    x = normal((40, 6), generator(0)).numpy()
    first, again, other = (imani.dictionary(x, 20, passes=1, seed=s) for s in (1, 1, 2))
    assert first.shape == (40, 20)
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: imani.hog(torch.ones(2, 3, 8, 8)), "one block needs 16 pixels"),
        (lambda: imani.hog(torch.ones(2, 5, 32, 32)), "1 or 3"),
        (lambda: imani.hog(-torch.ones(2, 3, 32, 32)), "before they are normalized"),
        (lambda: imani.sift_vocabulary(torch.zeros(2, 32, 32), 5), "2 images have 0"),
        (
            lambda: imani.dictionary(ROWS, learned=torch.ones(2, 5)),
            "same number of features, but have 3 and 5",
        ),
    ],
)
def test_bad_images_say_what_to_do(call, message):
    for name in ("skimage", "cv2", "sklearn"):
        pytest.importorskip(name)
    with pytest.raises(ValueError, match=message):
        call()
