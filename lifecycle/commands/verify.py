"""``lifecycle verify``: explore a table, prove what must always hold, and show how it breaks where it does."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from ..diagrams.sequence import sequence
from ..errors import PolicyError
from ..policy import Policy
from ..replay import Replay
from ..spec import Table
from ..timeline import Timeline, plain
from ..trace import parse
from ..verify.counterexample import trace_of
from ..verify.one import Broken, Proof, safe_policies, verify_one
from .common import BadInput, console, survive_any_text, table_option


@click.command()
@table_option
@click.option(
    "--policy",
    "choices",
    multiple=True,
    metavar="NAME=CHOICE",
    help="Explore under this policy alone, such as report=at_decision; repeatable. Default: all safe ones.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Write each counterexample into DIR: a trace, and a Mermaid sequence diagram.",
)
def verify(table: Table, choices: tuple[str, ...], as_json: bool, out: str | None) -> None:
    """Explore every situation that one request can be in, and prove each invariant that it can break.

    What breaks is shown by the fewest events that break it. Exit 0 if everything holds, 1 if something breaks, 2
    on bad input.
    """
    policies = (_policy(choices),) if choices else safe_policies()
    started = time.perf_counter()
    proof = verify_one(table, policies)
    seconds = time.perf_counter() - started
    if out is not None:
        for broken in proof.broken:
            _write(broken, table, Path(out))
    if as_json:
        survive_any_text(sys.stdout)
        json.dump(_json(proof, seconds), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        _show(proof, table, seconds, console())
    sys.exit(1 if proof.broken else 0)


def _policy(choices: tuple[str, ...]) -> Policy:
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
        timeline = Timeline()
        run = Replay(table=table, watch=timeline.watch)
        for number, line in enumerate(trace_of(broken), 1):
            run.feed(parse(json.dumps(line), number))
        timeline.show(screen, run)


def _write(broken: Broken, table: Table, out: Path) -> None:
    lines = trace_of(broken)
    trace = "".join(json.dumps(line) + "\n" for line in lines)
    drawn = sequence(lines, table=table, title=table.name, broken=str(broken))
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{broken.invariant}.jsonl").write_text(trace, encoding="utf-8")
        (out / f"{broken.invariant}.mmd").write_text(drawn, encoding="utf-8")
    except OSError as error:
        msg = f"{out}: {error.strerror or error}"
        raise BadInput(msg) from None


def _json(proof: Proof, seconds: float) -> dict[str, Any]:
    return {
        "table": proof.table,
        "one_request": {
            "policies": proof.policies,
            "situations": proof.situations,
            "events": proof.events,
            "seconds": round(seconds, 3),
            "proved": [str(invariant) for invariant in proof.proved],
            "broken": [
                {
                    "invariant": str(broken.invariant),
                    "what": broken.what,
                    "trace": trace_of(broken),
                }
                for broken in proof.broken
            ],
        },
    }
