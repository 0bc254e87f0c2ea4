"""``lifecycle check``: logs of any size against the contract."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from ..checklog.checker import Checker
from ..checklog.excerpt import shortened
from ..checklog.report import show
from ..checklog.source import chunks, expand, total_bytes
from ..errors import TraceError
from ..spec import Table
from .common import BadInput, console, survive_any_text, table_option


@click.command()
@click.argument("logs", metavar="LOG...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.option(
    "--excerpts",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the shortest excerpt of each kind of violation there, as a trace to replay.",
)
@table_option
def check(logs: tuple[str, ...], as_json: bool, excerpts: Path | None, table: Table) -> None:
    """Check LOGs, traces in JSON Lines, plain or packed with gzip or zstd, as one log in the order given.

    A LOG may be the path of a recorder, which stands for all of its segments, or "-" for standard input. Lines
    that cannot be read are told and left out. Exit 0 where nothing is wrong, 1 where an invariant broke, 2 where a
    log cannot be read, or a line in the middle of one cannot and nothing else is wrong.
    """
    checker, began = Checker(table=table), time.perf_counter()
    try:
        files = expand(logs)
        with _progress(total_bytes(files)) as advance:
            for path in files:
                read(checker, path, advance)
    except TraceError as error:
        raise BadInput(str(error)) from None
    if not checker.events and checker.lost:
        msg = f"no line is an event of a trace; the first: {checker.damage[0]}"
        raise BadInput(msg)
    seconds = time.perf_counter() - began
    if excerpts is not None:
        _write_excerpts(checker, excerpts)
    if as_json:
        survive_any_text(sys.stdout)
        sys.stdout.write(json.dumps(checker.result(), indent=1) + "\n")
    else:
        show(console(), checker, seconds)
    sys.exit(1 if checker.groups else 2 if checker.lost else 0)


def read(checker: Checker, path: str, advance: Callable[[int], None] | None = None) -> None:
    """Feed a file to a checker.

    Raises:
        TraceError: it cannot be opened.
    """
    name = "<stdin>" if path == "-" else path
    for number, texts, last in chunks(path, checker.note, advance):
        if last:
            checker.cut(name, number, texts[0])
        else:
            checker.feed(name, number, texts)


@contextmanager
def _progress(total: int | None) -> Iterator[Callable[[int], None] | None]:
    """A bar on standard error, where that is a terminal."""
    bar = Console(stderr=True)
    if not bar.is_terminal:
        yield None
        return
    columns = (
        TextColumn("checking"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=bar, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)


def _write_excerpts(checker: Checker, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for group in checker.groups.values():
            name = f"{group.invariant}-{group.state or 'unknown'}-{group.event}.jsonl"
            lines = [json.dumps({"policy": checker.policy.to_mapping()})]
            lines += [line.text for line in shortened(group, checker.policy, checker.table)]
            (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        msg = f"{folder}: {error.strerror or error}"
        raise BadInput(msg) from None
