"""Models that send tokens different ways: mixtures of experts, with experts that some batches never reach."""

import pytest
import torch
from small_networks import draw, plain_kernels
from torch import nn

from repalign.tangent import label_alignment, layer_kernels, ntk

pytestmark = pytest.mark.filterwarnings("ignore:no fast path")


class Experts(nn.Module):
    """Three small networks; every token is sent to one of them, and what returns is put in its place."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 6)
        self.router = nn.Linear(6, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 6)) for _ in range(3)
        )
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        hidden = torch.tanh(self.inner(x))
        tokens = hidden.reshape(-1, 6)
        weight, chosen = self.router(tokens).softmax(dim=-1).max(dim=-1)
        sent = self.send(tokens, chosen) * weight[:, None]
        return self.head((hidden + sent.reshape(hidden.shape)).mean(dim=1))


class Assigned(Experts):
    """By assignment at an index, in place."""

    def send(self, tokens, chosen):
        out = torch.zeros_like(tokens)
        for i, expert in enumerate(self.experts):
            out[chosen == i] = expert(tokens[chosen == i])
        return out


class Skipped(Experts):
    """The same, without a call of experts that are not needed."""

    def send(self, tokens, chosen):
        out = torch.zeros_like(tokens)
        for i, expert in enumerate(self.experts):
            if (chosen == i).any():
                out[chosen == i] = expert(tokens[chosen == i])
        return out


class Added(Experts):
    """By numbers of tokens and index_add."""

    def send(self, tokens, chosen):
        out = torch.zeros_like(tokens)
        for i, expert in enumerate(self.experts):
            places = (chosen == i).nonzero()[:, 0]
            out.index_add_(0, places, expert(tokens[places]))
        return out


class Sorted(Experts):
    """Tokens in the order of their experts, and back."""

    def send(self, tokens, chosen):
        order = chosen.argsort(stable=True)
        parts = tokens[order].split(torch.bincount(chosen, minlength=3).tolist())
        out = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        return out[order.argsort()]


class Seated(Experts):
    """By one-hot products, as on accelerators: each expert has seats, filled in the order of the tokens."""

    def send(self, tokens, chosen):
        hot = nn.functional.one_hot(chosen, 3)
        seat = (hot.cumsum(dim=0) * hot).sum(dim=-1) - 1
        seats = nn.functional.one_hot(seat, len(tokens))
        seated = (hot[:, :, None] * seats[:, None]).to(tokens.dtype)
        given = torch.einsum("tes,td->esd", seated, tokens)
        made = torch.stack([expert(part) for expert, part in zip(self.experts, given, strict=True)])
        return torch.einsum("tes,esd->td", seated, made)


def experts(kind, seed):
    torch.manual_seed(seed)
    return kind().double(), draw(7, 3, 4, seed=seed)


# The tokens of two samples reach all three experts by the first seed, and two of them by the second.
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", [Assigned, Skipped, Added, Sorted, Seated])
def test_kernels_of_experts(kind, seed):
    model, x = experts(kind, seed)
    expected = plain_kernels(model, x)
    for found in (layer_kernels(model, x), layer_kernels(model, x, batch_size=3)):
        for layer, kernel in found.items():
            torch.testing.assert_close(kernel, expected[layer], rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(ntk(model, x), sum(expected.values()), rtol=1e-9, atol=1e-14)


@pytest.mark.filterwarnings("ignore:the kernel of")
def test_an_expert_without_tokens_has_no_alignment_and_the_others_have_theirs():
    found = {}
    for kind in (Assigned, Sorted):
        model, x = experts(kind, 1)
        model.router.bias.data[2] = -100  # no token goes there
        found[kind] = label_alignment(model, x, torch.arange(7) % 2)
        assert found[kind]["experts.2.0"].isnan()
        kernels = layer_kernels(model, x)
        assert not kernels["experts.2.0"].any()
    for layer in ("inner", "experts.0.0", "experts.1.2", "head"):
        torch.testing.assert_close(found[Assigned][layer], found[Sorted][layer])
        assert found[Assigned][layer].isfinite()


class Gathered(nn.Module):
    """A transformer that reads each text at its last word: it chooses, but keeps samples in order."""

    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(9, 6, padding_idx=0), nn.Embedding(5, 6)
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, ids):
        x = self.layer(torch.tanh(self.table(ids) + self.places(torch.arange(ids.shape[1]))))
        last = (ids != 0).sum(dim=1) - 1
        return self.head(torch.tanh(x[torch.arange(len(x)), last]))


def test_choosing_a_token_keeps_the_fast_path(recwarn):
    torch.manual_seed(0)
    model = Gathered().double()
    ids = torch.tensor([[1, 2, 3, 0, 0], [4, 0, 0, 0, 0], [8, 7, 6, 5, 4], [2, 2, 0, 0, 0]])
    found = layer_kernels(model, ids)
    assert not [w for w in recwarn if "no fast path" in str(w.message)]
    for layer, kernel in plain_kernels(model, ids).items():
        torch.testing.assert_close(found[layer], kernel)
