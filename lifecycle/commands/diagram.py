"""``lifecycle diagram``: the declared table as a picture, or for a program that executes it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..diagrams.formats import MACHINES, SUFFIXES, Format
from ..diagrams.formats import diagram as draw
from ..diagrams.picture import Picture, PictureError, View
from ..diagrams.render import THEMES
from ..diagrams.trail import highlighted
from ..diagrams.views import picture
from ..errors import TraceError
from ..spec import Table
from ..trace import read
from .common import BadInput, opened, policy_of, survive_any_text, table_option


@click.command()
@click.option(
    "--format",
    "format_",
    metavar="FORMAT",
    help=f"One of {', '.join(Format)}. Default: what the name of --out says, else mermaid.",
)
@table_option
@click.option(
    "--view",
    metavar="VIEW",
    help="states (default), claims (who may free), reasons (which wins), or full (every configuration).",
)
@click.option(
    "--policy",
    "choices",
    multiple=True,
    metavar="NAME=CHOICE",
    help="A policy, such as report=at_decision; repeatable. A trace brings its own.",
)
@click.option(
    "--highlight", metavar="TRACE", help="Mark the way that a trace took, and where it went wrong."
)
@click.option("--rid", metavar="RID", help="The request of the trace to follow.")
@click.option(
    "--theme",
    type=click.Choice(THEMES),
    default="auto",
    show_default=True,
    help="Colours of svg and png: auto follows the reader's page.",
)
@click.option("--out", metavar="FILE", type=click.Path(dir_okay=False), help="Where to write it.")
def diagram(
    format_: str | None,
    table: Table,
    view: str | None,
    choices: tuple[str, ...],
    highlight: str | None,
    rid: str | None,
    theme: str,
    out: str | None,
) -> None:
    """Draw the declared table, as text on standard output or into a file.

    With --highlight: exit 1 if the trace holds something illegal or broke an invariant, after drawing it. Exit 2
    on an unknown format, a missing Graphviz, a trace that cannot be read.
    """
    wanted = format_ or SUFFIXES.get(Path(out).suffix.lower() if out else "", Format.MERMAID)
    try:
        drawn = _drawn(table, view, choices, highlight, rid, wanted)
        made = draw(table, wanted, policy=policy_of(choices), theme=theme, drawn=drawn)
    except PictureError as error:
        raise BadInput(str(error)) from None
    _write(made, wanted, out)
    sys.exit(1 if any(edge.wrong for edge in drawn.edges) else 0)


def _drawn(
    table: Table,
    view: str | None,
    choices: tuple[str, ...],
    highlight: str | None,
    rid: str | None,
    wanted: str,
) -> Picture:
    if wanted in MACHINES and (highlight is not None or view not in (None, View.FULL)):
        msg = f"{wanted} is the whole automaton for a program; it takes no --highlight, and no --view but full"
        raise BadInput(msg)
    if highlight is None:
        if rid is not None:
            msg = "--rid names the request to --highlight; give a trace"
            raise BadInput(msg)
        return picture(table, view or View.STATES, policy_of(choices))
    if choices:
        msg = "a trace brings its own policy; give --policy or --highlight, not both"
        raise BadInput(msg)
    name = "<stdin>" if highlight == "-" else highlight
    with opened(highlight) as stream:
        try:
            return highlighted(table, view or View.STATES, list(read(stream, name)), rid=rid)
        except TraceError as error:
            raise BadInput(str(error)) from None
        except PictureError as error:
            text = str(error).replace("name the one to follow", "name one with --rid")
            msg = f"{name}: {text}"
            raise BadInput(msg) from None


def _write(made: str | bytes, wanted: str, out: str | None) -> None:
    if out is not None:
        try:
            Path(out).write_bytes(made if isinstance(made, bytes) else made.encode("utf-8"))
        except OSError as error:
            msg = f"{out}: {error.strerror or error}"
            raise BadInput(msg) from None
    elif isinstance(made, bytes):
        if sys.stdout.isatty():
            msg = f"{wanted} is no text for a terminal; write it into a file with --out FILE"
            raise BadInput(msg)
        sys.stdout.buffer.write(made)
    else:
        survive_any_text(sys.stdout)
        sys.stdout.write(made)
