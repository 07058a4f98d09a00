"""The three simulated cameras: what each does to a picture, by seed."""

import pytest
import torch

from repalign.papers import imani

SQUARE = torch.zeros(50, 1, 28, 28)
SQUARE[:, :, 6:22, 6:22] = 1.0


def test_amazon_shows_catalog_pictures_as_they_are():
    assert torch.equal(imani.camera(SQUARE, "amazon", seed=0), SQUARE)


def test_webcam_is_pale_and_noisy():
    seen = imani.camera(SQUARE, "webcam", seed=0)
    inside, border = seen[:, :, 10:18, 10:18], seen[:, :, :3]
    assert inside.mean().item() == pytest.approx(0.8, abs=0.02)
    assert border.mean().item() == pytest.approx(0.2, abs=0.02)
    assert border.std().item() == pytest.approx(0.1, abs=0.02)


def test_dslr_shows_smaller_objects_somewhere_in_a_room():
    seen = imani.camera(SQUARE, "dslr", seed=0)
    object_, room = seen > 0.9, seen[seen < 0.6]
    assert 0.3 < object_.sum() / SQUARE.sum() < 0.8
    assert object_.flatten(1).float().argmax(1).unique().numel() > 10
    assert room.std() > 0.05


def test_photographs_are_seen_in_color():
    """A photograph hides the room wherever it is, black parts too; noise and room differ by channel."""
    black = torch.zeros(20, 3, 32, 32)
    assert torch.equal(imani.camera(black, "amazon", seed=0), black)
    noisy = imani.camera(black, "webcam", seed=0)
    assert noisy.mean().item() == pytest.approx(0.2, abs=0.01)
    room = imani.camera(black, "dslr", seed=0)
    assert room[:, :, 12:20, 12:20].max() < 1e-6
    assert room[:, :, [0, -1]].mean().item() == pytest.approx(0.25, abs=0.06)
    for seen in (noisy, room):
        assert not torch.equal(seen[:, 0], seen[:, 1])


def test_gray_photographs_and_objects_differ_only_where_they_are_dark():
    white = torch.ones(5, 1, 32, 32)
    three = imani.camera(white.expand(-1, 3, -1, -1), "dslr", seed=0)
    assert torch.allclose(three[:, :, 12:20, 12:20], imani.camera(white, "dslr", seed=0)[:, :, 12:20, 12:20])


@pytest.mark.parametrize("domain", ["webcam", "dslr"])
def test_a_seed_says_it_all(domain):
    one, again, other = (imani.camera(SQUARE, domain, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert one.min() >= 0
    assert one.max() <= 1


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match="amazon, webcam, dslr"):
        imani.camera(SQUARE, "phone", seed=0)
    with pytest.raises(ValueError, match="floats"):
        imani.camera(SQUARE.byte(), "webcam", seed=0)
    with pytest.raises(ValueError, match="1 or 3"):
        imani.camera(SQUARE.expand(-1, 2, -1, -1), "webcam", seed=0)
