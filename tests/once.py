"""What many tests look at and nobody changes is made once."""

import os
import shutil

from filelock import FileLock


def once(tmp_path_factory, name, build):
    """A directory made by ``build``, once for all processes of a run of the tests."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    place, done = base / name, base / f"{name}.done"
    with FileLock(base / f"{name}.lock"):
        if not done.exists():
            # What a process left that failed here would only hide the reason from the next one.
            shutil.rmtree(place, ignore_errors=True)
            build(place)
            done.touch()
    return place
