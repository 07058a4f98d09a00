"""The tree of the package: a name says what is in a file, and says it once."""

from collections import Counter
from pathlib import Path

import repalign

FILES = [path for path in Path(repalign.__file__).parent.rglob("*.py") if path.name != "__init__.py"]


def test_no_two_modules_have_one_name():
    twice = [name for name, count in Counter(path.name for path in FILES).items() if count > 1]
    assert not twice


def test_every_module_says_what_it_is_for():
    silent = [path.name for path in FILES if not path.read_text(encoding="utf-8").startswith('"""')]
    assert not silent


def test_names_and_words_have_one_spelling():
    """Torch's: center, initialize, color."""
    other = ("centre", "initialis", "colour", "neighbour", "grey", "normalis", "behaviour")
    texts = {path.name: path.read_text(encoding="utf-8").lower() for path in FILES}
    assert not {(name, word) for name, text in texts.items() for word in other if word in text}
