"""Sparse codes and dictionaries: the minimum of scikit-learn's objective, found another way."""

import numpy as np
import pytest
import torch

from repalign.alignment import unit_rows
from repalign.papers.imani import sparse
from repalign.papers.imani.sparse import learn_atoms, sparse_codes

# Theirs may stop a little short of the minimum.
pytestmark = pytest.mark.filterwarnings("ignore:Objective did not converge")


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def alike(n, d, seed=0):
    """Rows of length one that resemble each other, as images do."""
    return unit_rows(normal(n, 6, seed=seed) @ normal(6, d, seed=9) + 0.3 * normal(n, d, seed=seed + 1) + 1)


def objective(x, codes, atoms, alpha):
    return 0.5 * (x - codes @ atoms).square().sum(1) + alpha * codes.abs().sum(1)


@pytest.mark.parametrize(
    "n, d, m, alpha", [(40, 5, 3, 0.1), (60, 12, 30, 0.02), (50, 30, 60, 0.003), (3, 4, 1, 0.5)]
)
def test_no_code_is_worse_than_scikit_learns(n, d, m, alpha):
    decomposition = pytest.importorskip("sklearn.decomposition")
    x, atoms = alike(n, d), alike(m, d, seed=4)
    theirs = decomposition.sparse_encode(
        x.numpy(),
        atoms.numpy(),
        algorithm="lasso_cd",
        alpha=alpha,
        max_iter=10_000,
    )
    ours = objective(x, sparse_codes(x, atoms, alpha), atoms, alpha)
    assert float((ours - objective(x, torch.from_numpy(theirs), atoms, alpha)).max()) < 1e-8


@pytest.mark.parametrize("n, d, m, passes", [(50, 8, 12, 3), (90, 20, 40, 2), (300, 12, 8, 4)])
def test_a_dictionary_is_within_two_percent_of_scikit_learns(n, d, m, passes):
    decomposition = pytest.importorskip("sklearn.decomposition")
    x, alpha = alike(n, d), 0.02
    means = []
    for kind in ("ours", "theirs"):
        found = []
        for seed in range(4):
            if kind == "ours":
                atoms = learn_atoms(x, m, alpha=alpha, passes=passes, seed=seed)
            else:
                learner = decomposition.MiniBatchDictionaryLearning(
                    m, alpha=alpha, max_iter=passes, fit_algorithm="cd", random_state=seed, tol=0,
                    max_no_improvement=None, transform_max_iter=10_000,
                )  # fmt: skip
                atoms = torch.from_numpy(learner.fit(x.numpy()).components_)
            found.append(objective(x, sparse_codes(x, atoms, alpha), atoms, alpha).mean())
        means.append(float(torch.stack(found).mean()))
    assert means[0] < 1.02 * means[1]


def test_codes_do_not_depend_on_where_they_start_nor_on_the_other_rows():
    x, atoms = alike(100, 10), alike(25, 10, seed=4)
    codes = sparse_codes(x, atoms, 0.01)
    again = sparse_codes(x, atoms, 0.01, start=normal(100, 25))
    loss, other = (objective(x, c, atoms, 0.01) for c in (codes, again))
    torch.testing.assert_close(loss, other, atol=2e-8, rtol=0)
    torch.testing.assert_close(sparse_codes(x[70:], atoms, 0.01), codes[70:], atol=1e-3, rtol=0)


def test_with_as_many_atoms_as_rows_the_rows_themselves_are_the_minimum():
    x, alpha = alike(30, 8), 0.1
    codes = sparse_codes(x, x, alpha)
    torch.testing.assert_close(codes, (1 - alpha) * torch.eye(30, dtype=torch.float64), atol=1e-4, rtol=0)
    least = alpha - alpha**2 / 2
    torch.testing.assert_close(objective(x, codes, x, alpha), torch.full((30,), least, dtype=torch.float64))
    learned = learn_atoms(x, 40, alpha=alpha, passes=3)
    assert float(objective(x, sparse_codes(x, learned, alpha), learned, alpha).min()) > least - 1e-9


def test_copies_of_an_atom_and_atoms_of_zeros_do_no_harm():
    x, atoms = alike(20, 6), alike(8, 6, seed=4)
    more = torch.cat([atoms, atoms, torch.zeros(2, 6, dtype=torch.float64)])
    loss = objective(x, sparse_codes(x, atoms, 0.01), atoms, 0.01)
    torch.testing.assert_close(objective(x, sparse_codes(x, more, 0.01), more, 0.01), loss, atol=2e-8, rtol=0)


def test_a_large_penalty_leaves_nothing_and_rows_of_zeros_have_no_code():
    x = alike(5, 4)
    assert not sparse_codes(x, alike(3, 4, seed=4), 2.0).any()
    assert not sparse_codes(torch.zeros(2, 4), torch.eye(4), 0.1).any()


def test_an_update_moves_one_atom_after_the_other_as_scikit_learn_does():
    x, codes = alike(30, 7), normal(30, 9).clamp(min=0)
    atoms, pairs, targets = alike(9, 7, seed=4), codes.mT @ codes, codes.mT @ x
    slow = atoms.clone()
    for k in range(9):
        slow[k] += (targets[k] - pairs[k] @ slow) / pairs[k, k]
        slow[k] /= slow[k].norm().clamp(min=1)
    for block in (1, 4, 64):
        fast = sparse._update(atoms, pairs, targets, x, torch.Generator(), block=block)
        torch.testing.assert_close(fast, slow)


def test_atoms_are_no_longer_than_one_and_follow_their_seed():
    x = alike(60, 8).float().numpy()
    first, again, other = (learn_atoms(x, 15, alpha=0.02, passes=2, seed=s) for s in (1, 1, 2))
    assert first.shape == (15, 8)
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.linalg.norm(first, axis=1).max() < 1 + 1e-6


def test_bad_input_says_what_to_do():
    with pytest.raises(ValueError, match="alpha should be above 0, but is 0"):
        sparse_codes(torch.eye(2), torch.eye(2), 0)
    with pytest.raises(ValueError, match="same number of features, but have 2 and 3"):
        sparse_codes(torch.eye(2), torch.eye(3), 0.1)
