"""Rows in columns: how a :class:`~lifecycle.batch.RequestBatch` keeps its requests.

A row's *shape* is two bytes (:mod:`lifecycle.batch.shapes`). Beside it stand the numbers that a shape leaves
out: the newest step, the attempt, the late events, the token position at which the answer ended, a generation,
and a deadline; 38 bytes in all. What few rows have stands beside the columns: messages and HTTP statuses in a
dictionary, and rows that cannot be a shape as the objects that they are.

Columns come in chunks of 65,536 rows. They grow by one chunk at a time and never move a row, so no loop ever waits
for a large copy; and what one chunk needs for its working fits into a core's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..compile import Automaton
from ..errors import BadDetail, LifecycleError
from ..reasons import NO_DETAILS, Details
from ..request import RequestLifecycle
from . import shapes as sh
from .applied import NO_ROWS, Ints
from .shapes import Shapes, shapes_of

CHUNK_BITS = 16
CHUNK = 1 << CHUNK_BITS

NO_POSITION = int(np.iinfo(np.int64).min)
# Numbers up to here fit into columns, with room to count.
_MOST, _MOST_32 = 1 << 62, 1 << 31

_KINDS = {
    "shape": np.uint16,
    "attempt": np.uint32,
    "late": np.uint32,
    "generation": np.uint32,
    "last": np.int64,
    "position": np.int64,
    "deadline": np.float64,
}
ROW_BYTES = sum(np.dtype(kind).itemsize for kind in _KINDS.values())
"""What one row takes in columns."""

Where = slice | npt.NDArray[Any]
Part = tuple["Chunk", npt.NDArray[Any], Where]


class Chunk:
    """The columns of 65,536 rows, the first of which has the number `first`."""

    __slots__ = (*_KINDS, "first")

    shape: npt.NDArray[np.uint16]
    attempt: npt.NDArray[np.uint32]
    late: npt.NDArray[np.uint32]
    generation: npt.NDArray[np.uint32]
    last: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    deadline: npt.NDArray[np.float64]

    def __init__(self, first: int) -> None:
        self.first = first
        for name, kind in _KINDS.items():
            setattr(self, name, np.empty(CHUNK, kind))
        self.shape.fill(sh.FREE)
        self.generation.fill(0)


class Rows:
    """Requests in columns: they come, go, and are looked at. What fires events at them is built on this."""

    def __init__(self, automaton: Automaton, name: Callable[[int], str] | None = None) -> None:
        self.automaton = automaton
        self.shapes: Shapes = shapes_of(automaton)
        self.slots = 0
        self._name = name or "row {}".format
        self._chunks: list[Chunk] = []
        self._free: Ints = np.empty(64, np.int64)  # a stack of rows that may be used again
        self._frees = 0
        self._version = 0  # goes up with whatever may change a row
        self._objects: dict[int, RequestLifecycle] = {}
        self._details: dict[int, Details] = {}  # without positions, which are a column

    def __len__(self) -> int:
        """How many requests it holds."""
        return self.slots - self._frees

    # Coming and going.

    def add(self, count: int = 1) -> Ints:
        """Submit `count` requests; their rows, int64, shape (count,).

        Raises:
            BadDetail: `count` is negative.
        """
        if count < 0:
            msg = f"cannot add {count} requests"
            raise BadDetail(msg)
        self._version += 1
        again = min(count, self._frees)
        self._frees -= again
        rows = np.empty(count, np.int64)
        rows[:again] = self._free[self._frees : self._frees + again][::-1]
        rows[again:] = np.arange(self.slots, self.slots + count - again)
        self.slots += count - again
        while len(self._chunks) << CHUNK_BITS < self.slots:
            self._chunks.append(Chunk(len(self._chunks) << CHUNK_BITS))
        for chunk, local, _ in self._parts(rows):
            chunk.shape[local] = self.shapes.start
            chunk.attempt[local] = 0
            chunk.late[local] = 0
            chunk.last[local] = 0
            chunk.position[local] = NO_POSITION
            chunk.deadline[local] = np.inf
        return rows

    def remove(self, rows: npt.ArrayLike) -> None:
        """Let these rows be used again. Their requests must be over: done, and nothing of them drains.

        Raises:
            LifecycleError: one is not over, is free, or is named twice. Nothing is removed.
        """
        rows = self._checked(rows)
        over = self.over(rows)
        if not over.all():
            row = int(rows[np.argmin(over)])
            if self._shape(row) == sh.FREE:
                msg = f"row {row} cannot be removed: no request has it"
            else:
                msg = f"row {row} cannot be removed: {self.request(row)!r} is not over"
            raise LifecycleError(msg)
        if len(rows) > 1 and len(np.unique(rows)) < len(rows):
            msg = "rows cannot be removed: one is named twice"
            raise LifecycleError(msg)
        self._version += 1
        if self._objects or self._details:
            for row in rows.tolist():
                self._objects.pop(row, None)
                self._details.pop(row, None)
        for chunk, local, _ in self._parts(rows):
            chunk.shape[local] = sh.FREE
            chunk.generation[local] += np.uint32(1)
        need = self._frees + len(rows)
        if need > len(self._free):
            self._free = np.concatenate([self._free, np.empty(need, np.int64)])
        self._free[self._frees : need] = rows
        self._frees = need

    def put(self, request: RequestLifecycle) -> int:
        """Take in a request as it is, its journal left out; its row. The object itself is not kept.

        Raises:
            LifecycleError: it follows another automaton.
        """
        if request.automaton is not self.automaton:
            msg = f"{request!r} follows another table or policy than this batch"
            raise LifecycleError(msg)
        row = int(self.add()[0])
        self._write(row, _copy(request, request.rid, request.incarnation, journal=False))
        return row

    def request(
        self, row: int, rid: str | None = None, *, incarnation: int = 1, journal: bool = False
    ) -> RequestLifecycle:
        """The request of a row as an object of its own: what is fired at it does not reach the row.

        Args:
            row: the row.
            rid: what the object is called; the batch's name of the row by default.
            incarnation: which life of that rid it is.
            journal: whether the object keeps a journal from now on.

        Raises:
            LifecycleError: no request has this row.
            BadDetail: there is no such row.
        """
        row = int(self._checked(row)[0])
        code = self._shape(row)
        if code == sh.FREE:
            msg = f"no request has row {row}"
            raise LifecycleError(msg)
        rid = self._name(row) if rid is None else rid
        if code == sh.OBJECT:
            return _copy(self._objects[row], rid, incarnation, journal=journal)
        return self._built(row, code, rid, incarnation, journal=journal)

    # Looking at it.

    def rows(self) -> Ints:
        """Every row that a request has, int64, in order."""
        live = [chunk.first + np.flatnonzero(chunk.shape != sh.FREE) for chunk in self._chunks]
        return np.concatenate([NO_ROWS, *live])

    def generation(self, rows: npt.ArrayLike) -> npt.NDArray[np.uint32]:
        """How often each of these rows was used before, uint32, shape (n,)."""
        return self._gather("generation", self._checked(rows))

    def state(self, rows: npt.ArrayLike) -> npt.NDArray[np.int8]:
        """The states of these rows, int8, shape (n,), as indices of :attr:`Shapes.states`."""
        states = self.shapes.states
        return self._by_shape("state", rows, lambda request: states.index(str(request.state)))

    def reason(self, rows: npt.ArrayLike) -> npt.NDArray[np.int8]:
        """The reasons that stand, int8, shape (n,), as indices of :attr:`Shapes.reasons`; -1 for none."""

        def number(request: RequestLifecycle) -> int:
            return -1 if request.reason is None else self.shapes.reasons.index(request.reason)

        return self._by_shape("reason", rows, number)

    def done(self, rows: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Which of these rows are done, bool, shape (n,)."""
        return self._by_shape("done", rows, lambda request: request.done)

    def over(self, rows: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Which of these rows are done and have nothing that drains: those may be removed."""
        return self._by_shape("over", rows, lambda request: request.over)

    def draining(self, rows: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Which of these rows are decided, and wait for a claim of the newest or of an older attempt."""
        rows = self._checked(rows)
        decided = self._by_shape("decided", rows, lambda request: request.decided)
        return decided & ~self.over(rows)

    def attempt(self, rows: npt.ArrayLike) -> npt.NDArray[np.uint32]:
        """The attempts of these rows, uint32, shape (n,)."""
        return self._gather("attempt", self._checked(rows))

    def late_events(self, rows: npt.ArrayLike) -> npt.NDArray[np.uint32]:
        """How many late events each of these rows absorbed, uint32, shape (n,)."""
        return self._gather("late", self._checked(rows))

    def outstanding(self, rows: npt.ArrayLike) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """How many passes, and how many ops, each of these rows has out in its newest attempt."""
        rows = self._checked(rows)
        return (
            self._by_shape("steps", rows, lambda request: len(request.steps)),
            self._by_shape("ops", rows, lambda request: len(request.ops)),
        )

    def by_state(self) -> dict[str, int]:
        """How many requests are in each state."""
        counts = np.bincount(self.state(self.rows()), minlength=len(self.shapes.states))
        named = zip(self.shapes.states, counts.tolist(), strict=True)
        return {name: count for name, count in named if count}

    @property
    def nbytes(self) -> int:
        """The bytes of its columns and of the stack of free rows."""
        return len(self._chunks) * CHUNK * ROW_BYTES + self._free.nbytes

    # How rows are found.

    def _checked(self, rows: npt.ArrayLike) -> Ints:
        """Row numbers as int64, shape (n,), each of them of an existing row."""
        array = np.asarray(rows)
        if not array.size:
            return NO_ROWS
        if array.dtype != np.int64 or array.ndim != 1:
            if array.dtype.kind not in "iu" or array.ndim > 1:
                msg = (
                    f"rows are integers in one dimension, not {array.dtype} of shape {array.shape}"
                )
                raise BadDetail(msg)
            array = array.astype(np.int64).reshape(-1)
        # A negative number reads as a very high one here: one comparison for both ends.
        if np.count_nonzero(array.view(np.uint64) >= np.uint64(self.slots)):
            low, high = int(array.min()), int(array.max())
            msg = f"row {low if low < 0 else high} does not exist: there are {self.slots}, from 0"
            raise BadDetail(msg)
        return array

    def _parts(self, rows: Ints) -> Iterator[Part]:
        """The rows of each chunk: the chunk, places in it, and where they stand in `rows`."""
        if len(self._chunks) == 1:
            yield self._chunks[0], rows, slice(None)
            return
        if not len(rows):
            return
        which = rows >> CHUNK_BITS
        order: npt.NDArray[Any] | None = None
        if (which[1:] < which[:-1]).any():
            order = np.argsort(which.astype(np.uint16), kind="stable")  # by counting: it is linear
            which = which[order]
        edges = np.flatnonzero(which[1:] != which[:-1]) + 1
        starts = [0, *edges.tolist(), len(rows)]
        for start, stop in pairwise(starts):
            where: Where = slice(start, stop) if order is None else order[start:stop]
            yield self._chunks[int(which[start])], rows[where] & (CHUNK - 1), where

    def _gather(self, column: str, rows: Ints) -> npt.NDArray[Any]:
        found = np.empty(len(rows), _KINDS[column])
        for chunk, local, where in self._parts(rows):
            found[where] = getattr(chunk, column)[local]
        return found

    def _by_shape(
        self, table: str, rows: npt.ArrayLike, of: Callable[[RequestLifecycle], Any]
    ) -> npt.NDArray[Any]:
        """What `table` of the shapes says of each row; `of` says it of a row that is an object."""
        rows = self._checked(rows)
        codes = self._gather("shape", rows)
        found: npt.NDArray[Any] = getattr(self.shapes, table)[codes]
        if self._objects:
            for place in np.flatnonzero(codes == sh.OBJECT).tolist():
                found[place] = of(self._objects[int(rows[place])])
        return found

    def _shape(self, row: int) -> int:
        return int(self._chunks[row >> CHUNK_BITS].shape[row & (CHUNK - 1)])

    # Rows and objects.

    def _built(
        self, row: int, code: int, rid: str, incarnation: int = 1, *, journal: bool = False
    ) -> RequestLifecycle:
        """The object that a row in columns stands for, `code` being its shape."""
        chunk, at = self._chunks[row >> CHUNK_BITS], row & (CHUNK - 1)
        shape = self.shapes.shapes[code]
        assert shape is not None
        request = self.shapes.request(
            shape, int(chunk.last[at]), int(chunk.attempt[at]),
            rid=rid, incarnation=incarnation, journal=journal,
        )  # fmt: skip
        request.late = int(chunk.late[at])
        position = int(chunk.position[at])
        said = self._details.get(row, NO_DETAILS)
        if position != NO_POSITION:
            said = Details(said.message, said.status, said.cause, position)
        request._details = said
        return request

    def _write(self, row: int, request: RequestLifecycle) -> None:
        """Make a row what `request` is: in columns where it can be, else as this very object."""
        chunk, at = self._chunks[row >> CHUNK_BITS], row & (CHUNK - 1)
        details = request._details
        position = NO_POSITION if details.position is None else details.position
        fits = (
            abs(request._last_step) < _MOST
            and (position == NO_POSITION or abs(position) < _MOST)
            and max(request.attempt, request.late) < _MOST_32
        )
        chunk.attempt[at] = min(request.attempt, _MOST_32)
        chunk.late[at] = min(request.late, _MOST_32)
        code = self.shapes.code(self.shapes.shape_of(request)) if fits else None
        if code is None:
            self._objects[row] = request
            chunk.shape[at] = sh.OBJECT
            return
        self._objects.pop(row, None)
        chunk.shape[at] = code
        chunk.last[at], chunk.position[at] = request._last_step, position
        said = Details(details.message, details.status, details.cause)
        if said == NO_DETAILS:
            self._details.pop(row, None)
        else:
            self._details[row] = said


def _copy(
    request: RequestLifecycle, rid: str, incarnation: int, *, journal: bool
) -> RequestLifecycle:
    copy = RequestLifecycle(rid, request.automaton, incarnation, journal)
    for name in ("attempt", "late", "_node", "_steps", "_ops", "_last_step", "_details", "_older"):
        setattr(copy, name, getattr(request, name))
    return copy
