"""Replays a trace through the library, and says what became of every request (contract section 9).

>>> trace = [{"event": "submit", "rid": "r"}, {"event": "abort", "rid": "r"}]
>>> result = replay(trace)
>>> result["requests"]["r"]["reason"], result["illegal"]
('client_abort', [])

An illegal event is recorded and skipped, and the rest still runs. Where the policy is ``late="strict"``, a late
or unknown event counts as illegal; the state of an unknown request is null.

What the effects did is checked against what must always hold. Under the library's own rules one thing can break:
the unsafe policy ``on_undrained="release"`` gives pages back while something may still touch them, and that *is*
`no_free_in_flight`, whoever asked for it. Where a trace names its pages, a page that was quarantined and is
admitted again breaks it too.

Memory does not grow with the length of a trace. Requests that have ended long ago are kept on disk
(:mod:`lifecycle.shelf`) until something late speaks of them, or the result is written.

Of several lives of a rid the newest bears the bare rid, and the earlier ones ``rid#1``, ``rid#2``, ... Should
a request really be called ``r#1``, the former life of ``r`` is written with one more ``#``.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

import attrs

from .compile import Effect
from .errors import EventError, TraceError
from .policy import DEFAULT_POLICY, Policy
from .prefill import PREFILL
from .reasons import WIRE
from .request import Draining, RequestLifecycle
from .shelf import Shelf, Spool
from .snapshot import adopt, request_from_json, request_to_json
from .spec import Table
from .table import RequestTable
from .trace import TraceEvent, TracePolicy, parse
from .vocabulary import EffectKind, Event, Invariant

ENDED_IN_MEMORY = 10_000
"""How many lives that have ended stay in memory; older ones go to disk."""


@attrs.define
class Record:
    """What effects a life had, in order. `order` is its place among all lives, from 0."""

    order: int
    effects: list[str] = attrs.field(factory=list)
    releases: int = 0
    reports: int = 0


@attrs.frozen
class Seen:
    """One event as it was taken, for whoever watches a replay."""

    event: TraceEvent
    request: RequestLifecycle | None
    outcome: str  # move, stay, late, illegal or unknown
    effects: tuple[Effect, ...] = ()
    why: str = ""


class Replay:
    """A replay in progress.

    Args:
        policy: what holds until the trace says otherwise in its first line.
        table: the declared table.
        watch: called with every event as it was taken.
    """

    def __init__(
        self,
        policy: Policy = DEFAULT_POLICY,
        *,
        table: Table = PREFILL,
        watch: Callable[[Seen], None] | None = None,
    ) -> None:
        self.table = table
        self.watch = watch
        self.events = 0
        self.illegal = Spool()
        self.violations = Spool()
        self._records: dict[tuple[str, int], Record] = {}
        self._lives = 0
        self._ended: deque[tuple[str, int]] = deque()
        self._shelf: Shelf | None = None
        self._quarantined: dict[str, str] = {}
        self._named: dict[tuple[str, int, int], list[str]] = {}
        self._start(policy)

    def _start(self, policy: Policy) -> None:
        self.policy = policy
        self.requests = RequestTable(
            policy, table=self.table, keep_done=None, abort_memory=None, journal=False
        )

    # Taking events.

    def feed(self, line: TraceEvent | TracePolicy) -> None:
        """Take one line of the trace.

        Raises:
            TraceError: a policy after the first event.
        """
        if isinstance(line, TracePolicy):
            if self.events:
                msg = "a policy line may only be the first line of a trace"
                raise TraceError(msg, line=line.line)
            self._start(line.policy)
            return
        self.events += 1
        if self._shelf is not None:
            self._unshelve(line.rid, line.incarnation)
        if line.event is Event.SUBMIT:
            self._submit(line)
        else:
            self._fire(line)
        if len(self._ended) > ENDED_IN_MEMORY:
            self._put_away(self._ended.popleft())

    def _submit(self, line: TraceEvent) -> None:
        former = self.requests._newest.get(line.rid)
        following = 1 if former is None else former.incarnation + 1
        if line.incarnation is not None and line.incarnation != following:
            state = None if former is None else str(former.state)
            why = f"the next life of this rid is number {following}"
            self._refused(line, former, state, why)
            return
        try:
            effects = self.requests.submit(line.rid, now=line.t)
        except EventError as error:
            self._refused(line, former, error.state, error.why or error.message)
            return
        request = self.requests[line.rid]
        self._records[line.rid, request.incarnation] = Record(self._lives)
        self._lives += 1
        self._taken(line, request, "move", effects, (), (), ())

    def _fire(self, line: TraceEvent) -> None:
        table = self.requests
        if line.incarnation is None:
            request = table._newest.get(line.rid)
        else:
            request = table.life(line.rid, line.incarnation)
        if request is not None:
            state, late = request.state, request.late
            held = (request._steps, request._ops, request._older)
        try:
            effects = table.fire(
                line.rid, line.event, incarnation=line.incarnation, now=line.t, **line.details
            )
        except EventError as error:
            self._refused(line, request, error.state, error.why or error.message)
            return
        if request is None:
            self._tell(line, None, "unknown", (), "no such request")
            return
        if request.late != late:
            outcome = "late"
        else:
            outcome = "stay" if request.state == state else "move"
        if line.event is Event.ADMIT:
            self._admitted(line, request)
        self._taken(line, request, outcome, effects, *held)

    def _taken(
        self,
        line: TraceEvent,
        request: RequestLifecycle,
        outcome: str,
        effects: tuple[Effect, ...],
        steps: tuple[int, ...],
        ops: tuple[str, ...],
        older: tuple[Draining, ...],
    ) -> None:
        if effects:
            record = self._records[request.rid, request.incarnation]
            for effect in effects:
                self._effect(line, request, record, effect, steps, ops, older)
            if request.over:
                self._ended.append((request.rid, request.incarnation))
        self._tell(line, request, outcome, effects)

    def _refused(
        self, line: TraceEvent, request: RequestLifecycle | None, state: str | None, why: str
    ) -> None:
        self.illegal.append(
            {
                "line": line.line,
                "rid": line.rid,
                "event": str(line.event),
                "state": None if state is None else str(state),
            }
        )
        self._tell(line, request, "illegal", (), why)

    def _tell(
        self,
        line: TraceEvent,
        request: RequestLifecycle | None,
        outcome: str,
        effects: tuple[Effect, ...],
        why: str = "",
    ) -> None:
        if self.watch is not None:
            self.watch(Seen(line, request, outcome, effects, why))

    # What must always hold.

    def _effect(
        self,
        line: TraceEvent,
        request: RequestLifecycle,
        record: Record,
        effect: Effect,
        steps: tuple[int, ...],
        ops: tuple[str, ...],
        older: tuple[Draining, ...],
    ) -> None:
        """Note an effect; `steps`, `ops` and `older` are what was outstanding before the event."""
        record.effects.append(str(effect.kind))
        if effect.kind is EffectKind.REPORT:
            record.reports += 1
            if record.reports > 1:
                self._broken(line, Invariant.REPORT_ONCE, "the client is told a second time")
        if effect.kind is EffectKind.QUARANTINE_KV:
            for page in self._named.pop((request.rid, request.incarnation, effect.attempt), ()):
                self._quarantined[page] = request.rid
        if effect.kind is EffectKind.RELEASE_KV:
            record.releases += 1
            self._named.pop((request.rid, request.incarnation, effect.attempt), None)
            if record.releases > request.attempt + 1:
                self._broken(line, Invariant.SINGLE_RELEASE, "more releases than attempts")
            old = next((old for old in older if old.attempt == effect.attempt), None)
            if old is not None:
                steps, ops = old.steps, old.ops
            if left := _still_out(line, steps, ops):
                text = f"attempt {effect.attempt} is released while {', '.join(left)} may touch it"
                self._broken(line, Invariant.NO_FREE_IN_FLIGHT, text)

    def _admitted(self, line: TraceEvent, request: RequestLifecycle) -> None:
        pages = line.details.get("pages")
        if isinstance(pages, list):
            self._named[request.rid, request.incarnation, request.attempt] = pages
            for page in pages:
                if page in self._quarantined:
                    text = (
                        f"page {page!r} is in quarantine since request {self._quarantined[page]!r}"
                    )
                    self._broken(line, Invariant.NO_FREE_IN_FLIGHT, text)

    def _broken(self, line: TraceEvent, invariant: Invariant, text: str) -> None:
        self.violations.append(
            {"invariant": str(invariant), "line": line.line, "rid": line.rid, "what": text}
        )

    # Lives that have ended long ago.

    def _put_away(self, key: tuple[str, int]) -> None:
        request = self.requests.life(*key)
        if request is None:
            return
        if self._shelf is None:
            self._shelf = Shelf()
        record = self._records.pop(key)
        saved = {"request": request_to_json(request), "record": attrs.asdict(record)}
        self._shelf.put(key[0], key[1], record.order, saved)
        self.requests.forget(request)

    def _unshelve(self, rid: str, incarnation: int | None) -> None:
        """Bring the lives of `rid` back, if something speaks of one that was put away."""
        assert self._shelf is not None
        table = self.requests
        here = rid in table if incarnation is None else table.life(rid, incarnation) is not None
        if here:
            return
        for saved in self._shelf.take(rid):
            request = request_from_json(saved["request"], table.automaton)
            adopt(table, request)
            key = (request.rid, request.incarnation)
            self._records[key] = Record(**saved["record"])
            self._ended.append(key)

    # The result.

    @property
    def lives(self) -> int:
        """How many lives the trace submitted."""
        return self._lives

    @property
    def clean(self) -> bool:
        """Whether nothing was illegal and no invariant broke."""
        return not len(self.illegal) and not len(self.violations)

    def requests_json(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every life under its key, as the result shows it, in the order of submission."""
        in_memory = sorted(self._records.items(), key=lambda item: item[1].order)
        shelved = iter(()) if self._shelf is None else self._shelf.lives()
        waiting = next(shelved, None)
        for (rid, incarnation), record in in_memory:
            while waiting is not None and waiting[0] < record.order:
                yield self._shelved(waiting[1])
                waiting = next(shelved, None)
            request = self.requests.life(rid, incarnation)
            assert request is not None
            yield self._key(rid, incarnation), summary(request, record)
        while waiting is not None:
            yield self._shelved(waiting[1])
            waiting = next(shelved, None)

    def _shelved(self, saved: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        request = request_from_json(saved["request"], self.requests.automaton)
        record = Record(**saved["record"])
        return self._key(request.rid, request.incarnation), summary(request, record)

    def _key(self, rid: str, incarnation: int) -> str:
        if not self._is_life(rid, incarnation + 1):
            return rid
        key = f"{rid}#{incarnation}"
        while self._is_life(key, 1):
            base, _, number = key.rpartition("#")
            key = f"{base}##{number}"
        return key

    def _is_life(self, rid: str, incarnation: int) -> bool:
        if (rid, incarnation) in self._records:
            return True
        return self._shelf is not None and self._shelf.has(rid, incarnation)

    def result(self) -> dict[str, Any]:
        """The whole result as one object; :func:`write_json` writes it without holding it."""
        return {
            "requests": dict(self.requests_json()),
            "illegal": list(self.illegal),
            "unknown": self.requests.unknown.total(),
            "violations": list(self.violations),
        }

    def write_json(self, stream: IO[str]) -> None:
        """Write the result as JSON, a request a line."""
        stream.write('{"requests": {')
        separator = "\n  "
        for key, life in self.requests_json():
            stream.write(f"{separator}{json.dumps(key)}: {json.dumps(life)}")
            separator = ",\n  "
        stream.write('\n },\n "illegal": [')
        _write_list(stream, self.illegal)
        stream.write(f'],\n "unknown": {self.requests.unknown.total()},\n "violations": [')
        _write_list(stream, self.violations)
        stream.write("]}\n")


def _write_list(stream: IO[str], items: Iterable[object]) -> None:
    separator = "\n  "
    for item in items:
        stream.write(separator + json.dumps(item))
        separator = ",\n  "


def _still_out(line: TraceEvent, steps: tuple[int, ...], ops: tuple[str, ...]) -> list[str]:
    """What was outstanding before `line` and is not dropped by it."""
    if line.event is Event.FORWARD_FINISHED:
        step = line.details.get("step", steps[0] if steps else None)
        steps = tuple(each for each in steps if each != step)
    elif line.event in (Event.TRANSFER_SUCCEEDED, Event.TRANSFER_DRAINED):
        op = line.details.get("op")
        ops = () if op is None else tuple(each for each in ops if each != op)
    return [f"op:{op}" for op in ops] + [f"step:{step}" for step in steps]


def summary(request: RequestLifecycle, record: Record) -> dict[str, Any]:
    """What the result says of one life (contract section 9)."""
    reason = request.reason
    return {
        "state": str(request.state),
        "reason": None if reason is None else str(reason),
        "wire": None if reason is None else WIRE[reason].finish,
        "kv": str(request.kv),
        "releases": record.releases,
        "reports": record.reports,
        "attempt": request.attempt,
        "late": request.late,
        "claims": list(request.claims),
        "effects": record.effects,
    }


def replay(
    trace: Iterable[Mapping[str, Any] | TraceEvent | TracePolicy], *, table: Table = PREFILL
) -> dict[str, Any]:
    """The result of a trace that is at hand as objects, the first of which may be ``{"policy": ...}``.

    Raises:
        TraceError: a line is not well formed; the message numbers it from 1.
    """
    run = Replay(table=table)
    for number, line in enumerate(trace, 1):
        if isinstance(line, (TraceEvent, TracePolicy)):
            run.feed(line)
            continue
        try:
            run.feed(parse(json.dumps(line), number))
        except TraceError as error:
            raise TraceError(error.message, line=number) from None
    return run.result()
