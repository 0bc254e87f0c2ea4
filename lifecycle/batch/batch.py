"""Many requests at once: a :class:`RequestBatch` fires events at columns, and one look-up moves each row.

See :mod:`lifecycle.batch` for what it is for and how to use it. Here is how it works.

What a signal does to a shape stands in a table (:mod:`lifecycle.batch.shapes`). So an event at many requests
is: gather the shapes, look up the cells, write the shapes back. Few cells ask for more than that (effects, a
late event, an error), and only those rows are looked at again. What no cell can say is asked of an object, one
row at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..compile import compile_table
from ..consensus import Verdict
from ..errors import BadDetail, EventError, IllegalEvent, LateEvent, UnknownRequest
from ..policy import DEFAULT_POLICY, Policy
from ..prefill import PREFILL
from ..reasons import Details
from ..spec import Table
from . import shapes as sh
from . import signals as sig
from .applied import NO_ROWS, Applied, Found, Ints, Refusals
from .call import Call, call_of
from .columns import CHUNK, NO_POSITION, Chunk, Rows
from .queue import PENDING, Queue, polls_of, still

_DRAINED = sig.code("transfer_drained")
_POLLS = np.array(
    [sig.code(f"transfer_{word}") for word in ("failed", "pending", "succeeded")], np.uint8
)  # by Verdict


class RequestBatch(Rows):
    """Many requests of one table and policy, in columns.

    A request is named by its *row*, a number from 0. Rows of requests that were removed are used again; a
    generation tells the lives of a row apart.

    Args:
        policy: the open choices (contract section 6).
        table: the declared table that requests follow; the prefill leg by default.
        name: how errors name the request of a row; by default ``row 7``.

    Attributes:
        automaton: what the rows follow.
        shapes: the shapes that rows may have, shared by all batches of the same automaton.
        slots: how many rows there are, those that are free included.
        late, unknown: how many events were late, or for a row that no request has, since the beginning.
        nothing: what :meth:`poll` returns where nothing is to be done.
    """

    def __init__(
        self,
        policy: Policy = DEFAULT_POLICY,
        *,
        table: Table = PREFILL,
        name: Callable[[int], str] | None = None,
    ) -> None:
        super().__init__(compile_table(table, policy), name)
        self.late = 0
        self.unknown = 0
        self.nothing = Found(self.shapes).applied(ordered=True)
        self._positioned = False  # whether a token position was ever given
        # What one chunk needs for its working.
        self._cells: Ints = np.empty(CHUNK, np.int64)
        self._found = np.empty(CHUNK, np.uint32)
        self._spare = np.empty(CHUNK, np.uint32)
        self._hot = np.empty(CHUNK, np.bool_)
        self._marks = np.empty(CHUNK, np.int32)

    def __repr__(self) -> str:
        return f"<batch of {len(self)} requests, table {self.automaton.table.name!r}>"

    def apply(
        self,
        events: str | npt.ArrayLike,
        rows: npt.ArrayLike | None = None,
        *,
        generation: npt.ArrayLike | None = None,
        step: int | npt.ArrayLike | None = None,
        op: str | None = None,
        source: str | None = None,
        cause: str | None = None,
        reason: str | None = None,
        position: int | npt.ArrayLike | None = None,
        attempt: int | None = None,
        message: str | None = None,
        status: int | None = None,
    ) -> Applied:
        """Fire events at many rows, in their order.

        ``apply("abort")`` fires one event at every request. ``apply("abort", rows)`` fires it at these rows.
        ``apply(signals, rows)`` fires an event of its own at each of them, and ``apply(signals)`` one at each of
        the :attr:`slots`; signals are numbers from :func:`lifecycle.batch.code`, 0 for none. A row may stand
        more than once: its events come in their order.

        Args:
            events: an event's word, or signals: integers, shape (n,); uint8 is not copied.
            rows: integers, shape (n,), or one row; every row by default. int64 is not copied.
            generation: the generations for which the events are meant, shape (n,); where a row has another one
                by now, the event is counted as unknown and nothing happens.
            step: as in :meth:`lifecycle.RequestLifecycle.fire`, for all rows, or one for each, shape (n,).
            position: likewise.
            op: as there, for all rows; this and what follows can go with an event's word only.
            source: as there.
            cause: as there.
            reason: as there.
            attempt: as there.
            message: as there.
            status: as there.

        Returns:
            What has to be done, what was refused, and what was late.

        Raises:
            BadDetail: no such event or signal, a detail that no such event can have, a row that does not exist,
                or arrays of different lengths. Nothing is applied.
        """
        self._version += 1
        found = Found(self.shapes)
        chosen: Ints | None = None
        keep = None
        if rows is not None:
            chosen = self._checked(rows)
            if generation is not None:
                wanted = np.asarray(generation)
                if wanted.shape != chosen.shape:
                    msg = f"{len(chosen)} rows take as many generations, not shape {wanted.shape}"
                    raise BadDetail(msg)
                keep = self.generation(chosen) == wanted
        call = call_of(
            events,
            self.slots if chosen is None else len(chosen),
            self.shapes,
            {"step": step, "position": position, "attempt": attempt, "op": op, "source": source,
             "cause": cause, "reason": reason, "message": message, "status": status},
            to_all=chosen is None,
        )  # fmt: skip
        if chosen is not None and keep is not None and not keep.all():
            ahead = np.cumsum(
                keep
            )  # how many of those that stay are before it: its place among them
            for place in np.flatnonzero(~keep).tolist():
                event = call.fired(place)[0]
                self._no_request(int(chosen[place]), int(ahead[place]), event, found)
            call, chosen = call.only(keep), chosen[keep]
        self._positioned |= call.positions is not None
        ordered = self._fire(call, chosen, found)
        applied = found.applied(ordered=ordered)
        self.late += applied.late
        self.unknown += applied.unknown
        return applied

    def poll(
        self,
        polls: Any,
        rows: npt.ArrayLike | None = None,
        *,
        failed_implies_drained: bool = False,
    ) -> Applied:
        """Take in what the polls of many hand-offs said: those of a whole in-flight queue, as a rule.

        Args:
            polls: shape (n,): :class:`~lifecycle.consensus.Verdict` as integers, 0 failed, 1 pending,
                2 succeeded. A numpy array or a CPU tensor of torch, of any integer type, is not copied.
            rows: whose polls they are, shape (n,); those of all :attr:`slots` by default. int64 is not copied.
            failed_implies_drained: the backend's failure proves that the hardware stopped, so it drains too.

        Raises:
            BadDetail: another number, a row that does not exist, or arrays of different lengths. Nothing is
                applied.
        """
        chosen = np.arange(self.slots) if rows is None else self._checked(rows)
        said = polls_of(polls, len(chosen))
        some = said != PENDING
        return self._poll(
            said, chosen, some, still(list(self._parts(chosen))), failed_implies_drained
        )

    def queue(self, rows: npt.ArrayLike) -> Queue:
        """These rows as an in-flight queue, whose polls are taken in with less work than by :meth:`poll`.

        Raises:
            BadDetail: a row does not exist.
        """
        return Queue(self, self._checked(rows).copy())

    def _poll(
        self, polls: npt.NDArray[Any], rows: Ints, some: npt.NDArray[np.bool_], still: bool, drains: bool
    ) -> Applied:  # fmt: skip
        """Take in polls, of which `some` are not pending; `still` says that pending ones change nothing.

        Nearly every poll is pending, and leaves nearly every row as it is. Both are checked, for every row, before
        this is called; then only the others are looked at.
        """
        if still:
            which = np.flatnonzero(some)
            if not len(which):
                return self.nothing
            polls, rows = polls[which], rows[which]
        if len(polls) and (polls.min() < Verdict.FAILED or polls.max() > Verdict.SUCCEEDED):
            msg = "a poll is 0 (failed), 1 (pending) or 2 (succeeded)"
            raise BadDetail(msg)
        signals = _POLLS[polls.astype(np.intp)]
        if drains:
            # Each failure is followed by its drain, before the next poll: a row may stand twice.
            twice = np.repeat(np.arange(len(rows)), np.where(polls == Verdict.FAILED, 2, 1))
            signals, rows = signals[twice], rows[twice]
            signals[np.flatnonzero(twice[1:] == twice[:-1]) + 1] = _DRAINED
        return self.apply(signals, rows)

    # Deadlines.

    def set_deadline(self, rows: npt.ArrayLike, at: float | npt.ArrayLike) -> None:
        """When these rows are overdue: seconds of any clock, for all or one for each; ``inf`` for never."""
        rows = self._checked(rows)
        each = np.broadcast_to(np.asarray(at, np.float64), rows.shape)
        for chunk, local, where in self._parts(rows):
            chunk.deadline[local] = each[where]

    def overdue(self, now: float) -> Ints:
        """The rows whose deadline is at or before `now` and that are not over, in order."""
        found = [NO_ROWS]
        for chunk in self._chunks:
            last = min(CHUNK, self.slots - chunk.first)
            due = (chunk.deadline[:last] <= now) & (chunk.shape[:last] != sh.FREE)
            found.append(chunk.first + np.flatnonzero(due))
        rows = np.concatenate(found)
        return rows[~self.over(rows)]

    def expire(self, now: float) -> Applied:
        """End what is overdue: ``drain_timeout`` for rows that drain, an abort by ``timeout`` for the others.

        Their deadlines are taken away; set new ones for rows that are to be asked again.
        """
        rows = self.overdue(now)
        self.set_deadline(rows, np.inf)
        drain, abort = sig.code("drain_timeout"), sig.code("abort", source="timeout")
        return self.apply(np.where(self.draining(rows), drain, abort), rows)

    # Firing: chunk by chunk, and within one so that no row stands twice.

    def _fire(self, call: Call, rows: Ints | None, found: Found) -> bool:
        """Returns whether rows were met in the order of the call."""
        if rows is None:
            for chunk in self._chunks:
                size = min(CHUNK, self.slots - chunk.first)
                self._run(call, chunk, None, chunk.first, size, found)
            return True
        ordered = True
        for chunk, local, where in self._parts(rows):
            for turn in self._turns(local):
                if turn is None:
                    self._run(call, chunk, local, where, len(local), found)
                else:
                    ordered = False
                    places = (
                        turn + where.start if isinstance(where, slice) and where.start else turn
                    )
                    if not isinstance(where, slice):
                        places = where[turn]
                    self._run(call, chunk, local[turn], places, len(turn), found)
            ordered = ordered and isinstance(where, slice)
        return ordered

    def _turns(self, local: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any] | None]:
        """Places of `local` so that within one turn no row stands twice; None for all of them in one turn."""
        if len(local) < 2 or bool((local[1:] > local[:-1]).all()):
            yield None
            return
        marks, number = self._marks, np.arange(len(local), dtype=np.int32)
        marks[local] = number
        if bool((marks[local] == number).all()):
            yield None
            return
        order = np.argsort(local, kind="stable")
        first = np.ones(len(order), np.bool_)
        first[1:] = local[order][1:] != local[order][:-1]
        starts = np.flatnonzero(first)
        rank = number - np.repeat(starts, np.diff([*starts.tolist(), len(order)])).astype(np.int32)
        for turn in range(int(rank.max()) + 1):
            yield np.sort(order[rank == turn])

    def _run(
        self,
        call: Call,
        chunk: Chunk,
        local: npt.NDArray[Any] | None,
        where: Any,
        size: int,
        found: Found,
    ) -> None:
        """Fire at `size` rows of one chunk, none of which stands twice.

        `local` are their places in the chunk, None for its first `size` rows; `where` says where they stand in
        the call: places, a slice, or for None the first place.
        """
        if local is None:
            where = slice(where, where + size)
            shapes = chunk.shape[:size]
        else:
            shapes = chunk.shape.take(local)
        signals = call.signals(
            self.shapes, chunk, local, where, shapes, positioned=self._positioned
        )
        cells, got, hot = self._cells[:size], self._found[:size], self._hot[:size]
        np.left_shift(shapes, sig.WIDTH_BITS, out=cells, dtype=np.int64)
        cells += signals
        self.shapes.table.take(cells, out=got, mode="clip")
        if local is None:
            np.copyto(shapes, got, casting="unsafe")  # the lower half
        else:
            chunk.shape[local] = got.astype(np.uint16)
        marks = int(np.bitwise_or.reduce(got)) if size else 0
        if marks < sh.LAUNCHED:
            return
        if marks & sh.LAUNCHED:
            self._launch(call, chunk, local, where, got)
        if marks & sh.LATE:
            found.late += self._count_late(chunk, local, got)
        if marks & sh.WINS and (self._positioned or self._details or call.said is not None):
            won = np.flatnonzero((got & sh.WINS).astype(np.bool_))
            self._win(call, chunk, won if local is None else local[won], _places(where, won))
        if marks >= sh.HOT:
            np.greater_equal(got, sh.HOT, out=hot)
            self._look(call, chunk, local, where, np.flatnonzero(hot), found)

    def _launch(
        self, call: Call, chunk: Chunk, local: npt.NDArray[Any] | None, where: Any, got: Any
    ) -> None:
        """Passes were launched: the newest step goes up by one, or is the one that was named."""
        if call.steps is None and local is None:
            spare = np.right_shift(got, sh.LAUNCHED_BIT, out=self._spare[: len(got)])
            spare &= np.uint32(1)
            chunk.last[: len(got)] += spare
            return
        launched = np.flatnonzero((got & sh.LAUNCHED).astype(np.bool_))
        at = launched if local is None else local[launched]
        if call.steps is None:
            chunk.last[at] += 1
        else:
            chunk.last[at] = call.steps[_places(where, launched)]

    def _count_late(self, chunk: Chunk, local: npt.NDArray[Any] | None, got: Any) -> int:
        if local is None:
            spare = np.right_shift(got, sh.LATE_BIT, out=self._spare[: len(got)])
            spare &= np.uint32(1)
            chunk.late[: len(got)] += spare
            return int(np.count_nonzero(spare))
        late = local[np.flatnonzero((got & sh.LATE).astype(np.bool_))]
        chunk.late[late] += np.uint32(1)
        return len(late)

    def _win(self, call: Call, chunk: Chunk, at: Any, places: Any) -> None:
        """What came with the events of these rows is now what goes out with the answer."""
        if self._positioned:
            positions = call.positions
            chunk.position[at] = NO_POSITION if positions is None else positions[places]
        if call.said is not None:
            said = Details(**call.said)
            self._details.update(dict.fromkeys((at + chunk.first).tolist(), said))
        elif self._details:
            for row in (at + chunk.first).tolist():
                self._details.pop(row, None)

    def _look(
        self, call: Call, chunk: Chunk, local: npt.NDArray[Any] | None, where: Any, which: Any, found: Found
    ) -> None:  # fmt: skip
        """At the rows whose cell asks for more than numbers that go up."""
        got = self._found[which]
        marks = int(np.bitwise_or.reduce(got))
        if marks & sh.SLOW:
            slow = np.flatnonzero((got & sh.SLOW).astype(np.bool_))
            self._slow(call, chunk, local, where, which[slow], found)
            got = self._found[which]  # what was slow is learnt, or done
            marks = int(np.bitwise_or.reduce(got))
        if marks & sh.REFUSED:
            no = which[np.flatnonzero((got & sh.REFUSED).astype(np.bool_))]
            at = no if local is None else local[no]
            found.refused.append(
                Refusals(
                    _places(where, no), at + chunk.first, self._found[no] & np.uint32(sh.NEXT),
                    chunk.last[at], chunk.attempt[at], self._error_of(call),
                )
            )  # fmt: skip
        if marks >> sh.EFFECTS:
            some = np.flatnonzero(got >= np.uint32(1 << sh.EFFECTS))
            at = which[some]
            numbers = got[some] >> np.uint32(sh.EFFECTS)
            places = _places(where, at)
            if local is not None:
                at = local[at]
            found.places.append(places)
            found.rows.append(at + chunk.first)
            found.numbers.append(numbers)
            found.attempts.append(chunk.attempt[at])
        if marks & sh.AGAIN:
            at = which[np.flatnonzero((got & sh.AGAIN).astype(np.bool_))]
            chunk.attempt[at if local is None else local[at]] += np.uint32(1)

    def _slow(
        self, call: Call, chunk: Chunk, local: npt.NDArray[Any] | None, where: Any, which: Any, found: Found
    ) -> None:  # fmt: skip
        """Cells that were not learnt, or that an object must answer.

        What is learnt now stands in `_found` as if it had been known, with the numbers that go up; of what an
        object did, nothing stands there.
        """
        at = which if local is None else local[which]
        cells = self._cells[which]
        before = (cells >> sig.WIDTH_BITS).astype(np.uint16)
        chunk.shape[at] = before
        self.shapes.learn(cells)
        got: npt.NDArray[np.uint32] = self.shapes.table[cells]
        asked = (got & sh.SLOW).astype(np.bool_)
        got[asked] = before[asked]
        self._found[which] = got
        chunk.shape[at] = got.astype(np.uint16)
        places = _places(where, which)
        self._launch(call, chunk, at, places, got)
        found.late += self._count_late(chunk, at, got)
        won = np.flatnonzero((got & sh.WINS).astype(np.bool_))
        self._win(call, chunk, at[won], places[won])
        for one in np.flatnonzero(asked).tolist():
            row, place = chunk.first + int(at[one]), int(places[one])
            if before[one] != sh.FREE:
                self._ask_object(row, int(before[one]), place, call, found)
            elif not call.to_all:
                self._no_request(row, place, call.fired(place)[0], found)

    def _ask_object(self, row: int, code: int, place: int, call: Call, found: Found) -> None:
        kept = code == sh.OBJECT
        request = self._objects[row] if kept else self._built(row, code, self._name(row))
        event, details = call.fired(place)
        late, attempt = request.late, request.attempt
        try:
            effects = request.fire(event, **details)
        except (IllegalEvent, LateEvent) as error:
            self._refuse(place, row, error, found)
            return
        found.late += request.late - late
        self._write(row, request)
        if effects:
            found.own.append((place, row, attempt, effects))

    def _no_request(self, row: int, place: int, event: str, found: Found) -> None:
        if not self.automaton.strict:
            found.unknown += 1
            return
        msg = f"{event} for row {row}, which no request has"
        self._refuse(place, row, UnknownRequest(msg, event=event), found)

    def _refuse(self, place: int, row: int, error: EventError, found: Found) -> None:
        """An error that is made already."""
        one = np.array([row])
        found.refused.append(
            Refusals(np.array([place]), one, one, one, one, lambda _part, _at: error)
        )

    def _error_of(self, call: Call) -> Callable[[Refusals, int], EventError]:
        """What makes the errors of a call: the object that the row was then is asked to take the event."""

        def error(part: Refusals, at: int) -> EventError:
            shape = self.shapes.shapes[int(part.codes[at])]
            assert shape is not None
            name = self._name(int(part.rows[at]))
            request = self.shapes.request(
                shape, int(part.last[at]), int(part.attempts[at]), rid=name
            )
            event, details = call.fired(int(part.places[at]))
            try:
                request.fire(event, **details)
            except (IllegalEvent, LateEvent) as refused:
                return refused
            msg = f"{event} was refused for {name}, and is not now"  # pragma: no cover
            return EventError(msg, rid=name, event=event)  # pragma: no cover

        return error


def _places(where: Any, which: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Where the rows `which` of a part stand in the call, `where` being where the part does."""
    if isinstance(where, slice):
        return which + where.start if where.start else which
    places: npt.NDArray[Any] = where[which]
    return places
