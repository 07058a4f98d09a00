"""Kernels as matrices: centering, HSIC, alignment, CKA of two representations or of all pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from repalign._arrays import numbers, numpy_too, same_rows, working
from repalign.kernels import grid
from repalign.kernels.classes import warn_of_class_numbers

Representation: TypeAlias = "Float[Tensor, '_ _'] | Callable[[], Tensor] | str | PathLike[str]"


@numpy_too
def gram(X: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """K = X Xᵀ, the linear kernel of a representation.

    >>> gram(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    tensor([[5., 2.],
            [2., 1.]])
    """
    X = numbers(X, "X", "n d")
    return X @ X.mT


@numpy_too
def center(K: Float[Tensor, "n n"], *, debiased: bool = False) -> Float[Tensor, "n n"]:
    """H K H with H = I − 11ᵀ/n: the kernel of features whose mean is removed (Canatar §III.2).

    With ``debiased=True`` the U-centered kernel: a diagonal of zeros, and off it the row and column sums
    removed with the divisors that make the inner product of two such kernels an unbiased estimate
    (Székely & Rizzo). That needs n ≥ 4.

    >>> center(torch.tensor([[2.0, 0.0], [0.0, 2.0]]))
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    K = _kernel(K, "K")
    if debiased:
        return _u_center(K).to(K)
    k = working(K)
    rows = k.mean(dim=1, keepdim=True)
    return (k - rows - rows.mT + rows.mean()).to(K)


def _u_center(K: Tensor) -> Tensor:
    n = len(K)
    grid.enough(n, debiased=True)
    k = working(K).clone().fill_diagonal_(0)
    rows = k.sum(dim=1, keepdim=True) / (n - 2)
    return (k - rows - rows.mT + rows.sum() / (n - 1)).fill_diagonal_(0)


@numpy_too
def hsic(K: Float[Tensor, "n n"], L: Float[Tensor, "n n"], *, debiased: bool = False) -> Float[Tensor, ""]:
    """How dependent two kernels are: ⟨HKH, HLH⟩ / (n − 1)² (Sharon eq. 1).

    With ``debiased=True`` the unbiased estimate, ⟨U-centered K, U-centered L⟩ / n(n − 3), from n ≥ 4; it is
    negative about half of the time when there is no dependence.

    >>> hsic(torch.eye(3), torch.eye(3))
    tensor(0.5000)
    """
    K, L = _kernel(K, "K"), _kernel(L, "L")
    same_rows(K, L, "K and L")
    n = len(K)
    grid.enough(n, debiased)
    a, b = (center(working(m), debiased=debiased) for m in (K, L))
    return ((a * b).sum() / (n * (n - 3) if debiased else (n - 1) ** 2)).to(K)


@numpy_too
def kta(K: Float[Tensor, "n n"], L: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    """tr(KL) / √(tr(KK) tr(LL)): alignment of two kernels as they are (Canatar eq. 4).

    Of kernels from :func:`center` it is CKA; with ``debiased=True`` there, debiased CKA. The kernel that
    aligns best with a target y is yyᵀ itself.

    >>> kta(torch.eye(2), torch.ones(2, 2))
    tensor(0.7071)
    """
    K, L = _kernel(K, "K"), _kernel(L, "L")
    same_rows(K, L, "K and L")
    a, b = working(K), working(L)
    norms = torch.linalg.matrix_norm(a), torch.linalg.matrix_norm(b)
    for name, norm in zip("KL", norms, strict=True):
        if norm == 0:
            raise ValueError(f"{name} should not be zero: the alignment with a zero kernel is undefined.")
    return ((a / norms[0] * (b / norms[1])).sum()).to(K)


@numpy_too
def cka(X: Float[Tensor, "n d"], Y: Float[Tensor, "n e"], debiased: bool = False) -> Float[Tensor, ""]:
    """Centered kernel alignment of two representations of the same samples (Sharon eq. 2, Canatar eq. 4).

    In [0, 1], and n ≥ 2 (at n = 2 always 1). The plain estimate is biased: independent features seem
    related, the more so the fewer samples there are per feature. ``debiased=True`` removes that; it needs
    n ≥ 4, is negative at times, and is not clamped. Computed in float64, on the features' side where
    there are fewer features than samples. Features that never vary have no direction: an error. Labels of
    classes go in as ``data.one_hot(y)``: a column of class numbers counts as numbers, with a warning.

    >>> g = torch.Generator().manual_seed(0)
    >>> x, y = torch.randn(50, 200, generator=g), torch.randn(50, 200, generator=g)
    >>> cka(x, y), cka(x, y, debiased=True)             # unrelated, yet only one of them says so
    (tensor(0.8010), tensor(0.0082))
    """
    warn_of_class_numbers({"X": X, "Y": Y}, stacklevel=3)
    X, Y = numbers(X, "X", "n d"), numbers(Y, "Y", "n e")
    same_rows(X, Y, "X and Y")
    side = "features" if max(X.shape[1], Y.shape[1]) < len(X) else "gram"
    x, y = (
        grid.Packer(working(m), name, side, debiased, given=m.dtype).pack()
        for m, name in ((X, "X"), (Y, "Y"))
    )
    return grid.product([x], [y])[0, 0].to(X)


@numpy_too
def cka_grid(
    reps: Float[Tensor, "E n d"] | Sequence[Representation],
    other: Float[Tensor, "F n e"] | Sequence[Representation] | None = None,
    *,
    debiased: bool = False,
    batch_size: int | None = None,
    average: str = "cka",
    side: str = "auto",
    max_bytes: int = 2**30,
) -> Float[Tensor, "E F"]:
    """CKA of every representation with every other (of ``reps`` with ``other`` if given), (E, E).

    Each kernel is centered, scaled to norm one and flattened; all pairs are then one matrix product.
    ``reps`` is a tensor (E, n, d) or a sequence of representations, their widths free. An entry may also
    be a path (.npy, or .pt of one tensor) or a function without arguments that returns one, loaded when
    needed. Beside one representation at a time no more than ``max_bytes`` are held, and what does not fit is
    made again block by block.

    With ``batch_size`` the value is the average over batches of that many samples (Sharon F.2: 4 of 512);
    ``average="hsic"`` averages numerators and denominators instead (Nguyen, Raghu & Kornblith 2021).
    ``side`` is ``gram`` (n×n kernels), ``features`` (d×d products) or ``auto``, the cheaper of the two for
    the widths there are. What a function returns has no width before it is called: where there are functions,
    ``auto`` is ``gram``, whose cost and memory depend on n alone, if two kernels fit.
    float32 stays float32 in the large products and agrees with :func:`cka` to about 5e-6.

    >>> reps = torch.randn(3, 20, 5, generator=torch.Generator().manual_seed(0))
    >>> cka_grid(reps).diagonal()
    tensor([1., 1., 1.])
    """
    if average not in ("cka", "hsic"):
        raise ValueError(f"average should be cka or hsic, but is {average!r}.")
    if side not in ("auto", "gram", "features"):
        raise ValueError(f"side should be auto, gram or features, but is {side!r}.")
    for name, given in (("reps", reps), ("other", other)):
        if isinstance(given, Sequence):
            named = {f"{name}[{i}]": rep for i, rep in enumerate(given) if isinstance(rep, Tensor)}
            warn_of_class_numbers(named, stacklevel=3)
    return grid.grid(
        reps,
        other,
        debiased=debiased,
        batch_size=batch_size,
        average=average,
        side=side,
        max_bytes=max_bytes,
    )


def _kernel(K: Tensor, name: str) -> Tensor:
    K = numbers(K, name, "n n")
    if K.shape[0] != K.shape[1]:
        raise ValueError(
            f"{name} should be a kernel of shape (n, n), but has shape {tuple(K.shape)}. "
            f"From features X take gram(X)."
        )
    return K
