"""``lifecycle prove``: what must always hold, for any number of requests, ranks and pages, by z3."""

from __future__ import annotations

import json
import sys

import click
from rich.text import Text

from ..spec import Table
from .common import BadInput, console, policy_of, table_option


@click.command()
@table_option
@click.option(
    "--policy",
    "choices",
    multiple=True,
    metavar="NAME=CHOICE",
    help="Prove under this policy, such as abort_after_handoff=ignore; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def prove(table: Table, choices: tuple[str, ...], as_json: bool) -> None:
    """Prove the invariants of a table by induction, and say where the order of events decides the reason.

    Exit 0 if everything is proved, 1 if something is not, 2 on bad input. That the order of arrival matters in
    places is printed, each with its two events, and is no failure: the tables are declared so.
    """
    try:
        from ..prove.proof import prove as run
        from ..prove.reasons import exceptions, join_is_sound
    except ImportError as error:
        msg = f'prove needs {error.name}; install it with: pip install "request-lifecycle[prove]"'
        raise BadInput(msg) from None
    policy = policy_of(choices)
    result = run(table, policy)
    sound, order = join_is_sound(), exceptions(table, policy)
    good = not result.failed and not result.vacuous and sound
    if as_json:
        json.dump(
            {
                "table": table.name,
                "obligations": result.obligations,
                "actions": result.actions,
                "vacuous": result.vacuous,
                "seconds": round(result.seconds, 3),
                "proved": [str(name) for name in result.proved],
                "failed": [str(each) for each in result.failed],
                "assumptions": result.assumptions,
                "join_is_sound": sound,
                "order_matters": [str(each) for each in order],
            },
            sys.stdout,
            indent=1,
        )
        sys.stdout.write("\n")
        sys.exit(0 if good else 1)
    screen = console()
    screen.print(
        Text(
            f"table {table.name}, any number of requests, ranks and pages: {result.obligations} "
            f"obligations over {len(result.actions)} actions, {result.seconds:.2f} s",
            style="bold",
        )
    )
    for name in result.proved:
        screen.print(Text(f"  proved  {name}", style="green"))
    for each in result.failed:
        screen.print(Text(f"  FAILED  {each}", style="bold red"))
    for action in result.vacuous:
        screen.print(Text(f"  NEVER   {action} can happen", style="bold red"))
    screen.print("eventually_done rests on this:")
    for text in result.assumptions:
        screen.print(f"  - {text}")
    said = "proved" if sound else "NOT PROVED"
    screen.print(
        f"the join, under every precedence: sticky, and total orders independent of order: {said}"
    )
    screen.print(
        f"pairs of events whose order decides the reason under some total order: {len(order)}"
    )
    for depends in order:
        screen.print(f"  - {depends}")
    sys.exit(0 if good else 1)
