"""Maps of layers over depths."""

import io

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from repalign.papers import lou
from repalign.press import style


@pytest.fixture(autouse=True)
def _style():
    style.use()
    yield
    plt.close("all")


def drawn(figure):
    figure.savefig(io.BytesIO(), format="svg")
    return figure


def test_layer_maps_draw_shares_of_the_maximum_and_geometric_means_of_peaks():
    rows = []
    for kind, col, depth, seed in [
        (k, c, d, s) for k in "ab" for c in "xyz" for d in (4, 16) for s in (0, 1)
    ]:
        at = dict(kind=kind, col=col, depth=depth, seed=seed)
        rows += [dict(at, layer=k, height=k * (1.0 + seed)) for k in range(1, depth + 1)]
        rows += [dict(at, top=depth / 2 ** (2 * seed), other=2.0)]
    frame = pd.DataFrame(rows)
    options = dict(y="height", peak="top", row="kind", col="col", slope=0.5, lines=["other"])
    figure = drawn(lou.layer_maps(frame, **options))
    axes = [ax for ax in figure.axes if ax.get_title(loc="left")]
    assert [ax.get_title(loc="left") for ax in axes] == ["x, a", "y, a", "z, a", "x, b", "y, b", "z, b"]
    dots = axes[0].collections[0]
    at = dict(zip(map(tuple, dots.get_offsets().data), dots.get_array(), strict=True))
    assert at[4, 1] == pytest.approx(0.25)
    assert at[16, 16] == pytest.approx(1)
    lines = {line.get_label(): line.get_ydata() for line in axes[0].get_lines()}
    assert lines["peak"] == pytest.approx([2, 8])
    assert lines["best fit"] == pytest.approx([2, 8])
    assert lines["slope 0.5"] == pytest.approx([2 * 2**0.5, 4 * 2**0.5])
    assert lines["other"] == pytest.approx([2, 2])
    alone = drawn(lou.layer_maps(frame[frame.depth == 4], **options))
    assert "best fit" not in [line.get_label() for line in alone.axes[0].get_lines()]
    with pytest.raises(ValueError, match="no column nothing"):
        lou.layer_maps(frame, **{**options, "peak": "nothing"})
