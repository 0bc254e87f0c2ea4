"""A replay as a person reads it: request by request, event by event (extra ``[cli]``).

A :class:`Timeline` watches a :class:`lifecycle.replay.Replay` and keeps a bounded part of what it sees: for each
request its first and last events, and of the requests those with something wrong before those without. What is
left out is counted and said.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from typing import Literal

import attrs
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .compile import Effect
from .reasons import WIRE
from .replay import Replay, Seen
from .request import RequestLifecycle

KEPT_REQUESTS = 40
KEPT_FIRST, KEPT_LAST = 30, 30

STATE_STYLES = {
    "queued": "cyan",
    "prefilling": "blue",
    "transferring": "magenta",
    "grammar_failed": "yellow",
    "aborted": "yellow",
    "done": "green",
}
OUTCOME_STYLES = {"late": "dim", "illegal": "bold red", "unknown": "dim"}


@attrs.frozen
class Entry:
    """One line of a request's timeline, as it stood right after the event."""

    line: int
    event: str
    outcome: str
    state: str
    claims: str
    reason: str
    effects: str
    why: str


@attrs.define
class Story:
    """What is kept of one life."""

    request: RequestLifecycle
    first: list[Entry] = attrs.field(factory=list)
    last: deque[Entry] = attrs.field(factory=lambda: deque(maxlen=KEPT_LAST))
    left_out: int = 0
    trouble: bool = False

    def add(self, entry: Entry) -> None:
        """Keep an entry, or count the one that it pushes out."""
        if len(self.first) < KEPT_FIRST:
            self.first.append(entry)
            return
        if len(self.last) == KEPT_LAST:
            self.left_out += 1
        self.last.append(entry)


class Timeline:
    """Keeps what is worth showing of a replay. Pass :meth:`watch` to the replay.

    Args:
        rids: show these requests only; all by default.
        keep: how many lives are shown at most.
    """

    def __init__(self, rids: Iterable[str] = (), keep: int = KEPT_REQUESTS) -> None:
        self.rids, self.keep = frozenset(rids), keep
        self.strangers: list[Entry] = []
        self._stories: dict[tuple[str, int], Story] = {}
        self._calm: deque[tuple[str, int]] = deque()

    def watch(self, seen: Seen) -> None:
        """Note one event of a replay."""
        if self.rids and seen.event.rid not in self.rids:
            return
        if seen.request is None:
            if len(self.strangers) < self.keep:
                self.strangers.append(_entry(seen))
            return
        story = self._story(seen.request)
        if story is None and seen.outcome in ("late", "illegal"):
            story = self._make_room(seen.request)
        if story is not None:
            story.trouble |= seen.outcome in ("late", "illegal")
            story.add(_entry(seen))

    def _story(self, request: RequestLifecycle) -> Story | None:
        key = (request.rid, request.incarnation)
        story = self._stories.get(key)
        if story is None and len(self._stories) < self.keep:
            story = self._stories[key] = Story(request)
            self._calm.append(key)
        return story

    def _make_room(self, request: RequestLifecycle) -> Story | None:
        """A request with trouble takes the place of one without."""
        while self._calm:
            key = self._calm.popleft()
            if not self._stories[key].trouble:
                del self._stories[key]
                story = Story(request)
                self._stories[request.rid, request.incarnation] = story
                return story
        return None

    # Showing it.

    def show(self, console: Console, run: Replay) -> None:
        """Print the stories, what stands out, and the totals."""
        for story in self._stories.values():
            _show_story(console, story)
        if self.strangers:
            console.print(Text("events for requests that the trace never submitted", style="bold"))
            console.print(_grid(self.strangers))
            console.print()
        _show_violations(console, run)
        console.print(_totals(run, len(self._stories)))


def _entry(seen: Seen) -> Entry:
    request = seen.request
    notes = [
        value if name in ("op", "source", "cause", "reason") else f"{name}={json.dumps(value)}"
        for name, value in seen.event.details.items()
    ]
    event = str(seen.event.event) + (f"({', '.join(map(str, notes))})" if notes else "")
    state = claims = reason = ""
    if request is not None:
        state, reason = str(request.state), str(request.reason or "")
        claims = ", ".join(
            [
                *request.claims,
                *(f"{claim}@{old.attempt}" for old in request.draining for claim in old.claims),
            ]
        )
    return Entry(
        line=seen.event.line,
        event=event,
        outcome=seen.outcome,
        state=state,
        claims=claims,
        reason=reason,
        effects=", ".join(_effect(effect, request) for effect in seen.effects),
        why=seen.why,
    )


def _effect(effect: Effect, request: RequestLifecycle | None) -> str:
    """The effect's kind, with the attempt if that is not the newest."""
    if request is None or effect.attempt == request.attempt:
        return str(effect.kind)
    return f"{effect.kind}@{effect.attempt}"


def plain(text: str) -> str:
    """`text` as a terminal may show it: control characters and lone surrogates escaped."""
    return "".join(
        char if char.isprintable() and not 0xD800 <= ord(char) < 0xE000 else repr(char)[1:-1]
        for char in text
    )


def _show_story(console: Console, story: Story) -> None:
    request = story.request
    head = Text("request ", style="bold")
    head.append(plain(request.rid), style="bold cyan")
    if request.incarnation > 1:
        head.append(f" (life {request.incarnation})")
    head.append(f"  {request.state}", style=STATE_STYLES.get(request.state, ""))
    if request.reason is not None:
        outcome = request.outcome(WIRE)
        head.append(f"  {outcome.reason} -> {outcome.wire}/{outcome.status}")
    head.append(f"  kv {request.kv}")
    if request.attempt:
        head.append(f"  attempt {request.attempt}")
    if request.late:
        head.append(f"  {request.late} late", style="dim")
    console.print(head)
    console.print(_grid([*story.first, *story.last], story.left_out))
    console.print()


def _grid(entries: list[Entry], left_out: int = 0) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("line", "event", "state", "claims", "reason", "effects"):
        wraps = name in ("claims", "effects")
        justify: Literal["left", "right"] = "right" if name == "line" else "left"
        grid.add_column(
            name,
            justify=justify,
            overflow="fold",
            no_wrap=not wraps,
            min_width=18 if wraps else None,
        )
    for number, entry in enumerate(entries):
        if left_out and number == KEPT_FIRST:
            grid.add_row("", Text(f"... {left_out:,} events left out ...", style="dim"))
        style = OUTCOME_STYLES.get(entry.outcome, "")
        mark = entry.effects
        if entry.outcome in OUTCOME_STYLES:
            mark = f"{entry.outcome}: {entry.why}" if entry.why else entry.outcome
        grid.add_row(
            str(entry.line),
            Text(plain(entry.event), style=style),
            Text(entry.state, style=style or STATE_STYLES.get(entry.state, "")),
            Text(plain(entry.claims), style=style),
            Text(entry.reason, style=style),
            Text(plain(mark), style=style or "bold"),
        )
    return grid


def _show_violations(console: Console, run: Replay) -> None:
    for number, broken in enumerate(run.violations):
        if number == KEPT_REQUESTS:
            left = len(run.violations) - KEPT_REQUESTS
            console.print(Text(f"... {left:,} violations left out ...", style="dim"))
            break
        text = f"line {broken['line']}: {broken['invariant']} is broken for request "
        text += f"{plain(broken['rid'])}: {plain(broken['what'])}"
        console.print(Text(text, style="bold red"))


def _totals(run: Replay, shown: int) -> Text:
    lives = run.lives
    parts = [
        f"{run.events:,} events",
        f"{lives:,} {'request' if lives == 1 else 'requests'}"
        + (f" ({shown} shown; name others with --rid)" if shown < lives else ""),
    ]
    text = Text(", ".join(parts), style="bold")
    for count, word in (
        (len(run.illegal), "illegal"),
        (len(run.violations), "violations"),
        (run.requests.unknown.total(), "unknown"),
        (run.requests.late.total(), "late"),
    ):
        bad = count and word in ("illegal", "violations")
        text.append(f", {count:,} {word}", style="bold red" if bad else "")
    return text
