"""Shifted images."""

import pytest
import torch

from repalign.papers.sharon.moving import shifted, usual


def test_every_image_is_shifted_by_its_own_few_pixels():
    x = torch.zeros(200, 1, 7, 7)
    x[:, :, 3, 3] = 1
    moved = shifted(x, torch.Generator().manual_seed(0), pad=2, fill=-1)
    places = (moved == 1).nonzero()
    assert len(places) == 200
    rows, columns = places[:, 2], places[:, 3]
    assert set(rows.tolist()) == set(columns.tolist()) == {1, 2, 3, 4, 5}
    assert moved.min() == -1
    assert len({(i, j) for i, j in zip(rows.tolist(), columns.tolist(), strict=True)}) == 25


def test_no_room_is_no_move():
    x = torch.rand(3, 2, 4, 5)
    assert torch.equal(shifted(x, torch.Generator(), pad=0), x)


@pytest.mark.parametrize("channels", [1, 3])
def test_black_moves_in(channels):
    gray = torch.zeros(50, channels, 6, 6)
    moved = usual(channels, 2)(gray, torch.Generator().manual_seed(0))
    assert set(moved.unique().tolist()) == {-1, 0}
