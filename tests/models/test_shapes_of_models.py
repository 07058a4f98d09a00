"""The shapes in the signatures are true: networks and features run with jaxtyping checking them."""

import subprocess
import sys
import textwrap


def test_annotated_shapes_hold():
    # In a process of its own: the checks would otherwise speak before the package's own errors do.
    code = """
    from jaxtyping import install_import_hook
    checked = ["repalign.models", "repalign.features"]
    with install_import_hook(checked, "beartype.beartype"):
        from repalign import features, models
        from repalign.models import transfer
    import torch

    x = torch.linspace(0, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)
    for name, options in {
        "mlp": dict(inputs=3072, outputs=2, width=4),
        "rbf": dict(inputs=3072, units=4, centers=torch.zeros(4, 3072)),
        "simple_cnn": dict(filters=4, units=4),
        "preact_resnet18": dict(k=2),
        "resnet11": dict(width=4),
        "t2t_vit": dict(depth=7, image_size=32),
        "vit_small": dict(depth=1, width=12),
    }.items():
        features.extract(models.build(name, **options), x)
    net = models.SimpleCNN(filters=4, units=4)
    features.rbf(x), features.rbf(x.flatten(1), x[:1].flatten(1)), features.rbf(x.numpy())
    covariance = transfer.filter_covariance(net, "conv0")
    transfer.sample_filters(net, "conv0", covariance)
    transfer.eigenvector_filters(net, "conv0", covariance.numpy())
    try:
        models.RBFNetwork(32, units=4).rbf(x[0, 0, 0])
    except Exception as error:
        print(type(error).__name__)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "TypeCheckError" in done.stdout  # the checks were on
