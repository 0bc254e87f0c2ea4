"""Many requests: lives of a rid, aborts from other threads, deadlines, and what is late or unknown.

>>> table = RequestTable()
>>> table.submit("r1")
()
>>> table.fire("r1", "admit", pages=4)
()
>>> [str(effect) for effect in table.fire("r1", "abort")]
['cancel_transfer', 'release_kv', 'report']
>>> table["r1"].state
<State.DONE: 'done'>

The table finds the request, fires the event, and returns the effects: carrying them out is the driver's
(:mod:`lifecycle.driver`). All methods but those of :attr:`RequestTable.inbox` belong to one thread, the
scheduler's loop. Time is passed in as seconds of any clock that does not run backwards, and never read.

Lives
    A rid may be submitted again once its former life is done, or was reported. Lives are numbered from 1 (the
    *incarnation*); an event goes to the newest unless it names another, so what comes late for a former life
    cannot reach the new one if it names the life it is for. The last `keep_done` lives that ended are kept so
    that what comes late for them is counted as late. When a rid is forgotten its numbers start at 1 again.

Aborts that come early
    An abort of a rid that is not known is counted as unknown, and remembered (at most `keep_aborts` rids, for
    `abort_memory` seconds where time is given): it is applied when that rid is submitted. Of several aborts of
    one rid, the one whose reason wins is remembered.

Deadlines
    ``deadlines={"queued": 30.0, "draining": 10.0}`` gives seconds a state may last; ``draining`` stands for the
    draining states and for older attempts. :meth:`RequestTable.expire` aborts what is overdue (source
    ``timeout``), and fires ``drain_timeout`` at what drains.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from .compile import Effect, compile_table
from .errors import (
    BadDetail,
    DuplicateRequest,
    EventError,
    LateEvent,
    LifecycleError,
    PolicyError,
    UnknownRequest,
)
from .policy import DEFAULT_POLICY, Policy
from .prefill import PREFILL
from .request import RequestLifecycle
from .spec import Table
from .vocabulary import ABORT_REASONS, AbortSource, Event, FinishReason

DRAINING = "draining"
"""The name under which :class:`RequestTable` takes the deadline of everything that drains."""


@attrs.frozen
class Todo:
    """Effects to carry out for one request, or the error that its event met (then nothing has changed)."""

    request: RequestLifecycle | None
    effects: tuple[Effect, ...]
    error: LifecycleError | None = None


class Inbox:
    """What other threads have to say. Any thread may call these methods; they only note, and never wait.

    The loop takes everything out at its safe point, with :meth:`RequestTable.drain_inbox`.
    """

    __slots__ = ("_posted",)

    def __init__(self) -> None:
        self._posted: deque[tuple[str, str, dict[str, Any]]] = deque()

    def __len__(self) -> int:
        return len(self._posted)

    def fire(self, rid: str, event: str, **details: Any) -> None:
        """Any event of one request: a transfer thread's completion, say. Details as in `RequestTable.fire`.

        Raises:
            BadDetail: ``submit`` and ``admit``; they belong to the loop, which knows whose the pages are.
        """
        if event in (Event.SUBMIT, Event.ADMIT):
            msg = f"{event} of request {rid!r} cannot be posted: the loop fires it itself"
            raise BadDetail(msg, rid=rid, event=event)
        self._posted.append(("fire", rid, {"event": event, **details}))

    def abort(self, rid: str, source: str = AbortSource.CLIENT, **details: Any) -> None:
        """Abort exactly this rid."""
        self._posted.append(("fire", rid, {"event": Event.ABORT, "source": source, **details}))

    def abort_prefix(self, prefix: str, source: str = AbortSource.CLIENT, **details: Any) -> None:
        """Abort every request whose rid begins so."""
        self._posted.append(("abort_prefix", prefix, {"source": source, **details}))

    def abort_all(self, source: str = AbortSource.SHUTDOWN, **details: Any) -> None:
        """Abort every request."""
        self._posted.append(("abort_all", "", {"source": source, **details}))

    def take(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Take out what is there now; what arrives meanwhile is left for the next time."""
        for _ in range(len(self._posted)):
            yield self._posted.popleft()


def _no_time(event: str, rid: str) -> LifecycleError:
    msg = (
        f"{event} of request {rid!r}: this table has deadlines; pass now=<seconds> with every event"
    )
    return LifecycleError(msg)


def _reason(details: Mapping[str, Any]) -> FinishReason:
    """The reason that an abort with these details brings."""
    source = details.get("source") or AbortSource.CLIENT
    try:
        return ABORT_REASONS[source]
    except KeyError:
        msg = f"an abort comes from one of {', '.join(AbortSource)}, not {source!r}"
        raise BadDetail(msg, event=Event.ABORT) from None


def _checked_deadlines(table: Table, deadlines: Mapping[str, float]) -> dict[str, float]:
    known = [DRAINING] + [str(s.name) for s in table.states if not (s.terminal or s.draining)]
    for name, seconds in deadlines.items():
        if name not in known:
            msg = f"no deadline {str(name)!r}: the table {table.name!r} takes {', '.join(known)}"
            raise PolicyError(msg)
        number: object = seconds  # whatever a configuration file held
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not number > 0:
            msg = f"the deadline {str(name)!r} is a positive number of seconds; got {seconds!r}"
            raise PolicyError(msg)
    return {str(name): float(seconds) for name, seconds in deadlines.items()}


class RequestTable:
    """All requests of one scheduler, keyed by rid and incarnation.

    Args:
        policy: the open choices (contract section 6).
        table: the declared table that requests follow; the prefill leg by default.
        deadlines: seconds that each state may last, by its name, and ``draining``; none by default.
        keep_done: how many lives that have ended are kept, so that late events are known as late; None keeps all.
        keep_aborts: how many aborts that came before their submit are remembered.
        abort_memory: for how many seconds; None for as long as there is room.
        journal: whether requests keep their last events for error messages.

    Attributes:
        inbox: where other threads post aborts and completions.
        late, illegal, unknown: how many events of each kind were late, illegal, or for an unknown rid.

    Raises:
        PolicyError: a deadline for a state that the table does not have, or that is no positive number.
    """

    def __init__(
        self,
        policy: Policy = DEFAULT_POLICY,
        *,
        table: Table = PREFILL,
        deadlines: Mapping[str, float] | None = None,
        keep_done: int | None = 4096,
        keep_aborts: int = 4096,
        abort_memory: float | None = 60.0,
        journal: bool = True,
    ) -> None:
        self.policy, self.table = policy, table
        self.automaton = compile_table(table, policy)
        self.deadlines = _checked_deadlines(table, deadlines or {})
        self.keep_done, self.keep_aborts, self.abort_memory = keep_done, keep_aborts, abort_memory
        self.keep_journal = journal
        self.inbox = Inbox()
        self.late: Counter[str] = Counter()
        self.illegal: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self._newest: dict[str, RequestLifecycle] = {}
        self._former: dict[tuple[str, int], RequestLifecycle] = {}
        self._ended: deque[RequestLifecycle] = deque()  # oldest first; unused if all are kept
        self._over = 0  # how many of the kept lives are over
        # Aborts that came before the submit of a life: when, and their details.
        self._early: OrderedDict[tuple[str, int], tuple[float | None, dict[str, Any]]]
        self._early = OrderedDict()
        # For each deadline, who entered when (and, for older attempts, which attempt): oldest first.
        self._watch: dict[str, deque[tuple[float, RequestLifecycle, int | None]]] = {
            name: deque() for name in self.deadlines
        }
        self._deadline_of = {
            state.name: DRAINING if state.draining else str(state.name) for state in table.states
        }

    # Looking at it.

    def __len__(self) -> int:
        """How many lives have not ended; a life whose older attempt still drains has not."""
        return len(self._newest) + len(self._former) - self._over

    def __contains__(self, rid: object) -> bool:
        return rid in self._newest

    def __getitem__(self, rid: str) -> RequestLifecycle:
        """The newest life of `rid`.

        Raises:
            KeyError: it is not known, or forgotten.
        """
        return self._newest[rid]

    def life(self, rid: str, incarnation: int) -> RequestLifecycle | None:
        """One life of `rid`; None if there was none, or it is forgotten."""
        request = self._newest.get(rid)
        if request is not None and request.incarnation == incarnation:
            return request
        return self._former.get((rid, incarnation))

    def lives(self) -> Iterator[RequestLifecycle]:
        """Every life that is kept: former ones first, then the newest of each rid, in order of submission."""
        yield from self._former.values()
        yield from self._newest.values()

    def by_state(self) -> Counter[str]:
        """How many of the kept lives are in each state."""
        return Counter(str(request.state) for request in self.lives())

    # What happens.

    def submit(self, rid: str, *, now: float | None = None) -> tuple[Effect, ...]:
        """A new request. There are effects only if an abort came before it.

        Raises:
            DuplicateRequest: a request of that rid lives. Nothing changes.
            LifecycleError: the table has deadlines and `now` is not given. Nothing changes.
        """
        request = self._open(rid, now)
        return self._apply_early(request, now) if self._early else ()

    def open(self, rid: str, *, now: float | None = None) -> Todo:
        """As :meth:`submit`, and returns the new request as well."""
        request = self._open(rid, now)
        return Todo(request, self._apply_early(request, now) if self._early else ())

    def _open(self, rid: str, now: float | None) -> RequestLifecycle:
        if self._watch and now is None:
            raise _no_time(Event.SUBMIT, rid)
        former = self._newest.get(rid)
        incarnation = 1
        if former is not None:
            if not former.done and not former.reported:
                self.illegal[Event.SUBMIT] += 1
                raise self._duplicate(former)
            self._former[rid, former.incarnation] = self._newest.pop(rid)
            incarnation = former.incarnation + 1
        request = RequestLifecycle(rid, self.automaton, incarnation, self.keep_journal)
        self._newest[rid] = request
        if self._watch:
            self._enter(request, now)
        return request

    def fire(
        self,
        rid: str,
        event: str,
        *,
        incarnation: int | None = None,
        now: float | None = None,
        **details: Any,
    ) -> tuple[Effect, ...]:
        """Fire an event at the newest life of `rid`, or at the one that `incarnation` names.

        Details are those of :meth:`lifecycle.RequestLifecycle.fire`. A request that is unknown is counted, and
        its abort remembered. `now` is needed where the table has deadlines.

        Raises:
            IllegalEvent, BadDetail: as the request raises them; nothing changes.
            LateEvent, UnknownRequest: under the policy ``late="strict"``.
            LifecycleError: the table has deadlines and `now` is not given. Nothing changes.
        """
        if self._watch and now is None:
            raise _no_time(event, rid)
        if incarnation is None:
            request = self._newest.get(rid)
        else:
            request = self.life(rid, incarnation)
        if request is None:
            return self._not_known(rid, event, incarnation, now, details)
        node, late, older = request._node, request.late, request._older
        try:
            # Unpacking an empty dictionary into a call costs more than asking.
            effects = request.fire(event, **details) if details else request.fire(event)
        except EventError as error:
            self._count_refusal(error)
            raise
        if request.late != late:
            self.late[event] += 1
        elif effects and request._node.terminal and not request._older:
            self._end(request)
        if self._watch and (request._node is not node or request._older is not older):
            self._watch_change(request, node.state, older, now)
        return effects

    def abort(
        self,
        rid: str,
        source: str = AbortSource.CLIENT,
        *,
        now: float | None = None,
        **details: Any,
    ) -> tuple[Effect, ...]:
        """Abort exactly this rid; ``abort("r1")`` never touches ``r10``."""
        return self.fire(rid, Event.ABORT, now=now, source=source, **details)

    def abort_prefix(
        self,
        prefix: str,
        source: str = AbortSource.CLIENT,
        *,
        now: float | None = None,
        **details: Any,
    ) -> list[Todo]:
        """Abort every request that is not done and whose rid begins with `prefix`.

        One that cannot take it (it was reported, under ``late="strict"``) is returned with its error.
        """
        rids = [rid for rid in self._newest if rid.startswith(prefix)]
        return self._abort_each(rids, source, now, details)

    def abort_all(
        self, source: str = AbortSource.SHUTDOWN, *, now: float | None = None, **details: Any
    ) -> list[Todo]:
        """Abort every request that is not done; errors are returned as by :meth:`abort_prefix`."""
        return self._abort_each(list(self._newest), source, now, details)

    def drain_inbox(self, now: float | None = None) -> list[Todo]:
        """Take in what other threads posted. Call it at the loop's safe point.

        An event that raises (illegal, or a bad detail) is returned as a :class:`Todo` with its error, and what
        was posted after it is still taken in.
        """
        todos: list[Todo] = []
        for verb, rid, details in self.inbox.take():
            request = self._addressed(rid, details)
            try:
                if verb == "abort_all":
                    todos += self.abort_all(now=now, **details)
                elif verb == "abort_prefix":
                    todos += self.abort_prefix(rid, now=now, **details)
                else:
                    effects = self.fire(rid, now=now, **details)
                    if effects:
                        todos.append(Todo(request, effects))
            except (LifecycleError, TypeError) as error:
                if not isinstance(error, LifecycleError):
                    error = LifecycleError(f"the inbox cannot fire {details!r} at {rid!r}: {error}")
                todos.append(Todo(request, (), error))
        return todos

    def expire(self, now: float) -> list[Todo]:
        """End what is past its deadline: abort it by ``timeout``, or fire ``drain_timeout`` if it drains."""
        todos = []
        for name, queue in self._watch.items():
            limit = now - self.deadlines[name]
            for _ in range(len(queue)):
                if queue[0][0] > limit:
                    break
                entered, request, attempt = queue.popleft()
                if not self._still_there(name, entered, request, attempt):
                    continue
                if name == DRAINING:
                    which = request.attempt if attempt is None else attempt
                    event = Event.DRAIN_TIMEOUT
                    details: dict[str, Any] = {"attempt": which}
                else:
                    event, details = Event.ABORT, {"source": AbortSource.TIMEOUT}
                todo = self._try(request, event, now, details)
                if todo is not None:
                    todos.append(todo)
                if self._still_there(
                    name, entered, request, attempt
                ):  # by policy it stays: ask again
                    if attempt is None:
                        request.since = now
                    queue.append((now, request, attempt))
        return todos

    def next_deadline(self) -> float | None:
        """The earliest time at which :meth:`expire` may find something; None if no deadline runs.

        For a caller that sets a timer instead of asking in each turn. The request may have moved on by then.
        """
        due = [queue[0][0] + self.deadlines[name] for name, queue in self._watch.items() if queue]
        return min(due, default=None)

    def forget(self, request: RequestLifecycle) -> None:
        """Drop a life that is over. Whatever still comes for it is unknown from now on.

        Raises:
            LifecycleError: it is not over; its pages would be forgotten.
        """
        if not request.over:
            msg = f"{request!r} is not over and cannot be forgotten"
            raise LifecycleError(msg)
        self._drop(request)

    # Saving it.

    def snapshot(self) -> dict[str, Any]:
        """Everything that the table knows, as plain JSON; see :mod:`lifecycle.snapshot`.

        Raises:
            SnapshotError: something waits in the inbox.
        """
        from .snapshot import snapshot

        return snapshot(self)

    @staticmethod
    def restore(saved: Mapping[str, Any], table: Table = PREFILL) -> RequestTable:
        """The table of requests that :meth:`snapshot` saved; `table` is the declared table it followed.

        Raises:
            SnapshotError: it is refused, and nothing is restored.
        """
        from .snapshot import restore

        return restore(saved, table)

    # How it keeps order.

    def _duplicate(self, former: RequestLifecycle) -> DuplicateRequest:
        return former._error(
            DuplicateRequest,
            f"submit is illegal for request {former.rid!r}: a request of that rid lives",
            Event.SUBMIT,
            "a request of that rid lives",
        )

    def _addressed(self, rid: str, details: Mapping[str, Any]) -> RequestLifecycle | None:
        incarnation = details.get("incarnation")
        return self._newest.get(rid) if incarnation is None else self.life(rid, incarnation)

    def _abort_each(
        self, rids: list[str], source: str, now: float | None, details: dict[str, Any]
    ) -> list[Todo]:
        todos = []
        for rid in rids:
            request = self._newest[rid]
            if not request.done:
                todo = self._try(request, Event.ABORT, now, {"source": source, **details})
                if todo is not None:
                    todos.append(todo)
        return todos

    def _try(
        self, request: RequestLifecycle, event: str, now: float | None, details: dict[str, Any]
    ) -> Todo | None:
        """Fire an event at one of many: what one cannot take must not keep it from the others."""
        try:
            effects = self.fire(
                request.rid, event, incarnation=request.incarnation, now=now, **details
            )
        except EventError as error:
            return Todo(request, (), error)
        return Todo(request, effects) if effects else None

    def _count_refusal(self, error: EventError) -> None:
        if isinstance(error, LateEvent):
            self.late[error.event] += 1
        else:
            self.illegal[error.event] += 1

    def _not_known(
        self,
        rid: str,
        event: str,
        incarnation: int | None,
        now: float | None,
        details: dict[str, Any],
    ) -> tuple[Effect, ...]:
        if event == Event.ABORT:
            self._remember(rid, incarnation, now, details)
        elif event not in Event._value2member_map_:
            msg = f"{event!r} is no event for request {rid!r}; events are {', '.join(Event)}"
            raise BadDetail(msg, rid=rid, event=event)
        if self.automaton.strict:
            life = "" if incarnation is None else f" (life {incarnation})"
            msg = f"{event} for request {rid!r}{life}, which is not in the table"
            raise UnknownRequest(msg, rid=rid, event=event)
        self.unknown[event] += 1
        return ()

    def _remember(
        self, rid: str, incarnation: int | None, now: float | None, details: dict[str, Any]
    ) -> None:
        """Keep an abort for a life to come; of several, the one whose reason wins.

        It is tried on a request first: what is wrong with it is the fault of whoever sent it, not of whoever
        submits the request.
        """
        RequestLifecycle(rid, self.automaton).fire(Event.ABORT, **details)
        newest = self._newest.get(rid)
        number = 1 if incarnation is None else incarnation
        if newest is not None and number <= newest.incarnation:
            return  # for a life that is forgotten
        life = (rid, number)
        reason, kept = _reason(details), self._early.get(life)
        if kept is None or self.policy.precedence.outranks(reason, _reason(kept[1])):
            kept = (now, details)
        self._early[life] = kept
        self._early.move_to_end(life)
        while len(self._early) > self.keep_aborts:
            self._early.popitem(last=False)

    def _apply_early(self, request: RequestLifecycle, now: float | None) -> tuple[Effect, ...]:
        kept = self._early.pop((request.rid, request.incarnation), None)
        if kept is None:
            return ()
        at, details = kept
        memory = self.abort_memory
        if now is not None and at is not None and memory is not None and now - at > memory:
            return ()
        return self.fire(request.rid, Event.ABORT, now=now, **details)

    def _end(self, request: RequestLifecycle) -> None:
        """A life is over: keep it for late events, and forget the oldest one that is kept."""
        self._over += 1
        if self.keep_done is not None:
            self._ended.append(request)
            if len(self._ended) > self.keep_done:
                self._drop(self._ended.popleft())

    def _drop(self, request: RequestLifecycle) -> None:
        rid = request.rid
        if self._newest.get(rid) is request:
            del self._newest[rid]
        elif self._former.pop((rid, request.incarnation), None) is None:
            return  # forgotten already
        self._over -= 1

    # Deadlines.

    def _enter(self, request: RequestLifecycle, now: float | None) -> None:
        assert now is not None  # asked before the event was fired
        request.since = now
        queue = self._watch.get(self._deadline_of[request.state])
        if queue is not None:
            queue.append((now, request, None))

    def _watch_change(
        self,
        request: RequestLifecycle,
        state: str,
        older: tuple[Any, ...],
        now: float | None,
    ) -> None:
        if self._deadline_of[request.state] != self._deadline_of[state]:
            self._enter(request, now)
        queue = self._watch.get(DRAINING)
        if queue is not None and len(request.draining) > len(older) and now is not None:
            queue.append((now, request, request.draining[-1].attempt))

    def _still_there(
        self, name: str, entered: float, request: RequestLifecycle, attempt: int | None
    ) -> bool:
        if attempt is not None:
            return any(old.attempt == attempt for old in request.draining)
        return request.since == entered and self._deadline_of[request.state] == name
