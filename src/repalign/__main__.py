"""``python -m repalign`` is the ``repalign`` command."""

from repalign.cli import main

main()
