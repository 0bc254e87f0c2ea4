"""Follows the requests of a log, and groups what is wrong with them.

What is found is what :mod:`lifecycle.replay` would find: illegal events, each a cell of the table, and broken
invariants. A request remembers its own lines (:data:`KEPT_LINES` at most) until it has ended and `keep_done`
others after it, so that a group can show how one of its requests got there.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from typing import Any, Final

import attrs

from ..blame import broken_by
from ..compile import Effect
from ..errors import EventError, TraceError
from ..policy import DEFAULT_POLICY, Policy
from ..prefill import PREFILL
from ..request import RequestLifecycle
from ..spec import Table
from ..table import RequestTable
from ..trace import _FIELDS, TracePolicy, _no_constant, parse
from ..vocabulary import EffectKind, Event, Invariant
from .source import Damage, Place

KEPT_LINES: Final = 64
"""How many lines of its own a request remembers, polls that are pending left out."""
KEPT_DAMAGE: Final = 100
"""How many damaged places are told; all are counted."""
CLOCK_SLACK: Final = 1.0
"""Seconds by which a clock may run back before it is called a jump: threads write in no exact order."""

# What `json.loads` calls; it stops at the end of the object, where lines that ran together go on.
_scan = json.JSONDecoder(parse_constant=_no_constant).raw_decode
_EVENTS: Final[Mapping[str, Event]] = {event.value: event for event in Event}
_COUNTS: Final = frozenset({"step", "position", "attempt"})
_PENDING: Final = frozenset({"transfer_pending", "grammar_ready"})


@attrs.frozen
class Line:
    """One line of a log, as it stands there."""

    place: Place
    text: str


@attrs.define
class Group:
    """Everything that went wrong in one way: an invariant, and the cell where it broke.

    Attributes:
        count: how often.
        first: where first, and for which request.
        excerpt: the lines of the request that got there by the fewest.
        whole: whether these are all its lines; if not, it cannot be replayed.
    """

    invariant: str
    state: str | None
    event: str
    what: str
    first: Place
    rid: str
    excerpt: list[Line]
    whole: bool
    count: int = 1


class _Life:
    """The lines of a request that is remembered."""

    __slots__ = ("left_out", "lines", "request")

    def __init__(self, request: RequestLifecycle | None) -> None:
        self.request = request
        self.lines: list[tuple[str, int, str]] = []
        self.left_out = False


class Checker:
    """A check in progress: feed it lines.

    Args:
        policy: what holds where a log does not say it.
        table: the declared table.
        keep_open: how many requests are followed at a time; the oldest are let go, and counted.
        keep_done: how many that have ended are remembered.

    Attributes:
        lines, events: how many were read.
        lives, ended: how many requests began, and ended.
        groups: what is wrong, by (invariant, state, event).
        damage, damaged, lost: the first damaged places, how many there were, and how many of them lost something.
    """

    def __init__(
        self,
        policy: Policy = DEFAULT_POLICY,
        *,
        table: Table = PREFILL,
        keep_open: int = 100_000,
        keep_done: int = 10_000,
    ) -> None:
        self.table, self.keep_open, self.keep_done = table, keep_open, keep_done
        self.lines = self.events = self.lives = self.ended = self.let_go = 0
        self.groups: dict[tuple[str, str | None, str], Group] = {}
        self.damage: list[Damage] = []
        self.damaged = self.lost = self.jumps = 0
        self.unknown: Counter[str] = Counter()
        self.late: Counter[str] = Counter()
        self._began = False
        self._latest: float | None = None
        self._start(policy)

    def _start(self, policy: Policy) -> None:
        self.policy = policy
        self.requests = RequestTable(
            policy, table=self.table, keep_done=None, abort_memory=None, journal=False
        )
        self._open: OrderedDict[tuple[str, int], _Life] = OrderedDict()
        self._done: deque[tuple[str, int]] = deque()
        self._quarantined: OrderedDict[str, _Life] = OrderedDict()

    @property
    def open(self) -> int:
        """How many requests that are followed have not ended."""
        return len(self._open) - len(self._done)

    # Reading.

    def feed(self, path: str, number: int, texts: list[str]) -> None:
        """Take lines of `path`, the first of which has this `number`."""
        newest, table_fire, open_, scan = (
            self.requests._newest,
            self.requests.fire,
            self._open,
            _scan,
        )
        for number, text in enumerate(texts, number):  # noqa: B020, PLR1704  # the number runs on
            try:
                fields, end = scan(text, 0)
                if end != len(text) or text.count(":") != len(fields):
                    fields = self._parsed(path, number, text)
                event, rid = _EVENTS[fields.pop("event")], fields.pop("rid")
                t = fields.pop("t", None)
                if fields:
                    for name, value in fields.items():
                        if name in _COUNTS and type(value) is int and value >= 0:
                            continue
                        if _FIELDS[name](value) is not None:
                            fields = self._parsed(path, number, text)  # it says what is wrong
                            break
                # An infinite float is a number, too, to JSON; its difference to itself is none.
                timed = t is None or (type(t) is float and t - t == 0.0)
                if not timed and _FIELDS["t"](t) is not None:
                    self._parsed(path, number, text)
                if type(rid) is not str:
                    self._parsed(path, number, text)
                if event == "complete" or (event == "grammar_failed" and "cause" in fields):
                    self._parsed(path, number, text)
            except _Other:
                continue
            except (KeyError, AttributeError, TypeError, StopIteration, ValueError, RecursionError):
                self._strange(path, number, text)
                continue
            self.events += 1
            if t is not None:
                if self._latest is None or t > self._latest:
                    self._latest = t
                elif t < self._latest - CLOCK_SLACK:
                    self._jump(path, number, t)
            request = newest.get(rid)
            if request is None or event == "submit" or "incarnation" in fields:
                self._rare(path, number, text, event, rid, fields)
                continue
            life = open_[rid, request.incarnation]
            if event not in _PENDING:
                lines = life.lines
                lines.append((path, number, text))
                if len(lines) > KEPT_LINES:
                    del lines[KEPT_LINES // 2]
                    life.left_out = True
            try:
                effects = table_fire(rid, event, **fields)
            except EventError as error:
                self._refused(life, path, number, text, error)
                continue
            if effects or event == "admit":
                self._followed(life, path, number, event, fields, effects)
        self.lines += len(texts)

    def _parsed(self, path: str, number: int, text: str) -> dict[str, Any]:
        """The line as :mod:`lifecycle.trace` reads it; it is exact, and says what is wrong."""
        try:
            line = parse(text, number)
        except TraceError as error:
            self._broken_line(path, number, text, error.message)
            raise _Other from None
        if isinstance(line, TracePolicy):
            self._policy(path, number, line.policy)
            raise _Other
        return line.to_json()

    def _strange(self, path: str, number: int, text: str) -> None:
        """A line that the quick way could not read."""
        try:
            if not text.strip():
                return
            if '"policy"' in text:
                self._policy_line(path, number, text)
                return
            fields = self._parsed(path, number, text)
        except _Other:
            return
        self.feed(
            path, number, [json.dumps(fields)]
        )  # pragma: no cover  # the two readers disagree
        self.lines -= 1

    def _policy_line(self, path: str, number: int, text: str) -> None:
        try:
            line = parse(text, 1)  # in a log that was put together, it may stand anywhere
        except TraceError as error:
            self._broken_line(path, number, text, error.message)
            return
        if isinstance(line, TracePolicy):
            self._policy(path, number, line.policy)

    def _policy(self, path: str, number: int, policy: Policy) -> None:
        if policy == self.policy:
            self._began = True
            return
        if self._began or self.events:
            what = f"the policy changes here; {self.open:,} requests that had not ended are let go"
            self.note(Damage(Place(path, number), what, lost=False))
            self.let_go += self.open
        self._began = True
        self._start(policy)

    def _broken_line(self, path: str, number: int, text: str, what: str) -> None:
        """Nothing that is readable is lost: of lines that ran into one another, the whole ones are taken."""
        found: list[str] = []
        at = text.find("{", 1)
        while at > 0 and len(found) < 16:
            try:
                fields, end = _scan(text, at)
                if isinstance(fields, dict) and "event" in fields:
                    parse(text[at:end])
                    found.append(text[at:end])
                    at = text.find("{", end)
                    continue
            except (StopIteration, ValueError, RecursionError):
                pass
            at = text.find("{", at + 1)
        if text.startswith("{") and not found:
            try:
                fields, end = _scan(text, 0)
                if isinstance(fields, dict) and "event" in fields and end < len(text):
                    parse(text[:end])
                    found.append(text[:end])
            except (StopIteration, ValueError, RecursionError):
                pass
        if found:
            saved = f"{len(found)} whole {'event' if len(found) == 1 else 'events'} of it taken"
            what = f"lines ran into one another ({what}); {saved}"
        self.note(Damage(Place(path, number), what))
        if found:
            self.feed(path, number, found[:1])
            for each in found[1:]:
                self.feed(path, number, [each])
            self.lines -= len(found)

    def cut(self, path: str, number: int, text: str) -> None:
        """Take the last line of a file that does not end in a line's end: it may be whole, or cut short."""
        before = self.damaged
        self.feed(path, number, [text])
        if self.damaged > before and self.damage and len(self.damage) < KEPT_DAMAGE:
            what = f"the last line was cut short: {text[:40]!r}"
            self.damage[-1] = Damage(Place(path, number), what, lost=False)
            self.lost -= 1

    def note(self, damage: Damage) -> None:
        """Count a damaged place, and keep it if it is one of the first."""
        self.damaged += 1
        self.lost += damage.lost
        if len(self.damage) < KEPT_DAMAGE:
            self.damage.append(damage)

    def _jump(self, path: str, number: int, t: float) -> None:
        self.jumps += 1
        assert self._latest is not None
        if self.jumps <= 3:
            what = f"the clock jumps back by {self._latest - t:,.3f} s; the order of lines is what counts"
            self.note(Damage(Place(path, number), what, lost=False))
        self._latest = t

    # Following.

    def _rare(
        self, path: str, number: int, text: str, event: Event, rid: str, fields: dict[str, Any]
    ) -> None:
        """A submit, an event that names its life, or one for nobody who is known."""
        table, incarnation = self.requests, fields.pop("incarnation", None)
        if event == "submit":
            former = table._newest.get(rid)
            following = 1 if former is None else former.incarnation + 1
            if incarnation is not None and incarnation != following:
                life = self._open[rid, former.incarnation] if former is not None else _Life(None)
                life.left_out = True  # its lines alone do not tell which life is meant
                why = f"the next life of this rid is number {following}"
                state = None if former is None else former.state
                error = EventError(why, rid=rid, state=state, event=event, why=why)
                life.lines.append((path, number, text))
                self._refused(life, path, number, text, error)
                return
            try:
                effects = table.submit(rid)
            except EventError as error:
                assert former is not None
                life = self._open[rid, former.incarnation]
                life.lines.append((path, number, text))
                self._refused(life, path, number, text, error)
                return
            self.lives += 1
            request = table[rid]
            life = self._open[rid, request.incarnation] = _Life(request)
            life.lines.append((path, number, text))
            # What its lines alone do not tell: an abort that came before, or that it is not the first life.
            life.left_out = bool(effects) or request.incarnation > 1
            if effects:
                self._followed(life, path, number, event, fields, effects)
            if len(self._open) - len(self._done) > self.keep_open:
                self._let_go()
            return
        request_or_none = (
            table._newest.get(rid) if incarnation is None else table.life(rid, incarnation)
        )
        if request_or_none is None:
            life = _Life(None)
            try:
                table.fire(rid, event, incarnation=incarnation, **fields)
            except EventError as error:
                life.lines.append((path, number, text))
                self._refused(life, path, number, text, error)
            return
        life = self._open[rid, request_or_none.incarnation]
        life.lines.append((path, number, text))
        try:
            effects = table.fire(rid, event, incarnation=incarnation, **fields)
        except EventError as error:
            self._refused(life, path, number, text, error)
            return
        self._followed(life, path, number, event, fields, effects)

    def _followed(
        self,
        life: _Life,
        path: str,
        number: int,
        event: str,
        fields: dict[str, Any],
        effects: tuple[Effect, ...],
    ) -> None:
        request = life.request
        assert request is not None
        for effect in effects:
            if effect.kind is EffectKind.QUARANTINE_KV:
                for page in _pages(life, effect.attempt):
                    self._quarantined[page] = life
                    if len(self._quarantined) > self.keep_done:
                        self._quarantined.popitem(last=False)
            elif effect.kind is EffectKind.RELEASE_KV and event == Event.DRAIN_TIMEOUT:
                what = f"attempt {effect.attempt} is released while something may still touch it"
                self._found(
                    life, path, number, Invariant.NO_FREE_IN_FLIGHT, request.state, event, what
                )
        pages = fields.get("pages")
        if self._quarantined and event == Event.ADMIT and isinstance(pages, list):
            for page in pages:
                if (owner := self._quarantined.get(page)) is not None:
                    assert owner.request is not None
                    what = f"page {page!r} is in quarantine since request {owner.request.rid!r}"
                    both = _Life(request)
                    both.lines = sorted([*owner.lines, *life.lines], key=lambda line: line[:2])
                    both.left_out = owner.left_out or life.left_out
                    self._found(
                        both, path, number, Invariant.NO_FREE_IN_FLIGHT, request.state, event, what
                    )
        if effects and request.over:
            self._end(life)

    def _end(self, life: _Life) -> None:
        request = life.request
        assert request is not None
        self.ended += 1
        self._done.append((request.rid, request.incarnation))
        if len(self._done) > self.keep_done:
            key = self._done.popleft()
            gone = self._open.pop(key, None)
            if gone is not None and gone.request is not None:
                self.requests.forget(gone.request)

    def _let_go(self) -> None:
        """The oldest request that has not ended is let go: there are too many."""
        for key, life in self._open.items():
            request = life.request
            if request is not None and not request.over:
                del self._open[key]
                self.requests._newest.pop(key[0], None)
                self.requests._former.pop(key, None)
                self.let_go += 1
                return

    def _refused(self, life: _Life, path: str, number: int, text: str, error: EventError) -> None:
        request = life.request
        event, state = str(error.event), None if error.state is None else str(error.state)
        decided = None if request is None else request.decided or request.reason is not None
        invariant = broken_by(state, event, decided=decided)
        if type(error).__name__ in ("LateEvent", "UnknownRequest"):
            invariant = Invariant.LATE_IS_ABSORBED
        self._found(life, path, number, invariant, state, event, error.why or error.message)
        if life.lines and life.lines[-1][2] is text:
            life.lines.pop()  # it changed nothing

    def _found(
        self,
        life: _Life,
        path: str,
        number: int,
        invariant: Invariant,
        state: str | None,
        event: str,
        what: str,
    ) -> None:
        key = (str(invariant), None if state is None else str(state), str(event))
        group = self.groups.get(key)
        if group is None:
            rid = json.loads(life.lines[-1][2])["rid"] if life.lines else ""
            excerpt = [Line(Place(p, n), text) for p, n, text in life.lines]
            self.groups[key] = Group(
                *key, what, Place(path, number), rid, excerpt, not life.left_out
            )
            return
        group.count += 1
        if (life.left_out, len(life.lines)) < (not group.whole, len(group.excerpt)):
            group.excerpt = [Line(Place(p, n), text) for p, n, text in life.lines]
            group.whole, group.what = not life.left_out, what
            group.rid = json.loads(life.lines[-1][2])["rid"]

    # The result.

    @property
    def violations(self) -> int:
        """How many times something was wrong."""
        return sum(group.count for group in self.groups.values())

    def result(self) -> dict[str, Any]:
        """All of it as plain JSON."""
        ordered = sorted(self.groups.values(), key=lambda group: -group.count)
        return {
            "lines": self.lines,
            "events": self.events,
            "requests": self.lives,
            "ended": self.ended,
            "open": self.open,
            "let_go": self.let_go,
            "late": self.requests.late.total() + self.late.total(),
            "unknown": self.requests.unknown.total() + self.unknown.total(),
            "violations": self.violations,
            "groups": [
                {
                    "invariant": group.invariant,
                    "state": group.state,
                    "event": group.event,
                    "count": group.count,
                    "what": group.what,
                    "first": str(group.first),
                    "rid": group.rid,
                    "excerpt": [json.loads(line.text) for line in group.excerpt],
                    "whole": group.whole,
                }
                for group in ordered
            ],
            "damaged": self.damaged,
            "lost": self.lost,
            "clock_jumps": self.jumps,
            "damage": [str(each) for each in self.damage],
        }


class _Other(Exception):  # not an error: the line was dealt with
    """The line is no event."""


def _pages(life: _Life, attempt: int) -> list[str]:
    """The pages that an attempt was admitted with, if the log names them."""
    admits = [
        fields
        for _, _, text in life.lines
        if '"admit"' in text and (fields := json.loads(text))["event"] == "admit"
    ]
    pages = admits[attempt].get("pages") if attempt < len(admits) else None
    return pages if isinstance(pages, list) else []
