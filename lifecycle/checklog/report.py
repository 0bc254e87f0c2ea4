"""What a check found, for a person: groups by invariant and cell, an excerpt of each, and what is damaged."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from ..timeline import Timeline, _show_story, plain
from .checker import Checker, Group
from .excerpt import replayed, shortened

SHOWN_DAMAGE = 10


def show(console: Console, checker: Checker, seconds: float, *, most: int = 20) -> None:
    """Print it all; of `most` groups, the commonest first, with their excerpts."""
    ordered = sorted(checker.groups.values(), key=lambda group: -group.count)
    for group in ordered[:most]:
        _show_group(console, checker, group)
    if len(ordered) > 1:
        _show_overview(console, ordered)
    if len(ordered) > most:
        console.print(Text(f"... {len(ordered) - most} more groups; --json has all", style="dim"))
    _show_damage(console, checker)
    _show_totals(console, checker, seconds)


def _cell(group: Group) -> str:
    return f"{group.state or 'unknown'} + {group.event}"


def _show_group(console: Console, checker: Checker, group: Group) -> None:
    times = "once" if group.count == 1 else f"{group.count:,} times"
    head = Text(group.invariant, style="bold red")
    head.append(f"  {_cell(group)}", style="bold")
    head.append(f"  {times}, first at {plain(str(group.first))}")
    console.print(head)
    console.print(Text(f"  {plain(group.what)}"))
    lines = shortened(group, checker.policy, checker.table)
    timeline = Timeline()
    replayed(lines, checker.policy, checker.table, timeline.watch)
    paths = sorted({line.place.path for line in lines})
    note = f"  shortest excerpt, lines of {plain(', '.join(paths))}"
    if not group.whole:
        note += "; some of the request's lines are left out, so it may not replay"
    console.print(Text(note, style="dim"))
    for story in timeline._stories.values():
        _show_story(console, story)
    for entry in timeline.strangers:
        console.print(Text(f"  line {entry.line}: {plain(entry.event)}: {plain(entry.why)}"))


def _show_overview(console: Console, groups: list[Group]) -> None:
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    grid.add_column("times", justify="right")
    for name in ("invariant", "cell", "first at"):
        grid.add_column(name, no_wrap=True)
    for group in groups:
        grid.add_row(f"{group.count:,}", group.invariant, _cell(group), plain(str(group.first)))
    console.print(grid)
    console.print()


def _show_damage(console: Console, checker: Checker) -> None:
    for damage in checker.damage[:SHOWN_DAMAGE]:
        console.print(Text(plain(str(damage)), style="yellow"))
    if checker.damaged > SHOWN_DAMAGE:
        more = checker.damaged - SHOWN_DAMAGE
        console.print(Text(f"... {more:,} more damaged places", style="yellow"))


def _show_totals(console: Console, checker: Checker, seconds: float) -> None:
    found = checker.result()
    rate = checker.lines / seconds if seconds else 0.0
    text = Text(
        f"{checker.lines:,} lines, {checker.events:,} events, {checker.lives:,} requests "
        f"({found['open']:,} not ended), {len(checker.groups)} kinds of violation",
        style="bold",
    )
    text.append(
        f", {checker.violations:,} violations", style="bold red" if checker.violations else "bold"
    )
    text.append(f", {found['late']:,} late, {found['unknown']:,} unknown")
    if checker.lost:
        text.append(f", {checker.lost:,} lines not readable", style="bold yellow")
    if checker.let_go:
        text.append(f", {checker.let_go:,} requests let go", style="yellow")
    text.append(f"  ({seconds:.1f} s, {rate:,.0f} lines/s)", style="dim")
    console.print(text)
