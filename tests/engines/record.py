"""What engines did alone and governed, one JSON line a failure, for the table in docs/engines.md."""

from __future__ import annotations

import json
import os


def record(
    *, engine: str, version: str, failure: str, source: str, alone: str, governed: str
) -> None:
    """Append a line to the file that ``LIFECYCLE_ENGINES_RECORD`` names; nothing where it names none."""
    path = os.environ.get("LIFECYCLE_ENGINES_RECORD")
    if path:
        line = {
            "engine": engine,
            "version": version,
            "failure": failure,
            "source": source,
            "alone": alone,
            "governed": governed,
        }
        with open(path, "a", encoding="utf-8") as lines:  # noqa: PTH123  # appends
            lines.write(json.dumps(line) + "\n")
