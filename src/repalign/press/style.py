"""One look for all figures: readable on light and dark, safe for color-blind readers, SVG."""

from __future__ import annotations

import html
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# Hues of Okabe and Ito, shifted in lightness until each has a contrast of 3 on white and on dark gray.
PALETTE = ("#0b7fc7", "#d55e00", "#009070", "#b8609a", "#a87800", "#7d7d7d")

# Lines and letters are drawn in this color, which becomes the color of the text around the figure.
_INK = "#010203"
# Seaborn's own dark grays, of legend keys that stand for a style and not for a color.
_GRAYS = re.compile("#(333333|262626)")
# How a cell begins that a spreadsheet takes for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
# Where a drawing has more digits than a screen: a third of its bytes.
_PATH = re.compile(r'\bd="[^"]*"')
_NUMBERS = re.compile(r'\b(?:d|x|y)="[^"]*"')


def use() -> None:
    """Make matplotlib and seaborn draw in the book's style from here on."""
    import matplotlib as mpl
    import seaborn as sns
    from cycler import cycler

    inked: list[Any] = ["text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor"]
    inked += ["xtick.color", "ytick.color", "grid.color", "legend.labelcolor"]

    sns.set_theme(context="notebook", style="ticks")
    mpl.rcParams.update(
        {
            "axes.prop_cycle": cycler(color=PALETTE),
            "legend.title_fontsize": "small",
            "figure.dpi": 96,
            "figure.figsize": (6.4, 3.6),
            "figure.constrained_layout.use": True,
            "figure.facecolor": "none",
            "axes.facecolor": "none",
            "savefig.facecolor": "none",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": "medium",
            "axes.titlelocation": "left",
            "axes.labelsize": "medium",
            "font.size": 10.5,
            "font.family": "DejaVu Sans",
            "legend.frameon": False,
            "legend.fontsize": "small",
            "lines.linewidth": 1.8,
            "image.cmap": "viridis",
            "svg.fonttype": "path",
            **dict.fromkeys(inked, _INK),
            "grid.alpha": 0.15,
        }
    )


def csv(table: pd.DataFrame) -> str:
    """A table as text, with six digits a number; row headings that only count are left out.

    A text that a spreadsheet would run as a formula gets an apostrophe in front.

    >>> import pandas as pd
    >>> csv(pd.DataFrame({"layer": ["=HYPERLINK(0)", "fc"], "cka": [0.5, 1 / 3]}))
    "layer,cka\\n'=HYPERLINK(0),0.5\\nfc,0.333333\\n"
    """
    counted = table.index.nlevels == 1 and table.index.name is None
    plain = table if counted else table.reset_index()
    safe = plain.rename(columns=_harmless).map(_harmless)
    return str(safe.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def _harmless(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def drawn(figure: Figure, id: str, caption: str) -> str:
    """The figure as SVG without prolog and metadata, with ink that follows the text color; closes it."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    for ax in figure.axes:
        # A symmetric logarithm leaves much room below zero, where steps and epochs have nothing.
        if ax.get_xscale() == "symlog" and ax.dataLim.x0 >= 0 > ax.get_xlim()[0]:
            ax.set_xlim(left=0)
    buffer = io.StringIO()
    # A fixed salt and no date: the same numbers give the same file.
    with mpl.rc_context({"svg.hashsalt": id}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.S)
    svg = lighter(svg).replace(_INK, "currentColor")
    label = html.escape(caption, quote=True)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def lighter(svg: str) -> str:
    """The same drawing to a hundredth of a point, without comments, indents and ids that nothing points to.

    >>> lighter('<g id="line_1">\\n <!-- a line -->\\n <path d="M 1.23456 7.891 \\nL 2 3 \\n"/>\\n</g>')
    '<g><path d="M 1.23 7.89L 2 3"/></g>'
    """
    svg = re.sub(r">\s+<", "><", re.sub(r"<!--.*?-->", "", svg, flags=re.S))
    svg = _PATH.sub(lambda path: re.sub(r" ?\n", "", path[0]), svg)
    svg = _NUMBERS.sub(lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), svg)
    pointed_to = set(re.findall(r"#([\w.-]+)", svg))
    return re.sub(r' id="([^"]*)"', lambda one: one[0] if one[1] in pointed_to else "", svg)


def framed(svg: str, id: str, caption: str, kind: str = "live") -> str:
    """An inline figure with its caption. Ids are made unique, so that many figures share a page."""
    prefix = re.sub(r"[^A-Za-z0-9]", "-", f"{id}-{kind}") + "-"
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r'(xlink:href|href)="#', rf'\1="#{prefix}', svg).replace("url(#", f"url(#{prefix}")
    svg = _GRAYS.sub("currentColor", svg)
    svg = re.sub(r"<svg ([^>]*?)>", _responsive, svg, count=1, flags=re.S)
    text = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return f'<figure class="ra-figure" data-figure="{html.escape(id)}">{svg}{text}</figure>'


def _responsive(match: re.Match[str]) -> str:
    """Let the drawing shrink with the page, never grow beyond the size it was drawn for."""
    attributes = match.group(1)
    width = re.search(r'\bwidth="([\d.]+)pt"', attributes)
    attributes = re.sub(r'\b(width|height)="[^"]*"\s*', "", attributes)
    size = f"max-width:{float(width.group(1)) * 4 / 3:.0f}px;" if width else ""
    return f'<svg {attributes} style="width:100%;{size}height:auto">'


def display_html(markup: str, text: str, about: dict[str, Any] | None = None) -> None:
    """Put ``markup`` on the page; outside a notebook print ``text``. ``about`` labels the output."""
    from IPython.core.getipython import get_ipython
    from IPython.display import display

    if get_ipython() is None:
        print(text)
        return
    display(  # type: ignore[no-untyped-call]
        {"text/html": markup, "text/plain": text},
        raw=True,
        metadata={"repalign": about} if about else {},
    )


def stylesheet() -> str:
    """The style sheet of tables, cards and figures: a file in the book, inline in JupyterLab."""
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8")
