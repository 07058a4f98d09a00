"""The double of a CUDA device keeps a GPU's rules: what is where, and what may meet."""

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap

import fake_cuda

CUDA = torch.device("cuda", 0)
MIXED = "Expected all tensors to be on the same device"


@pytest.fixture(autouse=True)
def _double():
    with fake_cuda.installed():
        yield


def ones(*shape):
    return torch.ones(*shape, device="cuda")


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, 2, device="cuda"),
        lambda: torch.rand(2, 2, device=CUDA),
        lambda: torch.eye(2, device="cuda:0"),
        lambda: torch.full((2, 2), 1.0, device="cuda"),
        lambda: torch.tensor([[1.0, 2.0], [3.0, 4.0]], device="cuda"),
        lambda: torch.as_tensor(np.ones((2, 2)), device="cuda"),
        lambda: torch.zeros(2, 2, device="cuda", requires_grad=True),
        lambda: torch.ones(2, 2).cuda(),
        lambda: torch.ones(2, 2).to("cuda"),
        lambda: torch.ones(2, 2).to(CUDA, torch.float64),
        lambda: torch.ones(2, 2).to(device="cuda", dtype=torch.float64),
        lambda: torch.ones(2, 2).to(ones(1)),
        lambda: torch.zeros_like(torch.ones(2, 2), device="cuda"),
        lambda: torch.ones(2, 2).new_zeros(2, 2, device="cuda"),
        lambda: ones(2, 2).new_empty(2, 2),
        lambda: ones(1).new_tensor([[1.0, 2.0], [3.0, 4.0]]),
        lambda: torch.empty_like(ones(2, 2)),
        lambda: ones(2, 2).mT[:, :2].reshape(2, 2),
        lambda: ones(2, 2).double().to(torch.float32),
        lambda: ones(2, 2) @ ones(2, 2) + 1,
        lambda: torch.linalg.svd(ones(2, 2)).U,
        lambda: torch.nn.functional.one_hot(torch.arange(2, device="cuda")),
        lambda: torch.randperm(4, device="cuda").reshape(2, 2),
        lambda: ones(4, 4).data[:2, :2].detach(),
    ],
)
def test_what_is_made_there_is_there(make):
    x = make()
    assert x.device == CUDA
    assert (x.is_cuda, x.is_cpu, x.get_device()) == (True, False, 0)
    assert x.shape == (2, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2),
        lambda: ones(2).cpu(),
        lambda: ones(2).to("cpu", torch.float64),
        lambda: ones(2).to(torch.ones(1)),
        lambda: torch.zeros_like(ones(2), device="cpu"),
        lambda: torch.tensor([ones(1), ones(1)]),
    ],
)
def test_what_comes_back_is_back(make):
    x = make()
    assert (x.device, x.is_cuda) == (torch.device("cpu"), False)
    assert x.numpy().shape == (2,)


def test_torch_says_that_there_is_one_gpu():
    assert torch.cuda.is_available()
    assert (torch.cuda.device_count(), torch.cuda.current_device()) == (1, 0)
    assert torch.cuda.get_device_name(0)


@pytest.mark.parametrize(
    "meet",
    [
        lambda: ones(2) + torch.ones(2),
        lambda: torch.ones(2) * ones(2),
        lambda: ones(2, 2) @ torch.ones(2, 2),
        lambda: torch.cat([ones(2), torch.ones(2)]),
        lambda: torch.stack([ones(2)[0], torch.ones(2)[0]]),
        lambda: torch.ones(2) + ones(2)[0],  # a number on the GPU does not come to the CPU by itself
        lambda: torch.ones(2).add_(ones(2)),
        lambda: torch.zeros(()).add_(ones(2)[0]),
        lambda: torch.mm(ones(2, 2), ones(2, 2), out=torch.empty(2, 2)),
        lambda: torch.where(torch.ones(2) > 0, ones(2), ones(2)),
        lambda: torch.index_select(ones(2), 0, torch.tensor([0])),
        lambda: torch.gather(ones(2), 0, torch.tensor([0])),
        lambda: torch.equal(ones(2), torch.ones(2)),
        lambda: nn.Linear(2, 2)(ones(1, 2)),
        lambda: nn.Linear(2, 2).cuda()(torch.ones(1, 2)),
        lambda: nn.functional.cross_entropy(ones(2, 2), torch.tensor([0, 1])),
        lambda: nn.functional.embedding(torch.tensor([0]), ones(2, 2)),
        lambda: vmap(lambda row: row * torch.ones(2))(ones(3, 2)),
        lambda: grad(lambda v: (v * torch.ones(2)).sum())(ones(2)),
    ],
)
def test_what_is_on_both_devices_does_not_meet(meet):
    with pytest.raises(RuntimeError, match=MIXED):
        meet()


def test_a_single_number_may_come_from_the_cpu():
    for x in (ones(2) * torch.tensor(2.0), torch.tensor(2.0) * ones(2), ones(2).mul_(torch.tensor(2.0))):
        assert x.device == CUDA
        assert x.tolist() == [2.0, 2.0]
    assert torch.where(ones(2) > 0, torch.tensor(2.0), ones(2)).tolist() == [2.0, 2.0]


def test_indices_may_come_from_the_cpu_and_not_the_other_way_round():
    x, rows = ones(3), torch.tensor([0, 2])
    assert x[rows].device == x[rows.cuda()].device == x[torch.tensor([True, False, True])].device == CUDA
    x[rows] = 5.0
    x[rows.cuda()] += ones(2)
    assert x.tolist() == [6.0, 1.0, 6.0]
    for wrong in (
        lambda: torch.ones(3)[rows.cuda()],
        lambda: torch.ones(3).index_put_((rows.cuda(),), ones(2)),
    ):
        with pytest.raises(RuntimeError, match="same device as the indexed tensor"):
            wrong()
    with pytest.raises(RuntimeError, match=MIXED):
        x[rows] = torch.ones(2)


def test_copies_go_both_ways():
    here, there = torch.zeros(2), torch.zeros(2, device="cuda")
    there.copy_(torch.ones(2))
    there[0] = torch.tensor(3.0)
    assert here.copy_(there) is here
    assert (here.device.type, here.tolist(), there.tolist()) == ("cpu", [3.0, 1.0], [3.0, 1.0])


def test_views_share_their_numbers():
    x = torch.zeros(3, device="cuda")
    x[:2] += 1
    x.view(3, 1)[2] = 7
    assert x.tolist() == [1.0, 1.0, 7.0]
    assert x[1:].data_ptr() == x.data_ptr() + 4


@pytest.mark.parametrize("convert", [lambda x: x.numpy(), np.asarray, lambda x: np.mean([x])])
def test_numpy_does_not_take_it(convert):
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        convert(ones(2))


def test_numbers_come_back_one_by_one():
    x = torch.tensor([2.0], device="cuda")
    assert (x.item(), float(x), int(x), x.tolist(), bool(x > 1), f"{x[0]:.1f}") == (2, 2, 2, [2], True, "2.0")


@pytest.mark.parametrize(
    "draw",
    [
        lambda g: torch.rand(2, generator=g, device="cuda"),
        lambda g: torch.randperm(3, generator=g, device="cuda"),
        lambda g: ones(2).uniform_(generator=g),
        lambda g: torch.bernoulli(ones(2), generator=g),
        lambda g: torch.multinomial(ones(2), 1, generator=g),
        lambda g: nn.init.normal_(ones(2), generator=g),
    ],
)
def test_a_generator_draws_on_its_own_device(draw):
    first, second = (draw(torch.Generator(device="cuda").manual_seed(3)) for _ in range(2))
    assert first.device == CUDA
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        draw(torch.Generator().manual_seed(3))
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        torch.rand(2, generator=torch.Generator(device=CUDA))


def test_seeds_and_states_of_the_device():
    with torch.random.fork_rng(devices=[CUDA]):
        torch.manual_seed(1)
        torch.cuda.manual_seed_all(1)
    assert len(torch.cuda.get_rng_state(0))


def test_a_module_moves_with_its_parameters_buffers_and_gradients():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))
    before = list(net.parameters())
    descent = torch.optim.SGD(before, lr=0.1)
    net.to("cuda")
    assert all(p.device == CUDA and isinstance(p, nn.Parameter) for p in net.parameters())
    assert net[1].running_mean.device == CUDA
    assert all(a is b for a, b in zip(before, net.parameters(), strict=True))
    net(ones(3, 1, 4, 4)).square().sum().backward()
    assert {p.grad.device for p in net.parameters()} == {CUDA}
    old = net[3].weight.tolist()
    descent.step()
    assert net[3].weight.tolist() != old
    twin = copy.deepcopy(net)
    assert twin[0].weight.device == twin[0].weight.grad.device == CUDA
    assert isinstance(twin[0].weight, nn.Parameter)
    assert twin[0].weight.data_ptr() != net[0].weight.data_ptr()
    assert nn.Linear(1, 1).to(ones(1).double()).weight.device == CUDA
    net.cpu()
    assert {t.device.type for p in net.parameters() for t in (p, p.grad)} == {"cpu"}
    assert twin[0].weight.device == CUDA


def test_gradients_take_the_way_back():
    x = torch.ones(2, requires_grad=True)
    (x.cuda() * ones(2) * 3).sum().backward()
    assert (x.grad.device.type, x.grad.tolist()) == ("cpu", [3.0, 3.0])
    y = torch.ones(2, device="cuda", requires_grad=True)
    assert y.is_leaf
    (y.cpu() * torch.ones(2)).sum().backward()
    assert y.grad.device == CUDA
    with pytest.raises(RuntimeError, match="gradient on another device"):
        y.grad = torch.ones(2)


def test_hooks_see_what_is_on_the_device():
    seen = []
    net = nn.Linear(2, 2).cuda()
    net.register_forward_hook(lambda module, inputs, output: seen.append(output.device))
    out = net(ones(1, 2))
    out.register_hook(lambda gradient: seen.append(gradient * ones(1, 2)))
    out.sum().backward()
    assert (seen[0], seen[1].device) == (CUDA, CUDA)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # by torch's own jvp
def test_transforms_of_functions():
    net = nn.Linear(2, 1).cuda()
    weights = {name: p.detach() for name, p in net.named_parameters()}

    def loss(weights, row):
        assert row.device == weights["weight"].device == CUDA
        return functional_call(net, weights, (row,)).square().sum()

    each = vmap(grad(loss), (None, 0))(weights, ones(3, 2))
    assert (each["weight"].device, each["weight"].shape) == (CUDA, (3, 1, 2))
    value, tangent = jvp(lambda w: functional_call(net, w, (ones(3, 2),)), (weights,), (weights,))
    torch.testing.assert_close(value, tangent)
    assert tangent.device == CUDA


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}])
def test_optimizers_step(options):
    net, twin = nn.Linear(2, 1), nn.Linear(2, 1)
    twin.load_state_dict(net.state_dict())
    net.cuda()
    for model, x in ((net, ones(3, 2)), (twin, torch.ones(3, 2))):
        descent = torch.optim.Adam(model.parameters(), **options)
        for _ in range(3):
            descent.zero_grad()
            model(x).square().sum().backward()
            descent.step()
    torch.testing.assert_close(net.weight.cpu(), twin.weight)


def test_a_saved_state_is_read_on_the_cpu():
    file = io.BytesIO()
    torch.save(nn.Linear(2, 1).cuda().state_dict(), file)
    file.seek(0)
    state = torch.load(file, map_location="cpu", weights_only=True)
    assert state["weight"].device.type == "cpu"


def test_lower_precision():
    with torch.autocast("cuda", torch.bfloat16):
        assert nn.Linear(2, 2).cuda()(ones(1, 2)).dtype == torch.bfloat16


def test_nothing_of_it_is_left_behind():
    with fake_cuda.installed():
        pass
    before = torch.Generator
    assert torch.ones(1).to("cuda").device == CUDA  # the outer one goes on
    assert torch.Generator is before
