"""``lifecycle replay``: what a trace does, request by request."""

from __future__ import annotations

import sys

import click

from ..errors import TraceError
from ..replay import Replay
from ..spec import Table
from ..timeline import Timeline
from ..trace import read
from .common import BadInput, console, opened, survive_any_text, table_option


@click.command()
@click.argument("trace", metavar="TRACE")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.option(
    "--rid", "rids", multiple=True, metavar="RID", help="Show this request only; repeatable."
)
@table_option
def replay(trace: str, as_json: bool, rids: tuple[str, ...], table: Table) -> None:
    """Replay TRACE, a JSON Lines file of events ("-" for standard input).

    Prints a timeline of each request, or with --json one object. Exit 0 where nothing was illegal and no
    invariant broke, 1 where something was, 2 where the trace cannot be read.
    """
    timeline = None if as_json else Timeline(rids)
    run = Replay(table=table, watch=None if timeline is None else timeline.watch)
    _run(run, trace)
    if timeline is None:
        survive_any_text(sys.stdout)
        run.write_json(sys.stdout)
    else:
        timeline.show(console(), run)
    sys.exit(0 if run.clean else 1)


def _run(run: Replay, path: str) -> None:
    name = "<stdin>" if path == "-" else path
    with opened(path) as stream:
        try:
            for line in read(stream, name):
                run.feed(line)
        except TraceError as error:
            raise BadInput(str(error)) from None
