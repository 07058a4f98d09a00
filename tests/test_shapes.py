"""The shapes in the signatures are true: every public measure is called with jaxtyping checking them."""

import subprocess
import sys
import textwrap


def test_annotated_shapes_hold():
    # In a process of its own: the checks would otherwise speak before the package's own errors do.
    code = """
    from jaxtyping import install_import_hook
    with install_import_hook("repalign.alignment", "beartype.beartype"):
        from repalign import alignment as a
    import torch

    g = torch.Generator().manual_seed(0)
    for n, d in ((30, 4), (4, 30)):
        phi = a.unit_rows(torch.randn(n, d, generator=g), constant=True)
        for y in (torch.randn(n, generator=g), torch.randn(n, 3, generator=g)):
            s = a.spectrum(phi, y)
            a.alignment(phi, y, 0.5), s.alignment(torch.rand(7)), s.curve()
            a.alignment_curve(phi, y), a.alignment_curve(phi, y, torch.rand(5))
            a.cumulative_power(phi, y), a.cumulative_power(phi @ phi.mT, y)
            a.gd_loss(s, 0.01, 5), a.gd_loss(s, 0.01, torch.arange(4))
        a.iteration_bound(1.0, 0.5, 0.1, 1.0)
    try:
        a.unit_rows(torch.ones(3))
    except Exception as error:
        print(type(error).__name__)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "TypeCheckError" in done.stdout  # the checks were on
