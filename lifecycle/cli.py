"""The command line: ``lifecycle replay``, ``explain``, ``demo``.

Exit codes: 0 where all is well, 1 where something was illegal or an invariant broke, 2 on bad input. Bad input
is told in one message on standard error, never by a traceback, and nothing of it is applied.
"""

from __future__ import annotations

import difflib
import importlib
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

try:
    import click
    from rich.console import Console
except ImportError as error:  # pragma: no cover  # a test runs this in a process of its own
    sys.stderr.write(
        f"lifecycle: the command line needs {error.name}; "
        'install it with: pip install "request-lifecycle[cli]"\n'
    )
    sys.exit(2)

from . import __version__
from .decode import DECODE
from .errors import LifecycleError, TraceError
from .prefill import PREFILL
from .spec import Table
from .vocabulary import Event

if TYPE_CHECKING:
    from .replay import Replay

PIPED_WIDTH = 120
"""Columns of output that goes to a file or a pipe."""
NARROWEST = 100
"""Columns of output at least: a table in fewer is harder to read than lines that the terminal wraps."""

SHIPPED = {table.name: table for table in (PREFILL, DECODE)}


class BadInput(click.ClickException):
    """What the user gave cannot be used: exit 2."""

    exit_code = 2

    def show(self, file: IO[str] | None = None) -> None:
        """One message, on standard error unless told otherwise."""
        click.echo(f"lifecycle: {self.format_message()}", file=file, err=True)


def _console() -> Console:
    _survive_any_text(sys.stdout)
    console = Console(highlight=False, markup=False, emoji=False)
    sized = console.is_terminal or "COLUMNS" in os.environ
    console.width = max(NARROWEST, console.width) if sized else PIPED_WIDTH
    return console


def _survive_any_text(stream: IO[str]) -> None:
    """A rid may be any text; a terminal that cannot show it gets an escape, not a traceback."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        with Path(path).open("rb") as stream:
            yield stream
    except OSError as error:  # opening it, or while reading
        msg = f"{path}: {error.strerror or error}"
        raise BadInput(msg) from None


def _table(_context: click.Context, _parameter: click.Parameter, name: str) -> Table:
    """``prefill``, ``decode`` or ``package.module:NAME``."""
    if name in SHIPPED:
        return SHIPPED[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        msg = f"no table {name!r}: give {' or '.join(SHIPPED)}, or module:NAME"
        raise BadInput(msg)
    sys.path.insert(0, "")
    try:
        table = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, LifecycleError) as error:
        msg = f"no table {name!r}: {error}"
        raise BadInput(msg) from None
    finally:
        sys.path.remove("")
    if not isinstance(table, Table):
        msg = f"{name!r} is no lifecycle.Table, it is {type(table).__name__}"
        raise BadInput(msg)
    return table


_table_option = click.option(
    "--table",
    default="prefill",
    show_default=True,
    callback=_table,
    metavar="NAME",
    help="The declared table: prefill, decode, or module:NAME for your own.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="lifecycle")
def main() -> None:
    """The life of a request in an LLM-serving scheduler: replay it, explain it, see it."""


@main.command()
@click.argument("trace", metavar="TRACE")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.option(
    "--rid", "rids", multiple=True, metavar="RID", help="Show this request only; repeatable."
)
@_table_option
def replay(trace: str, as_json: bool, rids: tuple[str, ...], table: Table) -> None:
    """Replay TRACE, a JSON Lines file of events ("-" for standard input).

    Prints a timeline of each request, or with --json one object. Exit 0 where nothing was illegal and no
    invariant broke, 1 where something was, 2 where the trace cannot be read.
    """
    from .replay import Replay
    from .timeline import Timeline

    timeline = None if as_json else Timeline(rids)
    run = Replay(table=table, watch=None if timeline is None else timeline.watch)
    _run(run, trace)
    if timeline is None:
        _survive_any_text(sys.stdout)
        run.write_json(sys.stdout)
    else:
        timeline.show(_console(), run)
    sys.exit(0 if run.clean else 1)


def _run(run: Replay, path: str) -> None:
    from .trace import read

    name = "<stdin>" if path == "-" else path
    with _opened(path) as stream:
        try:
            for line in read(stream, name):
                run.feed(line)
        except TraceError as error:
            raise BadInput(str(error)) from None


@main.command()
@click.argument("state")
@click.argument("event")
@_table_option
def explain(state: str, event: str, table: Table) -> None:
    """What EVENT does to a request in STATE, and why, from the declared table."""
    from .explain import explain as tell

    states = [str(spec.name) for spec in table.states]
    _known("state", state, states)
    _known("event", event, [str(word) for word in Event])
    tell(_console(), state, event, table)


def _known(what: str, word: str, words: list[str]) -> None:
    if word not in words:
        near = difflib.get_close_matches(word, words, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        msg = f"no {what} {word!r}{hint} The {what}s are {', '.join(words)}"
        raise BadInput(msg)


@main.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(arguments: tuple[str, ...]) -> None:
    """Run the example scheduler on 2,000 requests, beside hand-written clean-up. --help for its options."""
    script = Path(__file__).parent.parent / "examples" / "prefill_scheduler.py"
    if not script.is_file():
        msg = "the demo is part of the source tree: clone the repository and run `make demo`"
        raise BadInput(msg)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")
