"""torchvision, also beside a CPU build of torch.

torchvision's wheel on the package index is built against CUDA. Beside a CPU torch its compiled part
does not load, and its import fails while registering a fake kernel: "operator torchvision::nms does
not exist". Models, transforms, data sets and feature extraction need none of the compiled operators,
so declaring their names, after that very error only, makes the rest of torchvision work.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

_MISSING = "operator torchvision::nms does not exist"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
# The declarations last only as long as this object does.
_library: torch.library.Library | None = None


def torchvision() -> ModuleType:
    """The torchvision module, imported so that it works beside this torch.

    >>> torchvision().models.get_model("resnet18", weights=None).fc.out_features
    1000
    """
    global _library
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if _MISSING not in str(error) or _library is not None:
            raise
    _library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        _library.define(schema)
    for name in [m for m in sys.modules if m == "torchvision" or m.startswith("torchvision.")]:
        del sys.modules[name]  # the half-imported pieces
    return importlib.import_module("torchvision")
