"""What the demo prints: a bar for each scheduler while it runs, and the tables at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kvpool import OccupancyBar, OccupancyHistory, PagePool
from lifecycle import WIRE, FinishReason

from .run import AFTER, BEFORE, LAYOUT, LIFECYCLE, POOL_PAGES, Result, Watch
from .scheduler import PrefillScheduler

COLUMNS = 100
"""The widest that anything is printed."""

TITLES = {
    LIFECYCLE: "lifecycle",
    BEFORE: "hand-written, before the fix",
    AFTER: "hand-written, after the fix",
}


def make_console() -> Console:
    """The terminal, or plain text of 100 columns where there is none."""
    console = Console(highlight=False, emoji=False)
    console.width = min(COLUMNS, console.width) if console.is_terminal else COLUMNS
    return console


def say_what_runs(console: Console, requests: int, seed: int) -> None:
    """The first lines."""
    console.print(
        f"[bold]{requests:,} requests through a disaggregated-prefill scheduler, three times[/] (seed {seed}).\n"
        "Scheduler, load, faults and the size of the pool are the same each time: "
        f"{POOL_PAGES} pages of {LAYOUT.bytes_per_page:,} bytes.\n"
        "Only who decides about pages and finish reasons differs: the library, or code as engines have it.\n"
    )


@contextmanager
def show_progress(
    console: Console, kind: str, requests: int, history: list[OccupancyHistory] | None = None
) -> Iterator[Watch]:
    """Yields a watch for :func:`run`, which moves a bar, and samples the pool into ``history`` if that is given.

    While the library runs, a second bar shows where the pages are. Without a terminal there are no bars.
    """
    progress = Progress(
        TextColumn("{task.description:<28}"),
        BarColumn(40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    live = Live(progress, console=console, refresh_per_second=10) if console.is_terminal else None
    task = progress.add_task(TITLES[kind], total=requests)
    pools: list[PagePool] = []
    begun = time.perf_counter()

    def watch(scheduler: PrefillScheduler, pool: PagePool) -> None:
        progress.update(task, completed=len(scheduler.witness.outcomes))
        if not pools:
            pools.append(pool)
            if history is not None:
                history.append(OccupancyHistory(pool))
            if live is not None and kind == LIFECYCLE:
                live.update(Group(progress, OccupancyBar(pool, width=28)))
        if history is not None:
            history[0].sample(at=time.perf_counter() - begun)

    with live or nullcontext():
        yield watch
        if live is not None:
            live.update(progress)


def show_reasons(console: Console, results: Sequence[Result]) -> None:
    """What clients were told, reason by reason."""
    table = Table(title="What the clients were told", box=SIMPLE_HEAD, title_justify="left")
    for name in ("reason", "on the wire"):
        table.add_column(name)
    for result in results:
        table.add_column(result.kind, justify="right")
    counts = [result.witness.by_reason for result in results]
    for reason in FinishReason:
        if any(count[reason] for count in counts):
            wire = WIRE[reason]
            numbers = (f"{count[reason]:,}" for count in counts)
            table.add_row(str(reason), f"{wire.finish} {wire.status}", *numbers)
    table.add_section()
    ended = (f"{len(result.witness.outcomes):,}" for result in results)
    table.add_row("requests that ended", "", *ended)
    console.print(table)


def show_lifecycle(console: Console, result: Result) -> None:
    """The run on the library: what it did, and the pool's audit."""
    ledger, receiver = result.ledger, result.receiver
    told = result.witness.outcomes
    lines = {
        "requests that ended": f"{len(told):,} of {result.requests:,}, "
        f"{result.witness.told_twice:,} of them reported twice",
        "preemptions": f"{sum(result.attempts.values()):,}",
        "pages handed out": f"{ledger.handed_out:,}",
        "released exactly once": f"{ledger.released_once:,}",
        "quarantined": f"{ledger.quarantined:,} (their transfer had not drained when its deadline passed)",
        "leaked": f"{ledger.leaked:,}",
        "illegal events": f"{result.illegal:,}",
        "late events absorbed": f"{result.late:,}",
        "bytes handed over": f"{receiver.right_bytes:,} verified by the decode worker, "
        f"{receiver.wrong_bytes:,} wrong",
    }
    table = Table(
        title="The run on the library", box=SIMPLE_HEAD, title_justify="left", show_header=False
    )
    table.add_column(style="bold")
    table.add_column()
    for name, text in lines.items():
        table.add_row(name, text)
    console.print(table)
    if result.audit is not None and result.final_audit is not None:
        audit = result.audit.table()
        audit.box, audit.title_justify = SIMPLE_HEAD, "left"
        audit.title = f"pool.audit() after the last request: {audit.title}"
        console.print(audit)
        final = result.final_audit.stats
        console.print(
            f"  Once the transfer engine has stopped, which is proof: {final.free} of {final.total} pages free.\n"
        )


def show_faults(console: Console, results: Sequence[Result]) -> None:
    """Side by side, what each scheduler got wrong."""
    table = Table(
        title="The same load on three schedulers: what must be zero",
        box=SIMPLE_HEAD,
        title_justify="left",
    )
    table.add_column("")
    for result in results:
        table.add_column(result.kind, justify="right")
    rows = [{**result.faults(), **result.library_faults()} for result in results]
    for name in rows[0]:
        table.add_row(name, *(_cell(row.get(name)) for row in rows))
    console.print(table)
    console.print(
        "  before, after: hand-written clean-up around the fix of sglang pull request 30937 (handwritten.py).\n"
        "  Wrong bytes that came by a failed transfer count too: they are KV of another request, sent to a\n"
        "  peer that it is not for. A dash: a free list and a few if statements cannot tell."
    )


def _cell(count: int | None) -> str:
    if count is None:
        return "-"
    return f"[green]{count}[/]" if count == 0 else f"[bold red]{count:,}[/]"
