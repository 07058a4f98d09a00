"""The pages of the book, and those whose turn it is in tests that would take too long for all.

Each day has another third of them. ``REPALIGN_TEST_TURN`` asks for one third (0, 1 or 2) or for ``all``.
"""

import datetime
import os

from command import ROOT
from repalign.press import project

PAGES = project.find(ROOT)
# Set once: processes of one run of the tests agree, also around midnight.
_TURN = os.environ.setdefault("REPALIGN_TEST_TURN", str(datetime.date.today().toordinal() % 3))
IN_TURN = PAGES if _TURN == "all" else PAGES[int(_TURN) :: 3]
