"""Sparse coding and dictionary learning (Mairal et al. 2009), all samples of a batch at once.

The objective of a code c of a row x in a dictionary D, an atom a row, is scikit-learn's:
½‖x − cD‖² + α‖c‖₁. Its codes are found by Newton steps on the few atoms that a row uses, until the duality
gap says that they are the minimum.

>>> import torch
>>> sparse_codes(torch.tensor([[3.0, -0.5, 0.1]]), torch.eye(3), alpha=0.2)
tensor([[ 2.8000, -0.3000,  0.0000]])
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repalign._arrays import check, numpy_too, working

# Atoms that may join a row's code in a round; after many rounds one at a time, which always ends.
JOIN, PATIENCE, ROUNDS = 12, 100, 1000
# Newton steps of a round, and how far along each to look.
STEPS, REACH = 4, (0.0, 1.0, 0.5, 0.25)
# Rows that take their steps together.
ROWS = 64


@numpy_too
def sparse_codes(
    x: Float[Tensor, "n d"],
    atoms: Float[Tensor, "m d"],
    alpha: float,
    *,
    start: Float[Tensor, "n m"] | None = None,
    tol: float = 1e-8,
) -> Float[Tensor, "n m"]:
    """The codes c of the rows of x that minimize ½‖x − cD‖² + α‖c‖₁ for the dictionary ``atoms``, D.

    A row is done when its duality gap, a bound on what it could still gain, is below ``tol`` times ‖x‖².
    ``start`` holds codes to begin from, as of a dictionary that was a little different; zero otherwise.
    """
    if alpha <= 0:
        raise ValueError(f"alpha should be above 0, but is {alpha}.")
    x = check(x, "x", "n d")
    rows, directions = working(x), working(check(atoms, "atoms", "m d"))
    if rows.shape[1] != directions.shape[1]:
        raise ValueError(
            f"x and atoms should have the same number of features, but have {rows.shape[1]} and "
            f"{directions.shape[1]}."
        )
    products, gram = rows @ directions.mT, directions @ directions.mT
    size = rows.square().sum(1)
    codes = torch.zeros_like(products) if start is None else working(start).clone()
    todo = torch.arange(len(rows), device=rows.device)
    for turn in range(ROUNDS):
        slope = codes[todo] @ gram - products[todo]
        left = _gap(codes[todo], slope, products[todo], size[todo], alpha) > tol * size[todo]
        todo, slope = todo[left], slope[left]
        if len(todo) == 0:
            break
        # Rows that use about as many atoms go together.
        order = (codes[todo] != 0).sum(1).argsort(stable=True)
        for part in order.split(ROWS):
            at, join = todo[part], JOIN if turn < PATIENCE else 1
            codes[at] = _round(codes[at], slope[part], products[at], gram, alpha, join)
    return codes.to(x)


def _gap(
    codes: Float[Tensor, "n m"],
    slope: Float[Tensor, "n m"],
    products: Float[Tensor, "n m"],
    size: Float[Tensor, " n"],
    alpha: float,
) -> Float[Tensor, " n"]:
    """How far the objective of each code is above that of the dual point that its residual scales to."""
    fitted = (codes * products).sum(1)
    residual = size - fitted + (codes * slope).sum(1)
    scale = (alpha / slope.abs().amax(1).clamp(min=1e-300)).clamp(max=1)
    primal = 0.5 * residual + alpha * codes.abs().sum(1)
    dual = scale * (size - fitted) - 0.5 * scale.square() * residual
    return primal - dual


def _round(
    codes: Float[Tensor, "n m"],
    slope: Float[Tensor, "n m"],
    products: Float[Tensor, "n m"],
    gram: Float[Tensor, "m m"],
    alpha: float,
    join: int,
) -> Float[Tensor, "n m"]:
    """Better codes: Newton steps on the atoms in use and on those, up to ``join``, that would help most."""
    used = codes != 0
    merit = torch.where(used, torch.inf, slope.abs() - alpha)
    count = used.sum(1) + ((merit > 0) & ~used).sum(1).clamp(max=join)
    best = merit.topk(int(count.max()), dim=1)
    on = torch.arange(best.indices.shape[1], device=codes.device) < count[:, None]
    at: Int[Tensor, "n k"] = best.indices
    c, b, s = codes.gather(1, at), products.gather(1, at), slope.gather(1, at)
    sign = torch.where(c != 0, c.sign(), -s.sign())
    c = _descend(c, b, sign, gram[at[:, :, None], at[:, None, :]], on, alpha)
    return torch.zeros_like(codes).scatter_(1, at, c)


def _descend(
    c: Float[Tensor, "n k"],
    b: Float[Tensor, "n k"],
    sign: Float[Tensor, "n k"],
    gram: Float[Tensor, "n k k"],
    on: Bool[Tensor, "n k"],
    alpha: float,
) -> Float[Tensor, "n k"]:
    """Newton steps among the atoms that are ``on``; a code that would change its sign becomes zero."""
    largest = gram.diagonal(dim1=1, dim2=2).amax(1, keepdim=True).clamp(min=1e-12)
    found, left = c.clone(), torch.arange(len(c), device=c.device)
    for _ in range(STEPS):
        down = (b - alpha * sign - (gram @ c[:, :, None])[:, :, 0]) * on
        both = gram * (on[:, :, None] & on[:, None, :])
        both.diagonal(dim1=1, dim2=2).add_(torch.where(on, 1e-10 * largest, 1.0))
        factor, failed = torch.linalg.cholesky_ex(both)
        step = torch.cholesky_solve(down[:, :, None], factor)[:, :, 0]
        # Where atoms are copies of others to rounding, a short step along the slope instead.
        step = torch.where(failed[:, None] > 0, down / (c.shape[1] * largest), step)
        wrong = on & ((c + step) * sign <= 0)
        # The objective falls until the first code is zero; further on it may fall more.
        first = torch.where(wrong & (c != 0), -c / step, 1.0).amin(1)
        reach = torch.stack([torch.full_like(first, part) for part in REACH] + [first], 1)
        tried = c[:, None] + reach[:, :, None] * step[:, None]
        tried = torch.where(on[:, None] & (tried * sign[:, None] > 1e-12 * c.abs()[:, None]), tried, 0.0)
        loss = (tried * (0.5 * tried @ gram - b[:, None])).sum(2) + alpha * tried.abs().sum(2)
        c = tried[torch.arange(len(c), device=c.device), loss.argmin(1)]
        found[left] = c
        # Only rows of which an atom had the wrong sign, and has left, need another step.
        more = wrong.any(1)
        if not more.any():
            break
        on = on & ~(wrong & (c == 0))
        left, c, b, sign, gram, on, largest = (a[more] for a in (left, c, b, sign, gram, on, largest))
    return found


@numpy_too
def learn_atoms(
    x: Float[Tensor, "n d"],
    atoms: int,
    *,
    alpha: float,
    passes: int,
    batch: int = 256,
    tol: float = 1e-4,
    seed: int = 0,
) -> Float[Tensor, "{atoms} d"]:
    """Online dictionary learning of Mairal et al. (2009), as scikit-learn's in mini-batches does it.

    It starts at the singular vectors of x, times their singular values. For each batch it finds the codes,
    adds them to sums over the past, and moves one atom after the other to where these sums have their
    minimum, at a length of at most one. An atom that nothing uses becomes a row of the batch, with a little
    noise. Unlike scikit-learn's, a row's codes start from those of the pass before, so that later passes are
    cheaper. They are found up to ``tol``, which is scikit-learn's: better codes of atoms that will still move
    cost time, and the dictionary ended no better for them.
    """
    x = check(x, "x", "n d")
    rows = working(x)
    g = torch.Generator().manual_seed(seed)
    _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
    found = rows.new_zeros(atoms, rows.shape[1])
    known = min(atoms, len(values))
    found[:known] = (values[:, None] * vectors)[:known]
    rows = rows[torch.randperm(len(rows), generator=g).to(rows.device)]
    codes = rows.new_zeros(len(rows), atoms)
    pairs, targets = rows.new_zeros(atoms, atoms), rows.new_zeros(atoms, rows.shape[1])
    batch, step = min(batch, len(rows)), 0
    for _ in range(passes):
        for part in torch.arange(len(rows), device=rows.device).split(batch):
            now = codes[part] = sparse_codes(rows[part], found, alpha, start=codes[part], tol=tol)
            keep = _share_kept(step, len(part))
            pairs = keep * pairs + now.mT @ now / len(part)
            targets = keep * targets + now.mT @ rows[part] / len(part)
            found = _update(found, pairs, targets, rows[part], g)
            step += 1
    return found.to(x)


def _share_kept(step: int, batch: int) -> float:
    """The weight of the past after so many steps: small at first, when the atoms are still bad."""
    seen = (step + 1) * batch if step < batch - 1 else batch**2 + step + 1 - batch
    return (seen + 1 - batch) / (seen + 1)


def _update(
    atoms: Float[Tensor, "m d"],
    pairs: Float[Tensor, "m m"],
    targets: Float[Tensor, "m d"],
    rows: Float[Tensor, "n d"],
    generator: torch.Generator,
    block: int = 64,
) -> Float[Tensor, "m d"]:
    """Each atom in turn at its minimum, given the others; a block of them shares one matrix product."""
    atoms, weights = atoms.clone(), pairs.diagonal().tolist()
    for start in range(0, len(atoms), block):
        end = min(start + block, len(atoms))
        missing = targets[start:end] - pairs[start:end] @ atoms
        columns = pairs[start:end, start:end].mT.contiguous()
        turns = zip(weights[start:end], atoms[start:end], missing, columns, strict=True)
        for weight, atom, short, column in turns:
            if weight > 1e-6:
                new = torch.add(atom, short, alpha=1 / weight)
            else:
                row = rows[int(torch.randint(len(rows), (1,), generator=generator))]
                noise = torch.randn(len(row), generator=generator, dtype=torch.float64)
                new = row + 0.01 * (row.std(correction=0) or 1.0) * noise.to(row)
            new /= new.norm().clamp(min=1)
            missing.addr_(column, new - atom, alpha=-1)
            atom.copy_(new)
    return atoms
