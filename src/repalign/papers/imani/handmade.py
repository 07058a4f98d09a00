"""Features that no network learned (Imani et al. §3 and §7.2): RBF, HOG, SIFT bag of words, sparse codes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from repalign._arrays import check, numpy_too
from repalign.papers.imani import sparse

Array = TypeVar("Array", Tensor, np.ndarray)


@numpy_too
def rbf(
    x: Float[Tensor, " n *d"],
    centers: Float[Tensor, " m *d"] | None = None,
    *,
    bandwidth: float = 1.0,
    unit: bool = True,
) -> Float[Tensor, "n m"]:
    """exp(−‖xᵢ − cⱼ‖² / (2 bandwidth²)), with x and the centers flattened and scaled to length one.

    The centers are x itself if none are given, as Imani et al. do "to ensure expressivity" (§7.2).

    >>> rbf(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    tensor([[1.0000, 0.3679],
            [0.3679, 1.0000]])
    """
    if bandwidth <= 0:
        raise ValueError(f"bandwidth should be above 0, but is {bandwidth}.")
    a = check(x, "x", "n *d").flatten(1)
    b = a if centers is None else check(centers, "centers", "m *d").flatten(1).to(a)
    if a.shape[1] != b.shape[1]:
        raise ValueError(
            f"x and centers should have the same number of features, but have {a.shape[1]} and {b.shape[1]}."
        )
    if unit:
        a, b = nn.functional.normalize(a), nn.functional.normalize(b)
    # Differences, not products: equal points must give exactly 1.
    distance = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.exp(-distance.square() / (2 * bandwidth**2))


def hog(images: Array, *, orientations: int = 9, cell: int = 8, block: int = 2) -> Array:
    """Histograms of oriented gradients, a row per image (n, c, h, w) or (n, h, w) with values in [0, 1].

    The defaults are Imani et al.'s "9 orientations, 64 pixels per cell, and 4 cells per block":
    cells of 8 × 8 pixels, blocks of 2 × 2 cells.
    """
    feature = _need("skimage.feature")
    pictures = _pictures(images)
    if min(pictures.shape[1:3]) < cell * block:
        raise ValueError(
            f"one block needs {cell * block} pixels, but the images are {pictures.shape[1]} × "
            f"{pictures.shape[2]}: use smaller cells, or enlarge the images."
        )
    rows = [
        feature.hog(
            picture,
            orientations=orientations,
            pixels_per_cell=(cell, cell),
            cells_per_block=(block, block),
            channel_axis=-1,
        )
        for picture in pictures
    ]
    return _as(np.stack(rows), images)


def sift_vocabulary(images: Array, words: int = 2048, *, seed: int = 0) -> Array:
    """``words`` typical SIFT descriptors of the images, (words, 128), by k-means in mini-batches."""
    cluster = _need("sklearn.cluster")
    descriptors = np.concatenate(list(_sift(images)))
    if len(descriptors) < words:
        raise ValueError(
            f"a vocabulary of {words} needs as many key points, but {len(images)} images have "
            f"{len(descriptors)}: use fewer words or more images."
        )
    means = cluster.MiniBatchKMeans(words, random_state=seed, n_init=1, batch_size=max(1024, words))
    return _as(means.fit(descriptors).cluster_centers_, images)


def sift_bag_of_words(
    images: Array, words: int = 2048, *, vocabulary: Array | None = None, seed: int = 0
) -> Array:
    """How often each word of a vocabulary of SIFT descriptors occurs in an image: (n, words).

    The vocabulary is made of the images themselves; pass the one of the training images to describe
    others. An image without key points has a row of zeros.
    """
    metrics = _need("sklearn.metrics")
    if vocabulary is None:
        vocabulary = sift_vocabulary(images, words, seed=seed)
    typical = np.ascontiguousarray(np.asarray(vocabulary), dtype=np.float32)
    counts = np.zeros((len(images), len(typical)))
    for row, descriptors in zip(counts, _sift(images), strict=True):
        if len(descriptors):
            nearest = metrics.pairwise_distances_argmin(descriptors, typical)
            row += np.bincount(nearest, minlength=len(typical))
    return _as(counts, images)


def learn_dictionary(
    x: Array, atoms: int = 1024, *, alpha: float = 0.1, passes: int = 10, seed: int = 0
) -> Array:
    """``atoms`` directions, (atoms, d), of which every row of x is a sparse combination (Mairal et al.).

    ``alpha`` weighs sparsity against fit; ``passes`` go over the data in mini-batches. Imani et al. (§3) give
    the 1024 atoms and nothing else. With as many atoms as rows, all of length one, the minimum is known: the
    rows themselves, with an objective of α − α²/2 a row. Learning from singular vectors stays above it.
    """
    return _as(sparse.learn_atoms(_rows(x), atoms, alpha=alpha, passes=passes, seed=seed), x)


def dictionary(
    x: Array,
    atoms: int = 1024,
    *,
    alpha: float = 0.1,
    passes: int = 10,
    learned: Array | None = None,
    seed: int = 0,
) -> Array:
    """The sparse code of each row in a dictionary learned from x, or one already ``learned``: (n, atoms)."""
    if learned is None:
        learned = learn_dictionary(x, atoms, alpha=alpha, passes=passes, seed=seed)
    rows, directions = _rows(x), _rows(learned)
    if rows.shape[1] != directions.shape[1]:
        raise ValueError(
            f"x and its dictionary should have the same number of features, but have {rows.shape[1]} and "
            f"{directions.shape[1]}."
        )
    return _as(sparse.sparse_codes(rows, directions.to(rows.device), alpha), x)


def _need(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{error}. Hand-made features need an extra: pip install 'repalign[features]'."
        ) from error


def _as(rows: np.ndarray | Tensor, like: Array) -> Any:
    """Rows as the input came: numpy or tensor, its floating dtype and device."""
    if isinstance(like, Tensor):
        dtype = like.dtype if like.is_floating_point() else torch.float32
        found = rows if isinstance(rows, Tensor) else torch.from_numpy(np.ascontiguousarray(rows))
        return found.to(like.device, dtype)
    return np.asarray(rows).astype(like.dtype if np.issubdtype(like.dtype, np.floating) else np.float32)


def _rows(x: Any) -> Tensor:
    """One row for each sample, where the samples are, in double precision."""
    return check(np.array(x) if isinstance(x, np.ndarray) else x, "x", "n *d").flatten(1).detach().double()


def _pictures(images: Any) -> Float[np.ndarray, "n h w c"]:
    """Images for libraries that want channels last and values in [0, 1]."""
    array = images.detach().cpu().numpy() if isinstance(images, Tensor) else np.asarray(images)
    if array.ndim == 3:
        array = array[:, None]
    if array.ndim != 4 or array.shape[1] not in (1, 3) or len(array) == 0:
        raise ValueError(
            f"images should have shape (n, h, w) or (n, 1 or 3, h, w), but have {tuple(images.shape)}."
        )
    array = array / 255 if array.dtype == np.uint8 else array.astype(np.float64)
    if not (array.min() >= 0 and array.max() <= 1):
        raise ValueError(
            f"images should have values in [0, 1], or be uint8, but reach from {array.min():.3g} to "
            f"{array.max():.3g}: pass them before they are normalized."
        )
    return np.moveaxis(array, 1, -1)


def _sift(images: Any) -> Iterator[Float[np.ndarray, "k 128"]]:
    """The descriptors of each image's key points, possibly none."""
    cv2 = _need("cv2")
    detector = cv2.SIFT_create()
    for picture in _pictures(images):
        gray = picture @ (0.299, 0.587, 0.114) if picture.shape[-1] == 3 else picture[..., 0]
        _, descriptors = detector.detectAndCompute(np.round(255 * gray).astype(np.uint8), None)
        yield np.zeros((0, 128), np.float32) if descriptors is None else descriptors
