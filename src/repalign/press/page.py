"""What a notebook calls: a page with settings and sweeps, its figures and claims as functions of a table.

A figure or a claim is called on the table of this run and on the recorded one, and both appear. Three ways to
execute a page (``$REPALIGN_MODE``): ``run`` computes; ``read`` takes every table from the record and trains
nothing; ``verify`` computes some recorded cells again and compares.
"""

from __future__ import annotations

import html
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repalign._files import project_root, write_json, write_text
from repalign.machine import onednn
from repalign.press import cards, claims, provenance, records, style, verify
from repalign.press import settings as settings_
from repalign.press import sweep as sweep_
from repalign.press import tables as tables_

if TYPE_CHECKING:
    import pandas as pd

MODE = "REPALIGN_MODE"
# Set where a page runs for the record: its functions may be new, and the record before it is of the old ones.
ALONE = "REPALIGN_ALONE"


def page(name: str, *, answer: str = "", figure: str = "") -> Page:
    """The page called ``name`` ("paper/NN_topic"), with its claims and its record.

    The book shows under the title what was found on the claim ``answer``, and the figure ``figure``: the
    answer to the title's question.
    """
    return Page(name, answer, figure)


class Page:
    """A page of the book; there is one for each notebook."""

    def __init__(self, name: str, answer: str = "", figure: str = "") -> None:
        onednn.prepare()  # in JupyterLab this is the first that a page does
        self.name = name
        self._started = time.perf_counter()
        self._origin = provenance.origin()
        self._mode = os.environ.get(MODE) or "run"
        # In JupyterLab a cell may be executed again: what it says then counts.
        self._by_hand = sweep_.OUT not in os.environ
        root = project_root(Path.cwd())
        told = os.environ.get("REPALIGN_BOOK")
        self._root = Path(told) if told else root
        if self._root is None:
            raise RuntimeError(f"{name} belongs to a book: run it below the directory that has _toc.yml.")
        self.claims = claims.of_page(self._root, name)
        if answer and answer not in self.claims:
            raise claims.ClaimError(f"{name} is answered by {answer}, which is no claim of this page.")
        self._opening = {"answer": answer, "figure": figure}
        self._record = None if os.environ.get(ALONE) else records.newest(self._root, name)
        if self._mode in ("read", "verify") and self._record is None:
            raise RuntimeError(f"{name} has no record yet: repalign run {name} --profile desktop --fresh.")
        self._settings: settings_.Settings | None = None
        self._changed: dict[str, Any] = {}
        self._work: dict[str, float] = {}
        self._columns: dict[str, dict[str, Any]] = {}
        self._tables: dict[str, pd.DataFrame] = {}
        self._sweeps: dict[str, sweep_.Result] = {}
        self._judged: dict[str, dict[str, dict[str, Any]]] = {}
        self._recorded: dict[str, pd.DataFrame] = {}
        self._figures: list[str] = []
        self._offered: set[tuple[str, str]] = set()
        style.use()
        style.display_html(f"<style>{style.stylesheet()}</style>", "", {"style": True})

    # ------------------------------------------------------------------ what is set and computed

    def settings(
        self,
        profile: str,
        change: Mapping[str, Any] | None = None,
        *,
        smoke: dict[str, Any],
        laptop: dict[str, Any],
        desktop: dict[str, Any],
        paper: dict[str, Any],
        first_seed: int = settings_.FIRST_SEED,
        work: Callable[[settings_.Settings], float] | None = None,
    ) -> settings_.Settings:
        """The column of ``profile`` with ``change`` in it; where tables are read, the recorded profile's.

        Seeds of recorded runs begin with ``first_seed``: raise it when a criterion is revised, so that nobody
        has seen the runs that will be judged by it. ``work`` tells from settings how many operations a run
        has, roughly: so the book can say what the paper's sizes would cost.
        """
        if self._mode != "run":
            assert self._record is not None
            profile, change = self._record.run["profile"], None
        columns = dict(zip(settings_.PROFILES, (smoke, laptop, desktop, paper), strict=True))
        self._columns = columns
        self._settings, self._changed = settings_.choose(profile, dict(change or {}), columns, first_seed)
        if self._mode == "verify":
            assert self._record is not None
            verify.same_settings(self.name, self._settings.beside_paper(), self._record.run["settings"])
        if work is not None:
            chosen = {name: settings_.choose(name, {}, columns, first_seed)[0] for name in columns}
            self._work = {name: float(work(one)) for name, one in chosen.items()}
        return self._settings

    def sweep(
        self,
        fn: Callable[..., Any],
        configs: Sequence[Mapping[str, Any]],
        *,
        data: Any = None,
        name: str = "",
        tolerance: float = verify.TOLERANCE,
        trained: bool = False,
        **common: Any,
    ) -> pd.DataFrame:
        """``fn(**config, **common)`` for each of ``configs``, in parallel, as one table.

        ``fn`` returns rows: a dict, a list of dicts or a frame. ``data`` is a data set, several, or a
        function that loads them (it is not called where the table comes from the record); cells get it
        first. The table is kept under ``name``, by default the function's. ``tolerance`` is how far, relative
        to its size, a value may move on another processor: rounding, unless a network is ``trained``; then
        the size is the spread of such values over the record, where that is larger.
        """
        name = name or fn.__name__
        if name in self._tables and not self._by_hand:
            raise ValueError(f"{self.name} has two sweeps called {name}: give one of them another name=.")
        if not configs:
            raise ValueError(f"the sweep {name} of {self.name} has no configuration.")
        if self._mode == "run":
            found = sweep_.run(fn, configs, data, common)
            self._sweeps[name] = found
            self._tables[name] = found.table
            return found.table
        assert self._record is not None
        table, cells = self._record.sweep(name)
        if self._mode == "verify":
            verify.check(fn, configs, data, common, name, table, cells, tolerance, trained)
        self._tables[name] = table
        return table

    # ------------------------------------------------------------------ what is shown

    def figure(
        self, id: str, caption: str, *tables: pd.DataFrame
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Draw: the function below gets the tables, of this run and of the record, and returns a figure."""
        if not re.fullmatch(r"[\w.-]+", id):
            raise ValueError(f"{self.name}: a figure's id is a file's name, such as lou.fig3, not {id!r}.")
        if id in self._figures and not self._by_hand:
            raise ValueError(f"{self.name} draws {id} twice.")
        self._figures = [*dict.fromkeys([*self._figures, id])]

        def draw(fn: Callable[..., Any]) -> Callable[..., Any]:
            def drawn(*frames: pd.DataFrame) -> str:
                return style.drawn(_figure_of(fn(*frames), id), id, caption)

            panels = []
            names = [self._name_of(f"the figure {id}", table) for table in tables]
            for kind, frames in self._each(f"the figure {id}", tables):
                svg = self._called(drawn, frames, kind, f"the figure {id}")
                write_text(self._out / "figures" / f"{id}.{kind}.svg", svg)
                for name, frame in zip(names, frames, strict=True):
                    self._offer(name, kind, frame)
                panels.append((kind, style.framed(svg, id, caption, kind)))
            self._show(panels, f"{id}: {caption}", {"figure": id, "caption": caption, "tables": names})
            return fn

        return draw

    def table(
        self, caption: str, *tables: pd.DataFrame
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A table to read: the function below returns a frame, or two: ours and the paper's."""

        def show(fn: Callable[..., Any]) -> Callable[..., Any]:
            def made(*frames: pd.DataFrame) -> tables_.Table:
                found = fn(*frames)
                ours, paper = found if isinstance(found, tuple) else (found, None)
                return tables_.table(ours, caption, paper=paper)

            what = f"the table {fn.__name__}"
            shown = [
                (kind, self._called(made, frames, kind, what)) for kind, frames in self._each(what, tables)
            ]
            panels = [(kind, table._repr_html_()) for kind, table in shown]
            self._show(panels, "\n".join(repr(table) for _, table in shown), {"table": fn.__name__})
            return fn

        return show

    def claim(self, id: str, *tables: pd.DataFrame) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Judge: the function below gets the tables and yields effects; the verdict follows from them."""
        claim = self.claims.get(id)
        if claim is None:
            paper, _, topic = self.name.partition("/")
            raise claims.ClaimError(
                f"{self.name} judges {id}, which has no row with page = {topic!r} in "
                f"notebooks/{paper}/claims.toml: it has {', '.join(self.claims) or 'none'}."
            )
        if id in self._judged and not self._by_hand:
            raise claims.ClaimError(f"{self.name} judges {id} twice.")
        self._judged[id] = {}

        def judge(fn: Callable[..., Any]) -> Callable[..., Any]:
            panels = []
            for kind, frames in self._each(f"the claim {id}", tables):
                tested = kind == "record" or self._chosen.profile != "smoke"

                def judged(*frames: pd.DataFrame, tested: bool = tested) -> dict[str, Any]:
                    return claims.judge(claim, fn(*frames), tested=tested)

                found = self._evidence(claim, self._called(judged, frames, kind, f"the claim {id}"), kind)
                self._judged[id][kind] = found
                panels.append((kind, cards.card(found)))
            said = "; ".join(f"{kind}: {found['verdict']}" for kind, found in self._judged[id].items())
            self._show(panels, f"{id}: {said}", {"claim": id})
            return fn

        return judge

    def end(self) -> None:
        """The last cell: how this run was made. Fails when a claim of this page was not judged."""
        missing = sorted(set(self.claims) - set(self._judged))
        if missing:
            raise claims.ClaimError(
                f"{self.name} does not judge {', '.join(missing)}: write a function under "
                f"@page.claim({missing[0]!r}, table), or give the row another page."
            )
        opening = self._opening["figure"]
        if opening and opening not in self._figures:
            raise ValueError(f"{self.name} opens with the figure {opening}, which it does not draw.")
        self._words_for_stand_ins()
        if self._mode == "verify":
            return
        if self._mode == "run":
            for name, found in self._sweeps.items():
                records.write_sweep(self._out, name, found)
        facts = {
            "form": 2,
            "page": self.name,
            "mode": self._mode,
            **self._about_run(),
            "claims": self._judged,
            "figures": self._figures,
            "opening": self._opening,
            "sweeps": {name: records.described(self._out, name) for name in self._sweeps},
        }
        write_json(self._out / records.RUN, facts)
        line = f"{self.name} · {self._made('live' if self._mode == 'run' else 'record')}"
        style.display_html(f'<p class="ra-stamp">{html.escape(line)}</p>', line)

    # ------------------------------------------------------------------ inside

    @property
    def _chosen(self) -> settings_.Settings:
        if self._settings is None:
            raise RuntimeError(f"{self.name} should call page.settings(...) before figures and claims.")
        return self._settings

    @property
    def _out(self) -> Path:
        said = os.environ.get(sweep_.OUT)
        assert self._root is not None
        return Path(said) if said else self._root / "build" / "by-hand" / self.name

    def _each(self, what: str, tables: Sequence[pd.DataFrame]) -> Iterator[tuple[str, list[pd.DataFrame]]]:
        """The record's tables and this run's, in this order, as far as there are such.

        What needs no table is the same for both; a claim is then judged for both, and all else shown once.
        """
        names = [self._name_of(what, table) for table in tables]
        if self._mode != "run":
            yield "record", list(tables)
            return
        if self._record is not None and (names or what.startswith("the claim")):
            yield "record", [self._of_record(name) for name in names]
        yield "live", list(tables)

    def _name_of(self, what: str, table: pd.DataFrame) -> str:
        for name, own in self._tables.items():
            if own is table:
                return name
        raise ValueError(
            f"{self.name}: {what} takes tables as page.sweep returned them: select inside the function."
        )

    def _of_record(self, name: str) -> pd.DataFrame:
        """The recorded table of a sweep, read once."""
        assert self._record is not None
        if name not in self._recorded:
            self._recorded[name] = self._record.sweep(name)[0]
        return self._recorded[name]

    def _offer(self, name: str, kind: str, table: pd.DataFrame) -> None:
        """Keep a sweep's table as CSV, once for all figures that are drawn from it."""
        if (name, kind) not in self._offered:
            self._offered.add((name, kind))
            write_text(self._out / "tables" / f"{name}.{kind}.csv", style.csv(table))

    def _called(self, fn: Callable[..., Any], frames: list[pd.DataFrame], kind: str, what: str) -> Any:
        """``fn`` on copies of ``frames``; an error on the record says what the record has."""
        try:
            return fn(*(frame.copy() for frame in frames))
        except Exception as error:
            if kind == "live" or not frames:
                raise
            have = "; ".join(", ".join(map(str, frame)) for frame in frames)
            raise records.RecordError(
                f"{self.name}: {what} fails on the record ({type(error).__name__}: {error}). The record has "
                f"the columns {have}. Change the function so that it reads these, or record the page again: "
                f"repalign run {self.name} --profile desktop --fresh && repalign record {self.name}."
            ) from error

    def _evidence(self, claim: claims.Claim, judged: dict[str, Any], kind: str) -> dict[str, Any]:
        """What a card, the scoreboard and ``repalign claims`` show."""
        record = self._record if kind == "record" else None
        run = record.run if record else self._about_run()
        return {
            "page": self.name,
            **claims.texts(claim, judged, recorded=record is not None),
            **judged,
            "settings": run["settings"],
            "runs": run["runs"],
            "profile": run["profile"],
            "date": run["date"],
            "made": self._made(kind),
            "verified": record.verified() if record else "",
            "history": record.earlier(claim.id) if record else [],
        }

    def _about_run(self) -> dict[str, Any]:
        chosen = self._chosen
        of = self._record.run if self._mode != "run" and self._record else {}
        return {
            "profile": chosen.profile,
            "settings": chosen.beside_paper(),
            "changed": self._changed,
            "runs": chosen.as_dict().get("runs"),
            "work": self._work,
            "date": of.get("date") or provenance.today(),
            "commit": of.get("commit") or self._origin["commit"],
            "clean": of.get("clean", self._origin["clean"]),
            "code": of.get("code") or self._origin["code"],
            "seconds": of.get("seconds") or round(time.perf_counter() - self._started, 1),
            "machine": of.get("machine") or provenance.machine(),
            "versions": of.get("versions") or provenance.versions(),
        }

    def _made(self, kind: str) -> str:
        if kind == "record":
            return self._record_made
        run = self._about_run()
        seconds = sum(float(found.cells["seconds"].sum()) for found in self._sweeps.values())
        return f"profile {run['profile']}, {run['date']}, {seconds:.0f} s of computing, {run['machine']}"

    @cached_property
    def _record_made(self) -> str:
        assert self._record is not None
        return self._record.made()

    def _words_for_stand_ins(self) -> None:
        if not self._columns:
            return
        far = settings_.stand_ins(self._columns["desktop"], self._columns["paper"])
        silent = [c.id for c in self.claims.values() if c.kind == "paper" and not c.stand_in]
        if far and silent:
            raise claims.ClaimError(
                f"{self.name}: the recorded profile differs from the paper in {', '.join(far)}, so its "
                f"claims need words for it: set stand_in of {', '.join(silent)} in claims.toml."
            )

    def _show(self, panels: list[tuple[str, str]], text: str, about: dict[str, Any]) -> None:
        """A panel for the record and one for this run; the only one there is does not follow the switch."""
        if len(panels) == 1:
            markup = f'<div class="ra-panel">{panels[0][1]}</div>'
        else:
            markup = "".join(
                f'<div class="ra-panel ra-of-{kind}" data-of="{html.escape(self._label(kind))}">{shown}</div>'
                for kind, shown in panels
            )
        if "claim" in about:
            markup = f'<div id="claim-{html.escape(about["claim"])}">{markup}</div>'
        style.display_html(markup, text, {**about, "kinds": [kind for kind, _ in panels]})

    def _label(self, kind: str) -> str:
        if kind == "record":
            assert self._record is not None
            return self._record.label()
        return f"this run ({self._settings.profile})" if self._settings else "this run"


def _figure_of(drawn: Any, id: str) -> Any:
    """The matplotlib figure in what a drawing function returned: a figure, axes, or a grid of seaborn's."""
    found = getattr(drawn, "figure", drawn)
    if not hasattr(found, "savefig"):
        raise TypeError(
            f"the function under {id} should return a figure or axes, not {type(drawn).__name__}."
        )
    return found
