"""The experiments of one paper each, and what only its pages need; no library module imports it."""
