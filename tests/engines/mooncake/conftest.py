"""Two processes of the real engine: `make test-engines-mooncake` has them; the default run does not look here."""

from __future__ import annotations

import os

if os.environ.get("LIFECYCLE_ENGINES") != "mooncake":
    collect_ignore_glob = ["*.py"]
else:
    collect_ignore = ["peer.py"]  # a program, which doctests must not import
