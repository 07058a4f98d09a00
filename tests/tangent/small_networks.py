"""Small networks of every kind, and the textbook's dense answers for them, in float64."""

import warnings
from itertools import pairwise

import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel

F64 = torch.float64


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def whole(high, *shape, seed=0):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def jacobians(model, x):
    """The textbook: one row per sample and output, for every parameter, by reverse mode."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*batching rule")
        rows = jacrev(lambda p: functional_call(model, p, (x,)).reshape(-1))(parameters)
    return {name: row.flatten(1) for name, row in rows.items()}


def dense_kernels(model, x, bias=True):
    kernels = {}
    for name, row in jacobians(model, x).items():
        layer = name.rpartition(".")[0] or "model"
        if bias or "bias" not in name:
            kernels[layer] = kernels.get(layer, 0) + row @ row.mT
    return kernels


def dense_trace(kernel, n):
    return torch.einsum("ikjk->ij", kernel.reshape(n, len(kernel) // n, n, -1))


def mlp(*widths, bias=False, activation=nn.ReLU, seed=0):
    torch.manual_seed(seed)
    layers = []
    for a, b in pairwise(widths[:-1]):
        layers += [nn.Linear(a, b, bias=bias), activation()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1], bias=bias)).double()


def settled(norm):
    """A batch-norm with running statistics of its own."""
    nn.init.normal_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    nn.init.normal_(norm.weight)
    return norm


class Recurrent(nn.Module):
    """One layer called twice, a weight used by hand, a scale, a table tied to the last layer."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.twice = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.scale = nn.Parameter(torch.randn(4))
        self.unused = nn.Linear(3, 2)
        self.last = nn.Linear(4, 6, bias=False)
        self.last.weight = self.table.weight

    def forward(self, tokens):
        x = self.table(tokens).mean(dim=1)
        x = self.twice(torch.tanh(self.twice(x)))
        return self.last(x @ self.weight * self.scale + torch.tanh(x @ self.weight))


class Reader(nn.Module):
    """Tokens through a transformer layer, in both orders of axes, with a class token and positions."""

    def __init__(self, batch_first):
        super().__init__()
        self.batch_first = batch_first
        self.table = nn.Embedding(9, 6, padding_idx=0)
        self.positions = nn.Parameter(torch.randn(1, 5, 6))
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.encoder = nn.TransformerEncoderLayer(6, 2, 12, batch_first=batch_first)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens):
        x = torch.cat([self.token.expand(len(tokens), -1, -1), self.table(tokens) + self.positions], dim=1)
        x = self.encoder(x if self.batch_first else x.transpose(0, 1))
        return self.head(x[:, 0] if self.batch_first else x[0])


class Crossed(nn.Module):
    """Queries from one projection, keys and values from another, attended to twice."""

    def __init__(self, **options):
        super().__init__()
        self.queries = nn.Linear(6, 6)
        self.keys = nn.Linear(6, options.get("kdim", 6))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True, **options)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        keys = self.keys(x)
        once, _ = self.attention(self.queries(x), keys, keys)
        return self.head(self.attention(once, keys, keys)[0]).mean(dim=1)


class Handmade(nn.Module):
    """Attention written out with linear layers on (n, tokens, d), and images folded into the batch."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(1, 4, 2, stride=2)
        self.q, self.k, self.v = (nn.Linear(4, 4, bias=False) for _ in range(3))
        self.norm = nn.RMSNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.patch(x.flatten(0, 1)[:, None]).flatten(2).mT.reshape(len(x), -1, 4)
        x = x + (self.q(x) @ self.k(x).mT).softmax(dim=-1) @ self.v(x)
        return self.head(self.norm(x)).amax(dim=1)


CASES = {
    "mlp": lambda: (mlp(4, 6, 5, 3, bias=True), draw(7, 4)),
    "inplace": lambda: (
        nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
        draw(7, 4),
    ),
    "one output": lambda: (
        nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1), nn.Flatten(0)),
        draw(5, 4),
    ),
    "one sample": lambda: (mlp(4, 5, 2), draw(1, 4)),
    "cnn": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 4, 3, padding="same"),
            settled(nn.BatchNorm2d(4)),
            nn.ReLU(inplace=True),
            nn.GroupNorm(2, 4),
            nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular", groups=2),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 20, 3, stride=2, dilation=(1, 2), padding=(1, 2)),
            nn.Flatten(),
            nn.Linear(80, 3),
        ),
        draw(5, 3, 8, 8),
    ),
    "signals": lambda: (
        nn.Sequential(
            nn.Conv1d(3, 4, 3, dilation=2, stride=2),
            nn.InstanceNorm1d(4, affine=True),
            nn.Tanh(),
            nn.Conv1d(4, 9, 2, bias=False),
            nn.Flatten(),
            nn.Linear(18, 3),
        ),
        draw(6, 3, 10),
    ),
    "volumes": lambda: (
        nn.Sequential(nn.Conv3d(1, 3, 2), nn.Flatten(), nn.Linear(24, 2)),
        draw(4, 1, 3, 3, 3),
    ),
    "shared": lambda: (Recurrent(), whole(6, 7, 3)),
    "transformer": lambda: (Reader(True), whole(9, 6, 5)),
    "tokens first": lambda: (Reader(False), whole(9, 6, 5)),
    "attention": lambda: (Crossed(), draw(5, 4, 6)),
    "attention of other sizes": lambda: (Crossed(kdim=4, vdim=4), draw(5, 4, 6)),
    "handmade attention": lambda: (Handmade(), draw(4, 3, 4, 4)),
}


def case(name):
    torch.manual_seed(0)
    model, x = CASES[name]()
    return model.double().eval(), x


def dense_alignment(kernel, y, o, outputs, center):
    """Equation 6 as it is written, with all matrices formed; stable rank and correlation beside it."""
    n = len(y)
    targets = nn.functional.one_hot(y, o).double() if y.ndim == 1 else y
    identity, ones = torch.eye(n, dtype=F64), torch.ones(n, n, dtype=F64)
    if outputs == "trace":
        kernel, labels, c = dense_trace(kernel, n), targets @ targets.mT, identity - ones / n
    else:
        labels = torch.outer(targets.flatten(), targets.flatten())
        c = torch.eye(n * o, dtype=F64) - 1 / (n * o)
        if center == "examples":
            c = torch.kron(identity - ones / n, torch.eye(o, dtype=F64))
    k, labels = c @ kernel @ c, c @ labels @ c
    values, vectors = torch.linalg.eigh(k)
    power = (vectors * (labels / labels.norm() @ vectors)).sum(dim=0)
    correlation = (values / values[-1] * power).sum()
    return (k * labels).sum() / k.norm() / labels.norm(), correlation, (values / values[-1]).square().sum()


def plain_kernels(model, x):
    """The same for models that differentiate, or choose: one sample after another, by plain autograd."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    rows = []
    for i in range(len(x)):
        for output in model(x[i : i + 1]).reshape(-1):
            rows.append(torch.autograd.grad(output, parameters, **options))
    kernels = {}
    for name, gradients in zip(names, zip(*rows, strict=True), strict=True):
        layer = name.rpartition(".")[0] or "model"
        psi = torch.stack([g.detach().flatten() for g in gradients])
        kernels[layer] = kernels.get(layer, 0) + psi @ psi.mT
    return kernels
