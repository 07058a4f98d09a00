"""Device choice, and torchvision beside this torch."""

import importlib
import subprocess
import sys

import pytest
import torch

import repalign
from repalign.machine.devices import device
from repalign.machine.vision import torchvision


def test_auto_takes_what_is_there():
    best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert device("auto").type == best
    assert device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "", "cpu:0", "cuda:x", "mps:1"])
def test_unknown_devices_are_refused_with_the_choices(name):
    with pytest.raises(ValueError, match="choose one of auto, cpu, cuda, mps"):
        device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_says_what_to_do():
    with pytest.raises(ValueError, match="use auto or cpu"):
        device("cuda")


def test_torchvision_works_beside_this_torch():
    vision = torchvision()
    assert torchvision() is vision
    model = vision.models.get_model("resnet18", weights=None).eval()
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 1000)
    image = torch.arange(16, dtype=torch.uint8).reshape(1, 4, 4)
    v2 = importlib.import_module("torchvision.transforms.v2")
    assert torch.equal(v2.functional.horizontal_flip(image), image.flip(-1))


def test_another_failure_of_torchvision_is_not_hidden(tmp_path):
    """Only the one known error is repaired; a broken install must still say so."""
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('something else')")
    code = "from repalign.machine.vision import torchvision; torchvision()"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode
    assert "something else" in done.stderr


def test_import_is_light_and_lists_its_modules():
    code = "import sys, repalign; assert 'torch' not in sys.modules; print(*dir(repalign))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"alignment", "data", "study", "machine"} <= set(done.stdout.split())
    with pytest.raises(AttributeError, match="it has alignment"):
        repalign.nonsense  # noqa: B018
