"""The shortest trace that still goes wrong in the same way: lines are left out as long as it does."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ..policy import Policy
from ..replay import Replay, Seen
from ..spec import Table
from ..trace import TraceEvent, parse
from .checker import Group, Line


def shortened(group: Group, policy: Policy, table: Table) -> list[Line]:
    """The lines of `group`'s excerpt that are needed; all of them where some had been forgotten.

    The last line is the one that is wrong. Costs a replay for each line, and again while lines go.
    """
    lines = list(group.excerpt)
    if not group.whole or not _wrong(lines, group, policy, table):
        return lines
    shorter = True
    while shorter:
        shorter = False
        for place in range(len(lines) - 2, -1, -1):
            tried = lines[:place] + lines[place + 1 :]
            if _wrong(tried, group, policy, table):
                lines, shorter = tried, True
    return lines


def replayed(lines: Sequence[Line], policy: Policy, table: Table, watch: object = None) -> Replay:
    """A replay of an excerpt; its events bear the numbers that their lines have in the log."""
    run = Replay(policy, table=table, watch=watch)  # type: ignore[arg-type]  # None, or what a replay takes
    for line in lines:
        event = parse(line.text)
        assert isinstance(event, TraceEvent)
        run.feed(attrs.evolve(event, line=line.place.line))
    return run


def _wrong(lines: Sequence[Line], group: Group, policy: Policy, table: Table) -> bool:
    """Whether the last line goes wrong as the group says, and no line before it does."""
    seen: list[Seen] = []
    run = replayed(lines, policy, table, seen.append)
    if group.what and len(run.violations):
        broken = list(run.violations)
        return broken[-1]["invariant"] == group.invariant and not len(run.illegal)
    illegal = list(run.illegal)
    return (
        len(illegal) == 1
        and seen[-1].outcome == "illegal"
        and (illegal[0]["state"], illegal[0]["event"]) == (group.state, group.event)
        and seen[-1].why == group.what
    )
