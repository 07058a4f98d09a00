"""Fingerprints of code and values: what a stored result or a checkpoint depends on."""

from repalign._code.origin import library_version
from repalign._code.values import fingerprint

__all__ = ["fingerprint", "library_version"]
