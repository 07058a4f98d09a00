"""Models of tokens: transposed weights, positions, tables, and the cheaper of two ways; against Jacobians."""

import pytest
import torch
from small_networks import F64, dense_kernels, dense_trace, whole
from torch import nn

from repalign.tangent import factors, gram, label_alignment, layer_kernels, ntk, plan
from repalign.tangent.factors import choose
from repalign.tangent.uses import Product


class Conv1D(nn.Module):
    """A linear layer with its weight the other way round, as GPT-2 has it."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(inputs, outputs)),
            nn.Parameter(torch.randn(outputs)),
        )

    def forward(self, x):
        out = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return out.view(*x.shape[:-1], -1)


class Block(nn.Module):
    """Attention and a hidden layer around Conv1D, in the manner of GPT-2."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attend, self.join = Conv1D(width, 3 * width), Conv1D(width, width)
        self.grow, self.shrink = Conv1D(width, 2 * width), Conv1D(2 * width, width)

    def forward(self, x):
        q, k, v = self.attend(self.norm(x)).chunk(3, dim=-1)
        x = x + self.join((q @ k.mT).softmax(dim=-1) @ v)
        return x + self.shrink(torch.tanh(self.grow(x)))


class Positions(nn.Module):
    """Tokens, positions in one of the ways they are written, two blocks, and the first token's outputs."""

    def __init__(self, way, width=6, length=5):
        super().__init__()
        self.way = way
        self.tokens = nn.Embedding(7, width)
        self.types = nn.Embedding(2, width)
        self.table = nn.Embedding(8, width)  # longer than the texts
        self.plain = nn.Parameter(torch.randn(1, 8, width))
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.register_buffer("ids", torch.arange(8)[None])
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.last = nn.Parameter(torch.randn(3, width))

    def forward(self, tokens):
        n, length = tokens.shape
        x = self.tokens(tokens)
        if self.way == "arange":
            x = x + self.table(torch.arange(length))
        elif self.way == "one row of ids":
            x = x + self.table(self.ids[:, :length])
        elif self.way == "in place":
            x = x + self.types(torch.zeros_like(tokens))
            x += self.table(self.ids[:, :length])
        elif self.way == "one type for all":
            x = x + self.types(torch.zeros(1, length, dtype=torch.long)) + self.table(self.ids[:, :length])
        elif self.way == "ids of every sample":
            x = x + self.table(self.ids[:, :length].expand(n, -1))
        elif self.way == "slice of a parameter":
            x = x + self.plain[:, :length]
        elif self.way == "slices that overlap":
            x = x + self.plain[:, :length] + self.plain[:, 1 : length + 1].to(x.dtype)
        elif self.way == "slice of a table":
            x = x + self.table.weight[:length].unsqueeze(0)
        elif self.way == "index":
            x = x + self.table.weight[torch.arange(length)]
        elif self.way == "class token":
            x = torch.cat([self.token.repeat(n, 1, 1), x], dim=1)
        return self.blocks(x)[:, 0] @ self.last.T


WAYS = [
    "arange",
    "one row of ids",
    "in place",
    "one type for all",
    "ids of every sample",
    "slice of a parameter",
    "slices that overlap",
    "slice of a table",
    "index",
    "class token",
]


def made(way, n=6):
    torch.manual_seed(0)
    return Positions(way).double().eval(), whole(7, n, 5)


def same_as_dense(model, x):
    dense = dense_kernels(model, x)
    kernels, traces = layer_kernels(model, x), layer_kernels(model, x, "trace")
    assert list(kernels) == list(dense)
    for layer, kernel in kernels.items():
        torch.testing.assert_close(kernel, dense[layer], rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(traces[layer], dense_trace(dense[layer], len(x)), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("way", WAYS)
def test_positions_and_transposed_weights_have_a_fast_path(way):
    # Warnings are errors in tests: none of them may ask for explicit rows.
    same_as_dense(*made(way))


# One makes every pair of positions meet, the other forms Jacobian rows.
@pytest.mark.parametrize("small, way", [(0.0, "positions"), (1e9, "columns")])
def test_either_way_gives_the_same_kernels(small, way, monkeypatch):
    model, x = made("arange", n=9)
    once = layer_kernels(model, x)
    monkeypatch.setattr(factors, "_SMALL", {False: small, True: small})
    ways = {part.key[0]: part.way for part in plan.watch(model, x).every_part()}
    assert ways["blocks.0.grow.weight"] == way
    same_as_dense(model, x)
    # Several blocks, slices of a few columns, and batches that are made again for every pair.
    monkeypatch.setattr(gram, "BLOCK", 9)
    monkeypatch.setattr(gram, "DENSE", 6)
    monkeypatch.setattr(gram, "SLICE", 200)
    monkeypatch.setattr(gram, "POSITIONS", 10)
    monkeypatch.setattr(factors, "_ROWS", 4)
    same_as_dense(model, x)
    monkeypatch.setattr(plan, "BUDGET", 20_000)
    assert len(plan.watch(model, x).batches) > 2
    for layer, kernel in layer_kernels(model, x).items():
        torch.testing.assert_close(kernel, once[layer], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(ntk(model, x), sum(once.values()), rtol=1e-11, atol=1e-11)


def product(m, d):
    return Product(lambda n, axis: None, lambda grad, n, axis: None, (1, m, d))


def test_the_way_follows_from_the_cost():
    def way(p, m, d, k=10, n=64, trace=False):
        return choose([product(m, d)], [p], n, k, trace)

    assert way(1, 256, 256) == "positions"
    assert way(4, 256, 256) == way(4, 256, 256, trace=True) == "positions"
    assert way(32, 256, 1024) == "positions"
    # Each of 128 tokens with each of 128 tokens is more than one product of columns.
    assert way(128, 256, 256) == way(128, 256, 256, trace=True) == way(32, 256, 256, k=2) == "columns"
    # The first layer of an image network: its Jacobian is smaller than what it is made of.
    assert way(1024, 64, 27) == "rows"


def test_only_positions_that_matter_are_kept():
    model, x = made("arange")
    batch = plan.watch(model, x).batch(0)
    kept = {layer: batch.layers[layer][0].a.shape[1] for layer in ("blocks.0.grow", "blocks.1.grow")}
    assert kept == {"blocks.0.grow": 5, "blocks.1.grow": 1}  # behind the last attention, the first token


def test_jacobian_rows_are_never_held_whole(monkeypatch):
    torch.manual_seed(0)
    model, x = nn.Sequential(Block(32), Block(32)), torch.randn(24, 16, 32)
    wrapped = nn.Sequential(model, nn.Flatten(), nn.Linear(512, 3)).eval()
    monkeypatch.setattr(factors, "_SMALL", {False: 1e9, True: 1e9})
    monkeypatch.setattr(gram, "SLICE", 2**14)
    largest = [0]

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and func is torch.ops.aten.bmm.default:
                largest[0] = max(largest[0], out.numel())
            return out

    with Largest():
        label_alignment(wrapped, x, torch.arange(24) % 3)
    whole_rows = 24 * 3 * model[0].attend.weight.numel()
    assert 0 < largest[0] < whole_rows / 2


class Written(nn.Module):
    """Positions that are written to after they were cut out."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        found = self.table(torch.arange(2))
        found[0] = 0
        return self.head(torch.tanh(x + found)).sum(dim=1)


def test_what_is_written_to_is_not_taken_for_a_part_of_the_parameter():
    torch.manual_seed(0)
    model, x = Written().double(), torch.randn(4, 2, 3, dtype=F64)
    with pytest.warns(UserWarning, match=r"no fast path for table\.weight"):
        kernels = layer_kernels(model, x)
    for layer, kernel in dense_kernels(model, x).items():
        torch.testing.assert_close(kernels[layer], kernel, rtol=1e-11, atol=1e-12)


def test_a_large_table_costs_what_is_looked_up():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(100_000, 4), nn.Linear(4, 2)

        def forward(self, tokens):
            return self.head(torch.tanh(self.table(tokens)).mean(dim=1))

    torch.manual_seed(0)
    model = Bag().double()
    x = torch.tensor([[5, 99_999, 5], [7, 5, 1], [0, 2, 3], [7, 99_999, 4]])
    watched = plan.watch(model, x)
    held = watched.batch(0).layers["table"][0]
    assert held.b.shape == (11, 2, 4)  # (sample, row) once each
    small = Bag().double()
    used = torch.tensor([0, 1, 2, 3, 4, 5, 7, 99_999])
    small.table = nn.Embedding.from_pretrained(model.table.weight.detach()[used], freeze=False)
    small.head = model.head
    again = torch.searchsorted(used, x)
    torch.testing.assert_close(layer_kernels(model, x)["table"], dense_kernels(small, again)["table"])


CAUSAL = nn.Transformer.generate_square_subsequent_mask(4, dtype=F64)
PADDED = torch.arange(4) > torch.tensor([[1], [2], [3], [1], [3]])


class Attending(nn.Module):
    """Attention with every combination of what it may be given."""

    def __init__(self, first, given, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=first, **options)
        self.head, self.given = nn.Linear(6, 2), given

    def forward(self, x):
        n, first = len(x), self.attention.batch_first
        given = dict(self.given)
        if "key_padding_mask" in given:  # that of each sample, which its last entry tells
            given["key_padding_mask"] = PADDED[x[:, 0, -1].long()]
        x = x[..., :6] if first else x[..., :6].transpose(0, 1)
        out, _ = self.attention(x, x, x, **given)
        return self.head(torch.tanh(out)).sum(dim=1 if first else 0).reshape(n, 2)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize(
    "given, options",
    [
        ({}, {}),
        ({"attn_mask": CAUSAL}, {}),
        ({"attn_mask": CAUSAL, "is_causal": True}, {}),
        ({"key_padding_mask": True}, {}),
        ({}, {"add_zero_attn": True}),
    ],
    ids=["plain", "mask", "causal", "padding", "zero"],
)
def test_attention_with_and_without_masks(first, weights, given, options):
    torch.manual_seed(0)
    model = Attending(first, given | {"need_weights": weights}, **options).double().eval()
    number = torch.arange(5, dtype=F64)[:, None, None].expand(5, 4, 1)
    same_as_dense(model, torch.cat([torch.randn(5, 4, 6, dtype=F64), number], dim=2))
