"""What the commands share: bad input, the console, files and standard input, the choice of table and policy."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click
from rich.console import Console

from ..decode import DECODE
from ..errors import LifecycleError, PolicyError
from ..policy import Policy
from ..prefill import PREFILL
from ..spec import Table

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


def console() -> Console:
    """Standard output; wide enough for a table, and in plain text where it is no terminal."""
    survive_any_text(sys.stdout)
    made = Console(highlight=False, markup=False, emoji=False)
    sized = made.is_terminal or "COLUMNS" in os.environ
    made.width = max(NARROWEST, made.width) if sized else PIPED_WIDTH
    return made


def survive_any_text(stream: IO[str]) -> None:
    """A rid may be any text; a terminal that cannot show it gets an escape, not a traceback."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


@contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """The bytes of the file at `path`; ``-`` is standard input.

    Raises:
        BadInput: it cannot be read.
    """
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


def policy_of(choices: tuple[str, ...]) -> Policy:
    """The policy of options ``NAME=CHOICE``; the default where there are none.

    Raises:
        BadInput: an option has another form, or there is no such choice.
    """
    named: dict[str, object] = {}
    for choice in choices:
        name, equals, value = choice.partition("=")
        if not equals:
            msg = f"--policy takes NAME=CHOICE, such as report=at_decision; got {choice!r}"
            raise BadInput(msg)
        named[name] = value.split(",") if name == "precedence" and "," in value else value
    try:
        return Policy.from_mapping(named)
    except PolicyError as error:
        raise BadInput(str(error)) from None


table_option = click.option(
    "--table",
    default="prefill",
    show_default=True,
    callback=_table,
    metavar="NAME",
    help="The declared table: prefill, decode, or module:NAME for your own.",
)
