"""The polls of an in-flight queue: the loop that a scheduler of disaggregated prefill runs most often.

Nearly every poll says that a transfer is pending, and a pending poll changes nothing, unless the request has
ended. So what this costs is what it costs to be sure of both, for every row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..consensus import Verdict
from ..errors import BadDetail
from . import shapes as sh
from .applied import Applied, Ints
from .columns import Part

if TYPE_CHECKING:
    from .batch import RequestBatch

PENDING = int(Verdict.PENDING)


def polls_of(polls: Any, count: int) -> npt.NDArray[Any]:
    """Polls as an array of numpy, not copied where they are one or a CPU tensor.

    Raises:
        BadDetail: they are no integers, not so many, or on a device.
    """
    try:
        said = np.asarray(polls)
    except (TypeError, ValueError, RuntimeError) as error:
        msg = f"polls are an array of integers in this computer's memory: {error}"
        raise BadDetail(msg) from None
    if said.shape != (count,) or (said.dtype.kind not in "iu" and count):
        msg = f"{count} rows take as many polls, integers, not {said.dtype} of shape {said.shape}"
        raise BadDetail(msg)
    return said


def still(parts: list[Part]) -> bool:
    """Whether a pending poll leaves each row of these parts as it is."""
    return not any(
        np.count_nonzero(chunk.shape.take(local) >= np.uint16(sh.MOVED_BY_PENDING))
        for chunk, local, _ in parts
    )


class Queue:
    """Rows whose hand-offs are polled together, again and again: a scheduler's in-flight queue.

    It remembers that a pending poll leaves all its rows as they are until something happens in the batch, whatever
    it is; then it looks at every row again. Most rounds of a loop cost a comparison of two arrays.

    Attributes:
        rows: int64, shape (n,): whose polls are taken, in this order.
    """

    def __init__(self, batch: RequestBatch, rows: Ints) -> None:
        self._batch = batch
        self._set(rows)

    def _set(self, rows: Ints) -> None:
        self.rows = rows
        self._parts = list(self._batch._parts(rows))
        self._quiet = bytes([PENDING]) * len(rows)
        self._still_at = -1

    def __len__(self) -> int:
        return len(self.rows)

    def poll(self, polls: Any, *, failed_implies_drained: bool = False) -> Applied:
        """As :meth:`RequestBatch.poll` for these rows.

        Raises:
            BadDetail: another number, or another length. Nothing is applied.
        """
        batch = self._batch
        said = polls_of(polls, len(self.rows))
        if self._still_at != batch._version and still(self._parts):
            self._still_at = batch._version
        known = self._still_at == batch._version
        if known and said.itemsize == 1 and said.tobytes() == self._quiet:
            return batch.nothing
        return batch._poll(said, self.rows, said != PENDING, known, failed_implies_drained)

    def extend(self, rows: npt.ArrayLike) -> None:
        """Put these rows at its end.

        Raises:
            BadDetail: a row does not exist.
        """
        self._set(np.concatenate([self.rows, self._batch._checked(rows)]))

    def leave(self, rows: npt.ArrayLike) -> None:
        """Take these rows out of it, those that are in it; the others keep their order."""
        keep = ~np.isin(self.rows, self._batch._checked(rows))
        self._set(self.rows[keep])
