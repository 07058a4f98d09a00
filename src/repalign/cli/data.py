"""``repalign data``: which sets are here, getting them, checking them, and where they are."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from repalign.data.acquire import cache, find
from repalign.data.acquire.fetch import Progress as Report
from repalign.data.acquire.formats import Array
from repalign.data.acquire.shipped import FOLDER, from_shipped
from repalign.data.errors import DataError, UnavailableError
from repalign.data.row import Set
from repalign.data.sets import SETS, lookup

app = typer.Typer(help="Data sets: list, get, verify, path.", no_args_is_help=True)

# Mean and standard deviation per channel of the whole training split, and samples of each class.
KNOWN = {
    "mnist": ((0.13066,), (0.30811,), None),
    "fashion_mnist": ((0.2860,), (0.3530,), 6000),
    "cifar10": ((0.49140, 0.48216, 0.44653), (0.24703, 0.24349, 0.26159), 5000),
}


def _known(value: str) -> str:
    if value not in SETS:
        raise typer.BadParameter(f"no data set is called {value!r}: there are {', '.join(sorted(SETS))}.")
    return value


Names = Annotated[list[str], typer.Argument(callback=lambda names: [_known(name) for name in names])]


@app.command("list")
def list_(names: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """What is here, its size, where it came from, its license."""
    table = Table(box=None, pad_edge=False)
    for column in ("set", "here", "size", "source", "license"):
        table.add_column(column, overflow="fold")
    for name in map(_known, names or SETS):
        here, size, source = state(name)
        table.add_row(name, here, size, source, lookup(name).license)
    Console().print(table)


def state(name: str) -> tuple[str, str, str]:
    """How much of a set is here, its size on disk, and its source, in words."""
    row = lookup(name)
    split = next(iter(row.splits))
    if row.kind == "drawn":
        return "drawn", "–", "synthetic"
    if row.kind == "tree":
        try:
            tree = find.tree_in_folder(name, split)
            return "folder", f"{len(tree.files):,} files", str(tree.place)
        except UnavailableError:
            here = (cache.root() / name / "tree").is_dir()
            return ("whole", "–", "home") if here else ("–", "–", _offers(row))
    if row.generate:
        made = cache.read(f"{name}/{split}@{find.recipe(name)}")
        return (
            ("whole", _megabytes(cache.root() / name), made.source) if made else ("–", "–", "generated here")
        )
    try:
        return "folder", "–", find.from_folder(name, split).source
    except UnavailableError:
        pass
    try:
        return "whole", _megabytes(cache.root() / name), find.from_cache(name, split).source
    except UnavailableError:
        pass
    if row.shipped:
        return "subset", _megabytes(FOLDER / f"{name}.npz"), f"shipped; whole from {_offers(row)}"
    return "–", "–", _offers(row) + (f"; until then {row.stand_in}" if row.stand_in else "")


def _offers(row: Set) -> str:
    """The sources of a set that is not here."""
    offers = (["its home"] if row.home else []) + [str(source.files[0]) for source in row.registry]
    return ", ".join(offers) or "your own folder (REPALIGN_DATA)"


def _megabytes(path: Path) -> str:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return f"{sum(file.stat().st_size for file in files) / 1e6:.1f} MB"


@app.command()
def get(
    names: Names,
    strict: Annotated[bool, typer.Option(help="Fail also where a subset or a stand-in is used.")] = False,
) -> None:
    """Fetch whole sets into the cache. If it is stopped, the next call continues from there."""
    failed = 0
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, transient=True) as bar:
        for name in dict.fromkeys(names):
            try:
                said = fetch_whole(name, reporter(bar))
            except DataError as error:
                instead = fallback(name)
                failed += strict or not instead
                said = f"{error}{instead}"
            bar.console.print(f"{name}: {said}", highlight=False, soft_wrap=True, markup=False)
    if failed:
        raise typer.Exit(1)


def fallback(name: str) -> str:
    """What is used in place of a set that is not available; empty when there is nothing."""
    row = lookup(name)
    if row.shipped:
        counts = ", ".join(f"{len(from_shipped(name, split).y):,} {split}" for split in ("train", "test"))
        return f"\nUntil then the shipped subset is used: {counts}."
    return f"\nUntil then {row.stand_in} is used in its place." if row.stand_in else ""


def reporter(bar: Progress) -> Report:
    """Show each file that is fetched as a line of ``bar``."""
    tasks: dict[str, TaskID] = {}

    def report(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=total or None)
        bar.update(tasks[what], completed=done, total=total or None)

    return report


def fetch_whole(name: str, progress: Report) -> str:
    """Get every split of a set; return a line that says what there is now."""
    row = lookup(name)
    if row.kind == "drawn":
        return "drawn when it is loaded, nothing to get"
    split = next(iter(row.splits))
    if row.kind == "tree":
        tree = find.find_tree(name, split, folder=None, progress=progress)
        return f"{len(tree.files):,} files in {tree.place}"
    chosen = list(range(len(row.classes)))
    entries = [find.find(name, part, None, chosen, progress=progress) for part in row.splits]
    counts = ", ".join(f"{len(e.y):,} {part}" for part, e in zip(row.splits, entries, strict=True))
    return f"{counts}, from {entries[0].source}"


@app.command()
def verify(names: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Read all that is cached or shipped again and compare it with its digest, counts and means."""
    console, wrong, seen = Console(), 0, 0
    for name in map(_known, names or SETS):
        for where, split, entry in stored(name):
            seen += 1
            problems = examine(name, split, where, entry)
            wrong += bool(problems)
            mean, deviation = moments(entry.x)
            shown = (
                f"mean {_numbers(mean)} std {_numbers(deviation)}"
                if entry.x.ndim == 4
                else f"{entry.x.shape}"
            )
            verdict = f"[red]WRONG[/red] {'; '.join(problems)}" if problems else "[green]ok[/green]"
            console.print(
                f"{name} {split} ({where}): {len(entry.y):,} samples, {shown}: {verdict}", soft_wrap=True
            )
        for broken in damaged(name):
            wrong += 1
            console.print(f"{name} {broken.name}: [red]WRONG[/red] cannot be read", soft_wrap=True)
    if not seen:
        console.print("nothing is cached yet: repalign data get NAME")
    if wrong:
        console.print("Remove what is wrong with: repalign data remove NAME, then get it again.")
        raise typer.Exit(1)


def stored(name: str) -> list[tuple[str, str, cache.Entry]]:
    """All entries of a set, in the cache and in the package."""
    found = []
    for folder in sorted((cache.root() / name).glob("[!.]*")):
        if (entry := cache.read(f"{name}/{folder.name}", check=False)) is not None:
            found.append(("cache", folder.name, entry))
    if lookup(name).shipped:
        found += [("shipped", split, from_shipped(name, split)) for split in ("train", "test")]
    return found


def damaged(name: str) -> list[Path]:
    """Directories of the cache that should hold an entry but do not."""
    folders = (f for f in (cache.root() / name).glob("[!.]*") if f.is_dir() and f.name != "tree")
    return [f for f in folders if cache.read(f"{name}/{f.name}", check=False) is None]


def examine(name: str, split: str, where: str, entry: cache.Entry) -> list[str]:
    """What is wrong with an entry."""
    problems = []
    if cache.content_hash(np.asarray(entry.x), np.asarray(entry.y), entry.classes) != entry.content:
        problems.append("its bytes have changed since they were stored")
    if where == "cache" and split == "train" and name in KNOWN:
        mean, deviation, each = KNOWN[name]
        have_mean, have_deviation = moments(entry.x)
        if not (
            np.allclose(have_mean, mean, atol=1e-4) and np.allclose(have_deviation, deviation, atol=1e-4)
        ):
            problems.append(f"mean and std should be {_numbers(mean)} and {_numbers(deviation)}")
        if each and set(np.bincount(entry.y)) != {each}:
            problems.append(f"each class should have {each} samples")
    return problems


def moments(x: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each channel in [0, 1], exactly, from a histogram of the bytes."""
    if x.ndim != 4 or x.dtype != np.uint8:
        return np.zeros(0), np.zeros(0)
    counts = np.stack([np.bincount(x[:, c].ravel(), minlength=256) for c in range(x.shape[1])])
    level, share = np.arange(256) / 255, counts / counts.sum(1, keepdims=True)
    mean = share @ level
    return mean, np.sqrt(share @ level**2 - mean**2)


def _numbers(values: Array | tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{v:.5f}" for v in values) + ")"


@app.command()
def path(name: Annotated[str | None, typer.Argument()] = None) -> None:
    """The directory of the cache, or of one set in it."""
    typer.echo(cache.root() / _known(name) if name else cache.root())


@app.command()
def remove(names: Names) -> None:
    """Delete sets from the cache; your own folders and the shipped subsets stay."""
    for name in names:
        with cache.lock(name):
            shutil.rmtree(cache.root() / name, ignore_errors=True)
        typer.echo(f"{name}: removed from {cache.root()}")
