"""Windows side by side: the same network, and covariances as asked for (Maennel et al., E.2)."""

import pytest
import torch

from repalign.covariance import patch_covariance
from repalign.papers import maennel


def images(n=40, side=9, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, side, side, generator=g)
    return x + x.roll(1, 2) + x.roll(1, 3) + torch.linspace(0, 1, side)  # neighbors alike, a mean per column


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_network_computes_the_same_on_real_windows(stride):
    x, conv = images(side=11), torch.nn.Conv2d(3, 5, 3, stride)
    beside = torch.nn.Conv2d(3, 5, 3, 3)
    beside.load_state_dict(conv.state_dict())
    torch.testing.assert_close(
        beside(maennel.mosaic(x, "real", stride=stride)), conv(x), atol=1e-5, rtol=1e-5
    )


def test_shuffled_windows_are_those_of_the_same_position():
    x = images()
    mixed = maennel.mosaic(x, "shuffled", seed=1)
    assert not torch.equal(mixed, x)
    for row in range(0, 9, 3):
        for column in range(0, 9, 3):
            a, b = (v[:, :, row : row + 3, column : column + 3].flatten(1) for v in (x, mixed))
            assert sorted(map(tuple, a.tolist())) == sorted(map(tuple, b.tolist()))


def test_gaussian_windows_have_the_covariance_of_all_patches_and_no_relation():
    x = images(n=8000)
    found = maennel.mosaic(x, "Gaussian", stride=3, seed=1)
    want = patch_covariance(x, 3)
    torch.testing.assert_close(patch_covariance(found, 3, stride=3), want, atol=0.15, rtol=0)
    left, right = found[..., 2].flatten(), found[..., 3].flatten()  # neighbors in different windows
    assert abs(torch.corrcoef(torch.stack([left, right]))[0, 1]) < 0.03
    real = torch.corrcoef(torch.stack([x[..., 2].flatten(), x[..., 3].flatten()]))[0, 1]
    assert real > 0.2
    assert found.mean().abs() < 0.02


def test_windows_per_position_have_the_covariance_of_their_position_and_mean_zero():
    x = images(n=8000)
    x[..., :3] *= 3  # the first column of windows varies more
    found = maennel.mosaic(x, "per position", seed=1)
    for column in (0, 6):
        a, b = (v[:, :, :3, column : column + 3].flatten(1) for v in (x, found))
        torch.testing.assert_close(torch.cov(b.T), torch.cov(a.T), atol=0.05 * float(a.var()), rtol=0.05)
        assert b.mean(dim=0).abs().max() < 0.2


@pytest.mark.parametrize("version", maennel.VERSIONS)
def test_the_seed_decides(version):
    x = images()
    assert torch.equal(maennel.mosaic(x, version, seed=3), maennel.mosaic(x, version, seed=3))
    assert maennel.mosaic(x, version, stride=2).shape == (40, 3, 12, 12)
    assert torch.equal(maennel.mosaic(x, version, seed=3), maennel.mosaic(x, version, seed=4)) == (
        version == "real"
    )


@pytest.mark.parametrize(
    "x, version, options",
    [
        (images(), "unreal", {}),
        (images().to(torch.uint8), "real", {}),
        (images()[..., :8], "real", {}),
        (images(), "real", {"size": 10}),
        (images(), "real", {"stride": 0}),
    ],
)
def test_errors_say_what_is_wrong(x, version, options):
    with pytest.raises(ValueError, match=r"should be|unknown version"):
        maennel.mosaic(x, version, **options)


def test_the_middle_of_bytes():
    x = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    x[..., 2:29, 2:29] = 255
    assert maennel.middle(x, 32).unique().tolist() == [-1, 1]
    assert (maennel.middle(x, 27) == 1).all()
    assert maennel.middle(x, 27).shape == (2, 3, 27, 27)
    for wrong in ((x, 33), (x, 0), (x.float(), 27)):
        with pytest.raises(ValueError, match="should be from 1 to 32"):
            maennel.middle(*wrong)
