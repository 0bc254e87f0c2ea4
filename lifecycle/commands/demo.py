"""``lifecycle demo``: the example scheduler of the source tree."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import click

from .common import BadInput


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(arguments: tuple[str, ...]) -> None:
    """Run the example scheduler on 2,000 requests, beside hand-written clean-up. --help for its options."""
    script = Path(__file__).parents[2] / "examples" / "prefill_scheduler.py"
    if not script.is_file():
        msg = "the demo is part of the source tree: clone the repository and run `make demo`"
        raise BadInput(msg)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")
