"""Processes over gloo: `make test-engines-gloo` has them; the default run does not look here."""

from __future__ import annotations

import os

if os.environ.get("LIFECYCLE_ENGINES") != "gloo":
    collect_ignore_glob = ["*.py"]
else:
    collect_ignore = ["ranks.py"]  # a program, which doctests must not import
