"""Coverage of behaviour: which cells of a table a run visited, and which events followed one another.

    with Coverage() as seen:
        ...  # whatever fires events: a scheduler, a replay, a test suite
    print(seen.text())

A *cell* is a configuration and a letter of the automaton (:mod:`lifecycle.compile`): what a request looked like
when an event came, and what the event was to it. Line coverage cannot tell them apart, since one look-up serves
them all. Cells are counted by table and by those policies that change what can be reached; under an order of
reasons other than the tiers they are counted together, and not held against anything. A *pair* is two events that
one request was told one after the other, whatever each was to it.

It is switched on by putting a recorder in the place of :meth:`RequestLifecycle.fire`, and off by taking it away.
So a run without it pays nothing, and a compiled build, whose methods cannot be replaced, cannot be watched.

From the command line: ``lifecycle fuzz --coverage FILE``; in pytest: ``--lifecycle-coverage FILE``.
"""

from __future__ import annotations

import threading
import types
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import attrs

from ..compile import (
    AGAIN,
    LAST,
    LETTER_INDEX,
    LETTERS,
    MISS,
    MORE,
    OWN_REASON,
    STEP_EVENTS,
    Automaton,
    Configuration,
    Letter,
    Node,
    compile_table,
)
from ..decode import DECODE
from ..errors import BadDetail, EventError
from ..policy import Policy
from ..prefill import PREFILL
from ..reasons import COMPLETIONS, TIERS, is_earlier
from ..request import RequestLifecycle
from ..spec import Table
from ..vocabulary import ABORT_REASONS, DEFAULT_OP, KV, AbortSource, Event, FinishReason, Kind

REMEMBERED = 4_096
"""Of how many requests the last event is remembered, for pairs; of more, the oldest is forgotten."""

OTHER_ORDERS = "other orders of reasons"

_STEPS = frozenset(STEP_EVENTS)
_DROPS = frozenset({Event.FORWARD_FINISHED, Event.TRANSFER_SUCCEEDED, Event.TRANSFER_DRAINED})
_TAKES = frozenset({Event.FORWARD_LAUNCHED, Event.TRANSFER_POSTED})


class CannotRecord(Exception):
    """Behaviour cannot be watched: another recorder runs, or the build is compiled."""


class Scope(NamedTuple):
    """A table under the policies that decide which cells there are. ``order`` is empty for the tiers."""

    table: str
    abort_after_handoff: str
    on_undrained: str
    report: str
    order: str = ""

    @property
    def policy(self) -> Policy:
        """A policy of this scope."""
        return Policy(
            abort_after_handoff=self.abort_after_handoff,
            on_undrained=self.on_undrained,
            report=self.report,
        )

    def __str__(self) -> str:
        if self.order:
            return f"{self.table}, {self.order}"
        default = Policy()
        own = [
            f"{name}={getattr(self, name)}"
            for name in ("abort_after_handoff", "on_undrained", "report")
            if getattr(self, name) != getattr(default, name)
        ]
        return f"{self.table}, {', '.join(own) or 'default policy'}"


Cell = tuple[Configuration, int]
"""A configuration, and the place of a letter in :data:`lifecycle.compile.LETTERS`."""


def scope_of(automaton: Automaton) -> Scope:
    """Under which scope the cells of an automaton are counted."""
    name, policy = automaton.table.name, automaton.policy
    if policy.precedence != TIERS:
        return Scope(name, "", "", "", OTHER_ORDERS)
    return Scope(
        name, str(policy.abort_after_handoff), str(policy.on_undrained), str(policy.report)
    )


@attrs.frozen
class Row:
    """What a scope comes to: cells visited, cells that can be reached (None: not known), those never visited."""

    scope: Scope
    visited: int
    reachable: int | None
    missing: tuple[Cell, ...] = ()

    @property
    def share(self) -> str:
        """How much was visited, as text."""
        return "" if not self.reachable else f"{100 * self.visited / self.reachable:.1f} %"


class Coverage:
    """What was visited. As a context manager it records; one records at a time.

    Attributes:
        cells: scope -> cell -> how often.
        pairs: (event, next event) -> how often; ``submit`` stands before the first.
    """

    _recording: Coverage | None = None
    _original: Any = None

    def __init__(self) -> None:
        self.cells: dict[Scope, Counter[Cell]] = {}
        self.pairs: Counter[tuple[str, str]] = Counter()
        self._tables: dict[str, Table] = {table.name: table for table in (PREFILL, DECODE)}
        self._last: OrderedDict[int, tuple[RequestLifecycle, str]] = OrderedDict()
        self._automaton: Automaton | None = None
        self._counter: Counter[Cell] = Counter()

    # Recording.

    def __enter__(self) -> Coverage:  # noqa: PYI034  # typing.Self is not in Python 3.10
        """Begin.

        Raises:
            CannotRecord: another recorder runs, or the build is compiled.
        """
        if Coverage._recording is not None:
            msg = "behaviour is being recorded already; one recorder runs at a time"
            raise CannotRecord(msg)
        original: Any = RequestLifecycle.fire
        if not isinstance(original, types.FunctionType):
            msg = "coverage of behaviour needs the plain Python build; this is the compiled one"
            raise CannotRecord(msg)
        Coverage._recording, Coverage._original = self, original
        RequestLifecycle.fire = _recorder(self, original)  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        """End; what was recorded stays."""
        RequestLifecycle.fire = Coverage._original  # type: ignore[method-assign]
        Coverage._recording = Coverage._original = None
        self._last.clear()

    def note(self, request: RequestLifecycle, node: Node, letter: Letter) -> None:
        """A request in `node` was fired `letter`."""
        automaton = request.automaton
        if automaton is not self._automaton:
            self._automaton = automaton
            self._tables.setdefault(automaton.table.name, automaton.table)
            self._counter = self.cells.setdefault(scope_of(automaton), Counter())
        self._counter[node.configuration, LETTER_INDEX[letter]] += 1

    def follow(self, request: RequestLifecycle, event: str) -> None:
        """`event` is the next that a request was told."""
        key = id(request)  # kept with the request itself, so no other can have it
        _, before = self._last.pop(key, (request, str(Event.SUBMIT)))
        self.pairs[before, event] += 1
        self._last[key] = (request, event)
        if len(self._last) > REMEMBERED:
            self._last.popitem(last=False)

    # Between processes.

    def dump(self) -> dict[str, Any]:
        """Everything as plain lists, words and numbers; :meth:`merge` takes it."""
        return {
            "cells": [
                [list(scope), _plain(configuration), letter, times]
                for scope, cells in self.cells.items()
                for (configuration, letter), times in cells.items()
            ],
            "pairs": [[*pair, times] for pair, times in self.pairs.items()],
        }

    def merge(self, dumped: Mapping[str, Any]) -> None:
        """Add what another process recorded."""
        for scope, configuration, letter, times in dumped["cells"]:
            cells = self.cells.setdefault(Scope(*scope), Counter())
            cells[_configuration(configuration), letter] += times
        for before, after, times in dumped["pairs"]:
            self.pairs[before, after] += times

    # What it comes to.

    def rows(self) -> list[Row]:
        """One for each scope, in order."""
        rows = []
        for scope in sorted(self.cells):
            visited, table = self.cells[scope], self._tables.get(scope.table)
            if scope.order or table is None:
                rows.append(Row(scope, len(visited), None))
                continue
            there = reachable(compile_table(table, scope.policy))
            missing = sorted(there.difference(visited), key=_order)
            rows.append(Row(scope, len(there.intersection(visited)), len(there), tuple(missing)))
        return rows

    @property
    def percent(self) -> float:
        """How much of what can be reached was visited, over all scopes; 0 where nothing was."""
        rows = [row for row in self.rows() if row.reachable is not None]
        total = sum(row.reachable or 0 for row in rows)
        return 100 * sum(row.visited for row in rows) / total if total else 0.0

    def to_json(self) -> dict[str, Any]:
        """Everything, with names, as one object."""
        return {
            "percent": round(self.percent, 2),
            "tables": [
                {
                    "table": row.scope.table,
                    "policy": str(row.scope).partition(", ")[2],
                    "visited": row.visited,
                    "reachable": row.reachable,
                    "missing": [name_of(cell) for cell in row.missing],
                    "cells": {
                        name_of(cell): self.cells[row.scope][cell]
                        for cell in sorted(self.cells[row.scope], key=_order)
                    },
                }
                for row in self.rows()
            ],
            "pairs": {f"{a} > {b}": times for (a, b), times in sorted(self.pairs.items())},
        }

    def markdown(self) -> str:
        """Tables in Markdown: cells by scope, what is missing, pairs."""
        rows = self.rows()
        lines = ["# Coverage of behaviour", "", "| table and policy | visited | reachable | |"]
        lines.append("|---|---:|---:|---:|")
        for row in rows:
            of = "" if row.reachable is None else row.reachable
            lines.append(f"| {row.scope} | {row.visited} | {of} | {row.share} |")
        for row in rows:
            if row.missing:
                lines += ["", f"## Never visited: {row.scope}", ""]
                lines += [f"- `{name_of(cell)}`" for cell in row.missing]
        events = [str(event) for event in Event]
        lines += ["", "## Pairs of consecutive events", "", "First down, next across.", ""]
        lines += [f"| | {' | '.join(events[1:])} |", "|---|" + "---:|" * len(events[1:])]
        for before in events:
            counts = (self.pairs.get((before, after), 0) for after in events[1:])
            lines.append(f"| {before} | {' | '.join(str(n) if n else '' for n in counts)} |")
        return "\n".join(lines) + "\n"

    def text(self, missing: int = 8) -> str:
        """For a terminal: a line a scope, with some of the cells that are missing."""
        lines = []
        for row in self.rows():
            of = "" if row.reachable is None else f" of {row.reachable}"
            lines.append(f"{row.scope}: {row.visited}{of} cells {row.share}".rstrip())
            lines += [f"    never: {name_of(cell)}" for cell in row.missing[:missing]]
            if len(row.missing) > missing:
                lines.append(f"    ... and {len(row.missing) - missing} more")
        possible = len(Event) * (len(Event) - 1)
        lines.append(f"pairs of consecutive events: {len(self.pairs)} of {possible}")
        return "\n".join(lines)


def name_of(cell: Cell) -> str:
    """A cell in words."""
    configuration, letter = cell
    return f"{configuration} x {LETTERS[letter]}"


def _order(cell: Cell) -> tuple[str, int]:
    return str(cell[0]), cell[1]


def _plain(c: Configuration) -> list[Any]:
    reason = None if c.reason is None else str(c.reason)
    return [str(c.state), reason, c.steps, c.ops, str(c.kv), c.reported]


def _configuration(plain: Iterable[Any]) -> Configuration:
    state, reason, steps, ops, kv, reported = plain
    reason = None if reason is None else FinishReason(reason)
    return Configuration(state, reason, steps, ops, KV(kv), reported)


# What an event was, told from what was outstanding before and after it, and not by the rules that `fire` follows.

_NAMES = (
    "step", "op", "pages", "source", "cause", "reason", "position", "attempt", "message", "status",
)  # fmt: skip


@attrs.frozen
class _Before:
    """A request as it stood before an event."""

    node: Node
    attempt: int
    steps: tuple[int, ...]
    ops: tuple[str, ...]
    older: tuple[Any, ...]
    position: int | None


def _recorder(seen: Coverage, original: Any) -> Any:
    inside = threading.local()  # an event that `fire` fires on behalf of another counts once

    def fire(request: RequestLifecycle, event: str, *given: Any, **details: Any) -> Any:
        if getattr(inside, "on", False):
            return original(request, event, *given, **details)
        inside.on = True
        before = _Before(
            request._node, request.attempt, request._steps, request._ops, request._older,
            request._details.position,
        )  # fmt: skip
        known = True
        try:
            return original(request, event, *given, **details)
        except EventError as error:
            known = not isinstance(error, BadDetail)
            raise
        except BaseException:
            known = False
            raise
        finally:
            inside.on = False
            if known:
                word, named = Event(event), dict(zip(_NAMES, given, strict=False), **details)
                seen.follow(request, str(word))
                letter = _letter(request, word, named, before)
                if letter is not None:
                    seen.note(request, before.node, letter)

    return fire


def _letter(
    request: RequestLifecycle, event: Event, details: Mapping[str, Any], before: _Before
) -> Letter | None:
    """What the event was to the newest attempt; None if it was about an older one."""
    attempt = details.get("attempt")
    if event is not Event.ABORT and attempt is not None and attempt != before.attempt:
        return None
    if event in _DROPS or event in _TAKES:
        return _of_claims(request, event, details, before)
    if event is Event.ABORT:
        return Letter(event, offers=ABORT_REASONS[AbortSource(details.get("source") or "client")])
    if event is Event.COMPLETE:
        offered, stands = FinishReason(details["reason"]), before.node.reason
        early = stands is not None and is_earlier(
            offered, details.get("position"), stands, before.position
        )
        return Letter(event, offers=offered, earlier=early)
    op = details.get("op")
    if event is Event.TRANSFER_FAILED and op is not None and op not in before.ops:
        of_older = attempt is None and any(op in old.ops for old in before.older)
        return None if of_older else Letter(event, after=MISS)
    letter = Letter(event, offers=OWN_REASON.get(event))
    if event is Event.DRAIN_TIMEOUT and before.older and attempt is None:
        cell = before.node.cell(letter)
        if cell is None or cell.kind in (Kind.LATE, Kind.ILLEGAL):
            return None  # it was for the older ones
    return letter


def _of_claims(
    request: RequestLifecycle, event: Event, details: Mapping[str, Any], before: _Before
) -> Letter | None:
    of_steps = event in _STEPS
    held: tuple[Any, ...] = before.steps if of_steps else before.ops
    if event in _TAKES:
        name = details.get("step") if of_steps else details.get("op") or DEFAULT_OP
        if name in held:
            return Letter(event, after=AGAIN)
        if of_steps and any(name in old.steps for old in before.older):
            return None
        return Letter(event)
    if request._older != before.older:
        return None  # an older attempt's claim was dropped
    left: tuple[Any, ...] = request._steps if of_steps else request._ops
    if left == held:
        return Letter(event, after=MISS)
    return Letter(event, after=MORE if left else LAST)


# What there is to visit.


def reachable(automaton: Automaton) -> frozenset[Cell]:
    """The cells that a request can come to, counting its steps and ops up to two.

    The automaton has a cell for "others left" wherever something is outstanding; where a table never lets two be
    outstanding, no request comes there.
    """
    found: set[Cell] = set()
    start = (automaton.start, 0, 0)
    seen, front = {start}, deque([start])
    while front:
        node, steps, ops = front.popleft()
        for place, (letter, cell) in enumerate(zip(LETTERS, node.cells, strict=True)):
            if cell is None:
                continue
            held = steps if letter.event in _STEPS else ops
            if (letter.after is MORE and held < 2) or (letter.after in (LAST, AGAIN) and not held):
                continue
            if letter.earlier and node.reason not in COMPLETIONS:
                continue  # a completion stands before another one only where another one is recorded
            found.add((node.configuration, place))
            if cell.to is None:
                continue
            for then in _after(letter, cell.to, steps, ops):
                if then not in seen:
                    seen.add(then)
                    front.append(then)
    return frozenset(found)


def _after(letter: Letter, to: Node, steps: int, ops: int) -> list[tuple[Node, int, int]]:
    """`to`, with how many steps and ops can be outstanding there; two stands for more."""

    def counts(now: int, outstanding: bool, mine: bool) -> tuple[int, ...]:
        if not outstanding:
            return (0,)
        if mine and letter.after is MORE:
            return (1, 2)  # two or more were outstanding
        if mine and letter.event in _TAKES:
            return (min(now + 1, 2),)
        return (now or 1,)  # `prefill_finished` and the decode leg's `admit` open one

    of_steps = letter.event in _STEPS
    of_ops = not of_steps and (letter.event in _TAKES or letter.event in _DROPS)
    there = to.configuration
    return [
        (to, s, o)
        for s in counts(steps, there.steps, of_steps)
        for o in counts(ops, there.ops, of_ops)
    ]
