"""``lifecycle verify``: explore a table, prove what must always hold, and show how it breaks where it does."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from ..diagrams.sequence import sequence
from ..policy import DEFAULT_POLICY, Policy
from ..replay import Replay
from ..spec import Table
from ..timeline import Timeline, plain
from ..trace import parse
from ..verify.counterexample import trace_of
from ..verify.fleets import FleetProof, verify_fleet
from ..verify.one import Proof, safe_policies, verify_one
from .common import BadInput, console, policy_of, survive_any_text, table_option


@click.command()
@table_option
@click.option(
    "--policy",
    "choices",
    multiple=True,
    metavar="NAME=CHOICE",
    help="Explore under this policy alone, such as report=at_decision; repeatable. Default: all safe ones.",
)
@click.option(
    "--requests",
    type=click.IntRange(0, 4),
    default=3,
    show_default=True,
    help="Requests of the fleet; 0: no fleet, one request alone.",
)
@click.option("--ranks", type=click.IntRange(1, 3), default=2, show_default=True)
@click.option(
    "--pages",
    type=click.IntRange(1, 4),
    default=2,
    show_default=True,
    help="Pages of the pool; the first holds the prefix that the requests share.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Write each counterexample into DIR: a trace, and a Mermaid sequence diagram.",
)
def verify(
    table: Table,
    choices: tuple[str, ...],
    requests: int,
    ranks: int,
    pages: int,
    as_json: bool,
    out: str | None,
) -> None:
    """Explore all that one request, and a small fleet of them, can do; prove what must always hold.

    What breaks is shown by the fewest events that break it. Exit 0 if everything holds, 1 if something breaks, 2
    on bad input.
    """
    policies = (policy_of(choices),) if choices else safe_policies()
    started = time.perf_counter()
    proof = verify_one(table, policies)
    seconds = time.perf_counter() - started
    fleet = None
    if requests:
        fleet = _fleet(table, policies[0] if choices else DEFAULT_POLICY, requests, ranks, pages)
    if out is not None:
        for broken in proof.broken:
            _write(str(broken.invariant), trace_of(broken), str(broken), table, Path(out))
        for lost in fleet.lost if fleet else ():
            _write(f"fleet_{lost.invariant}", lost.trace, str(lost), table, Path(out))
    if as_json:
        survive_any_text(sys.stdout)
        json.dump(_json(proof, seconds, fleet), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        screen = console()
        _show(proof, table, seconds, screen)
        if fleet is not None:
            _show_fleet(fleet, table, screen)
    wrong = proof.broken or (fleet is not None and (fleet.lost or fleet.missing))
    sys.exit(1 if wrong else 0)


def _fleet(table: Table, policy: Policy, requests: int, ranks: int, pages: int) -> FleetProof:
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[speed]}"),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        size = f"{requests} requests x {ranks} ranks x {pages} pages"
        task = progress.add_task(f"fleet of {size}", total=None, speed="")

        def told(states: int, seconds: float) -> None:
            speed = f"{states:,} states, {states / max(seconds, 1e-3):,.0f} states/s"
            progress.update(task, speed=speed)

        return verify_fleet(requests, ranks, pages, table=table, policy=policy, told=told)


def _show(proof: Proof, table: Table, seconds: float, screen: Console) -> None:
    head = Text(f"table {plain(proof.table)}, one request", style="bold")
    head.append(
        f": {proof.situations:,} situations, {proof.events:,} events under {proof.policies} "
        f"{'policy' if proof.policies == 1 else 'policies'}, {seconds:.2f} s"
    )
    screen.print(head)
    for invariant in proof.proved:
        screen.print(Text(f"  proved  {invariant}", style="green"))
    for broken in proof.broken:
        screen.print(Text(f"  BROKEN  {broken.invariant}", style="bold red"))
    for broken in proof.broken:
        screen.print()
        screen.print(Text(plain(str(broken)), style="bold red"))
        _timeline(trace_of(broken), table, screen)


def _show_fleet(fleet: FleetProof, table: Table, screen: Console) -> None:
    screen.print()
    head = Text(f"fleet of {fleet.requests} requests x {fleet.ranks} ranks x {fleet.pages} pages")
    head.stylize("bold")
    speed = fleet.states / max(fleet.seconds, 1e-3)
    head.append(
        f": {fleet.states:,} states up to symmetry, {fleet.edges:,} moves, {fleet.seconds:.2f} s"
        f" ({speed:,.0f} states/s)"
    )
    screen.print(head)
    for invariant in fleet.proved:
        screen.print(Text(f"  proved  {invariant}", style="green"))
    for lost in fleet.lost:
        screen.print(Text(f"  BROKEN  {lost.invariant}", style="bold red"))
    for what in fleet.missing:
        screen.print(Text(f"  NEVER   {what}", style="bold red"))
    for lost in fleet.lost:
        screen.print()
        screen.print(Text(str(lost), style="bold red"))
        for number, line in enumerate(lost.story, 1):
            screen.print(Text(f"  {number:2}. {line}"))
        _timeline(lost.trace, table, screen)


def _timeline(lines: Iterable[Mapping[str, Any]], table: Table, screen: Console) -> None:
    timeline = Timeline()
    run = Replay(table=table, watch=timeline.watch)
    for number, line in enumerate(lines, 1):
        run.feed(parse(json.dumps(line), number))
    timeline.show(screen, run)


def _write(
    name: str, lines: Sequence[Mapping[str, Any]], broken: str, table: Table, out: Path
) -> None:
    trace = "".join(json.dumps(line) + "\n" for line in lines)
    drawn = sequence(lines, table=table, title=table.name, broken=broken)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.jsonl").write_text(trace, encoding="utf-8")
        (out / f"{name}.mmd").write_text(drawn, encoding="utf-8")
    except OSError as error:
        msg = f"{out}: {error.strerror or error}"
        raise BadInput(msg) from None


def _json(proof: Proof, seconds: float, fleet: FleetProof | None) -> dict[str, Any]:
    one = {
        "policies": proof.policies,
        "situations": proof.situations,
        "events": proof.events,
        "seconds": round(seconds, 3),
        "proved": [str(invariant) for invariant in proof.proved],
        "broken": [
            {"invariant": str(each.invariant), "what": each.what, "trace": trace_of(each)}
            for each in proof.broken
        ],
    }
    result: dict[str, Any] = {"table": proof.table, "one_request": one}
    if fleet is not None:
        result["fleet"] = {
            "requests": fleet.requests,
            "ranks": fleet.ranks,
            "pages": fleet.pages,
            "states": fleet.states,
            "edges": fleet.edges,
            "seconds": round(fleet.seconds, 3),
            "proved": [str(invariant) for invariant in fleet.proved],
            "broken": [
                {"invariant": str(each.invariant), "story": each.story, "trace": each.trace}
                for each in fleet.lost
            ],
            "missing": fleet.missing,
        }
    return result
