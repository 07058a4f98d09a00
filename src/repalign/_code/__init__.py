"""Fingerprints of code and values: what a stored result or a checkpoint depends on."""

from repalign._code.origin import library_version
from repalign._code.source import bare, imported_digest, on_disk, package_digest, strings
from repalign._code.values import code_behind, fingerprint

__all__ = [
    "bare",
    "code_behind",
    "fingerprint",
    "imported_digest",
    "library_version",
    "on_disk",
    "package_digest",
    "strings",
]
