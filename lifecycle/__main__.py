"""``python -m lifecycle`` is the command ``lifecycle``."""

from __future__ import annotations

from .cli import main

main(prog_name="lifecycle")
