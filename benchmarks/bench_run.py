"""The runner on all cores, against one core for each page: a page alone, and a whole chapter.

Against: each page's sweeps on the page's own core, and pages in the order of the book. Both runs begin with
an empty store and have the same data. Whatever else the machine does disturbs them: measure when it is quiet.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import Seconds, machine, write

from repalign._files import cache_root

ROOT = Path(__file__).parents[1]
# One core for each page: no worker beside its kernel, and no second thread in it.
ONE_CORE = {"REPALIGN_JOBS": "1", "OMP_NUM_THREADS": "1"}
# What is run, and the ratio to reach where there are two cores.
ROWS = (("04_variety", 1.6), ("imani", 1.15))


def timed(root: Path, pattern: str, profile: str, more: dict[str, str]) -> Seconds:
    """``repalign run PATTERN --force`` in ``root`` with an empty store: by the clock, and of processors."""
    with tempfile.TemporaryDirectory() as cache:
        data = cache_root() / "data"
        data.mkdir(parents=True, exist_ok=True)
        (Path(cache) / "data").symlink_to(data)
        words = [sys.executable, "-m", "repalign", "run", "--force", "--profile", profile]
        before, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            [*words, *([pattern] if pattern else [])],
            cwd=root,
            env={**os.environ, "REPALIGN_CACHE": cache, **more},
            check=True,
        )
        took, after = time.perf_counter() - clock, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Seconds(took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def compared(pattern: str, profile: str) -> tuple[Seconds, Seconds]:
    """All cores and one for each page, in a copy of the book that knows nothing of earlier runs."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        shutil.copytree(ROOT / "notebooks", root / "notebooks")
        shutil.copy(ROOT / "_toc.yml", root)
        # First without a past: pages run in their order. Then the runner knows which ones are long.
        theirs = timed(root, pattern, profile, ONE_CORE)
        return timed(root, pattern, profile, {}), theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", nargs="?", help="write the results to this file, as JSON")
    parser.add_argument("--profile", default="laptop", help="of the pages")
    parser.add_argument(
        "--pages", help="only pages with this in their names, instead of the rows of the record"
    )
    options = parser.parse_args()
    rows = []
    for pattern, aim in ROWS if options.pages is None else ((options.pages, None),):
        ours, theirs = compared(pattern, options.profile)
        work = f"repalign run {pattern or '(the whole book)'}, {options.profile}, {os.cpu_count()} cores"
        against = "one core for each page, in the order of the book"
        rows.append(
            {"work": work, "against": against, "ours": ours.clock, "theirs": theirs.clock, "aim": aim}
        )
        print(
            f"{work}: {ours.clock:.1f} s against {theirs.clock:.1f} s, {theirs.clock / ours.clock:.2f}×; "
            f"processor time {ours.processor:.1f} s against {theirs.processor:.1f} s",
            flush=True,
        )
    write(options.report, {"machine": machine(), "rows": rows, "curves": []})


if __name__ == "__main__":
    main()
