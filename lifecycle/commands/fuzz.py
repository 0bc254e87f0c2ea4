"""``lifecycle fuzz``: search a scheduler for broken invariants, and write down what is found."""

from __future__ import annotations

import io
import json
import os
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from ..diagrams.sequence import sequence
from ..replay import Replay
from ..testing.player import Capabilities
from ..timeline import Timeline, plain
from ..trace import parse, write
from .common import BadInput, console

if TYPE_CHECKING:
    from ..testing.coverage import Coverage
    from ..testing.fuzz import Finding, Outcome, Plan, Tally

PROFILES = ("default", "ci", "nightly")


def _capability(field: Any) -> Callable[[Any], Any]:
    word = field.name.replace("_", "-")
    return click.option(
        f"--{word}/--no-{word}",
        field.name,
        default=field.default,
        show_default=True,
        help=f"Whether the scheduler has the capability {field.name}.",
    )


def _capabilities(command: Any) -> Any:
    for field in reversed(attrs.fields(Capabilities)):
        command = _capability(field)(command)
    return command


@click.command()
@click.argument("spec", metavar="PACKAGE:FACTORY")
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Go on with further seeds for so long. Without it: as many examples as the profile says.",
)
@click.option("--seed", type=click.IntRange(min=0), help="For a run that can be repeated.")
@click.option(
    "--profile",
    type=click.Choice(PROFILES),
    help="How much is tried; ci: the same in each run. By default what LIFECYCLE_PROFILE says, else default.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 512),
    default=1,
    show_default=True,
    help="Processes, each with a seed of its own; the first finding ends all.",
)
@click.option(
    "--database",
    metavar="WHERE",
    help="Where findings are shared: redis://HOST:PORT/NUMBER, or a folder. They are tried first.",
)
@click.option(
    "--coverage",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Note which cells were visited; write them to FILE (.json or .md).",
)
@click.option(
    "--out",
    metavar="DIR",
    default="fuzz",
    show_default=True,
    type=click.Path(file_okay=False),
    help="Where a finding is written: a trace, a diagram, a pytest file.",
)
@_capabilities
def fuzz(
    spec: str,
    budget: float | None,
    seed: int | None,
    profile: str | None,
    workers: int,
    database: str | None,
    coverage: str | None,
    out: str,
    **claimed: bool,
) -> None:
    """Search the scheduler that PACKAGE:FACTORY makes for broken invariants.

    FACTORY is called with a lifecycle.testing.world.World and returns the scheduler. What is found is shortened,
    shown as a timeline, and written into DIR: a trace for `lifecycle replay`, a Mermaid sequence diagram, and a
    pytest file that fails for as long as the scheduler is wrong. Exit 0 if nothing was found, 1 if something was,
    2 where there is no such module, factory or scheduler.
    """
    try:
        from ..testing.coverage import CannotRecord
        from ..testing.fuzz import CannotHunt
    except ImportError as error:
        msg = f'fuzz needs {error.name}; install it with: pip install "request-lifecycle[testing]"'
        raise BadInput(msg) from None
    plan = _plan(spec, budget, seed, profile, database, coverage, claimed)
    if coverage is not None and Path(coverage).suffix.lower() not in (".json", ".md"):
        msg = f"--coverage writes .json or .md; got {coverage!r}"
        raise BadInput(msg)
    _writable(out)
    try:
        outcome = _hunt(plan, workers)
    except (CannotHunt, CannotRecord) as error:
        raise BadInput(str(error)) from None
    screen = console()
    if coverage is not None and outcome.coverage is not None:
        _write_coverage(outcome.coverage, Path(coverage), screen)
    if outcome.finding is None:
        done = outcome.tally
        screen.print(
            f"nothing found in {done.examples:,} examples, {done.events:,} events (seed {plan.seed})"
        )
        return
    _tell(outcome.finding, plan, Path(out), screen)
    sys.exit(1)


def _plan(
    spec: str,
    budget: float | None,
    seed: int | None,
    profile: str | None,
    database: str | None,
    coverage: str | None,
    claimed: dict[str, bool],
) -> Plan:
    from ..testing.fuzz import Plan
    from ..testing.profiles import DEFAULT, PROFILES, named

    try:
        chosen = PROFILES[profile or named() or DEFAULT]
    except ValueError as error:
        raise BadInput(str(error)) from None
    if seed is None:
        seed = secrets.randbelow(2**31) if chosen.seed is None else chosen.seed
    return Plan(
        spec=spec,
        capabilities=Capabilities(**claimed),
        seed=seed,
        examples=chosen.examples,
        budget=budget,
        database=database,
        coverage=coverage is not None,
    )


def _writable(out: str) -> None:
    """Look before a long search whether what it finds can be written."""
    there = Path(out)
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK):
        msg = f"cannot write into {out}: {there} is no folder that can be written"
        raise BadInput(msg)


def _hunt(plan: Plan, workers: int) -> Outcome:
    from ..testing.fuzz import Tally, hunt, hunt_in_processes

    sum_, started = Tally(), time.monotonic()
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn() if plan.budget is None else TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[speed]}"),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        total = float(plan.examples * workers) if plan.budget is None else plan.budget
        task = progress.add_task(f"fuzz {plain(plan.spec)}", total=total, speed="")

        def tell(since: Tally) -> None:
            sum_.add(since)
            seconds = max(time.monotonic() - started, 1e-3)
            speed = (
                f"{sum_.examples / seconds:,.0f} examples/s, {sum_.events / seconds:,.0f} events/s"
            )
            done = sum_.examples if plan.budget is None else min(seconds, plan.budget)
            progress.update(task, completed=done, speed=speed)

        if workers == 1:
            return hunt(plan, tell)
        return hunt_in_processes(plan, workers, tell)


def _write_coverage(seen: Coverage, path: Path, screen: Console) -> None:
    screen.print(seen.text())
    as_json = path.suffix.lower() == ".json"
    _save(path, json.dumps(seen.to_json(), indent=1) + "\n" if as_json else seen.markdown())
    screen.print(f"coverage: {path}")


def _tell(found: Finding, plan: Plan, out: Path, screen: Console) -> None:
    from ..testing.regression import regression

    timeline = Timeline()
    run = Replay(watch=timeline.watch)
    for number, line in enumerate(found.trace, 1):
        run.feed(parse(json.dumps(line), number))
    timeline.show(screen, run)
    screen.print(Text(plain(str(found.violation)), style="bold red"))
    if not found.steady:
        said = "It did not break when it was played again: the scheduler does not do the same each time"
        screen.print(Text(f"{said}, so it was not shortened.", style="yellow"))
    stem = str(found.violation.invariant)
    trace = io.StringIO()
    write(found.trace, trace)
    drawn = sequence(found.trace, title=plan.spec, broken=str(found.violation))
    test = regression(found.broken, plan.spec, plan.capabilities, seed=found.seed)
    for name, text, what in (
        (f"{stem}.jsonl", trace.getvalue(), "lifecycle replay reads it"),
        (f"{stem}.mmd", drawn, "a Mermaid sequence diagram"),
        (f"test_{stem}.py", test, "a pytest regression"),
    ):
        _save(out / name, text)
        screen.print(Text(f"{out / name}: {what}"), soft_wrap=True)
    screen.print(Text(f"seed {found.seed}", style="dim"))


def _save(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        msg = f"{path}: {error.strerror or error}"
        raise BadInput(msg) from None
