"""The transfer engine: copies pages to the decode worker's pool, in a thread of its own.

It behaves as real ones were measured to behave:

- A *failed* verdict says what to report. The copy goes on, and what the pages hold by then is what is sent.
- ``cancel`` makes the verdict of a running op *failed*, unless it succeeds first. It stops nothing.
- A peer that stops answering makes the verdict *failed* after a while. It may come back much later, and then
  the rest is sent; or it never does, and nobody can tell which.
- Only ``drained`` says that an op will not touch the pages again.

Like a network card it works on page numbers, and asks nobody whether they are still right. It works in beats:
:meth:`TransferEngine.start_beat` lets the thread copy beside the scheduler, :meth:`TransferEngine.finish_beat`
makes what it did visible to polls. Ops posted and cancelled meanwhile join at the next beat.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import attrs

from kvpool import Lease, PagePool
from lifecycle import Hold

from .load import Spec, TransferPlan
from .receiver import Receiver

VERDICT_AFTER = 3
"""Beats until a peer that does not answer is given up."""


@attrs.define(eq=False)
class Op:
    """One posted transfer: some pages of one attempt of a request.

    ``first_page`` is the index of its first page in the prompt. The scheduler reads ``failed``, ``peer_lost``,
    ``succeeded`` and ``drained``; the rest is the engine's.
    """

    name: str
    rid: str
    attempt: int
    number: int
    prompt_tokens: int
    first_page: int
    pages: tuple[int, ...]
    target: Lease
    plan: TransferPlan
    succeeded: bool = False
    failed: bool = False
    peer_lost: bool = False
    drained: bool = False
    cancelled: bool = False
    copied: int = 0
    progress: float = 0.0
    stalled_for: int = 0

    @property
    def lost_for_good(self) -> bool:
        """Whether its peer stopped answering and will never come back. Only the demo knows."""
        return bool(self.stalled_for) and self.plan.resumes_after is None


class TransferEngine:
    """Copies from the pages of ``pool`` to those of the receiver. Implements the port of that name."""

    def __init__(self, pool: PagePool, receiver: Receiver) -> None:
        self._pool, self._receiver = pool, receiver
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="transfer")
        self._beat: Future[None] | None = None
        self._active: list[Op] = []
        self._posted: list[Op] = []
        self._to_cancel: list[tuple[str, int]] = []

    # What the scheduler calls.

    def post(
        self, spec: Spec, attempt: int, name: str, first_page: int, pages: tuple[int, ...]
    ) -> Op:
        """Start to copy ``pages``. They must hold what is to be sent, and be claimed until it drained."""
        op = Op(
            name=name,
            rid=spec.rid,
            attempt=attempt,
            number=spec.number,
            prompt_tokens=spec.prompt_tokens,
            first_page=first_page,
            pages=pages,
            target=self._receiver.expect(len(pages), spec.rid, attempt),
            plan=spec.transfer,
        )
        self._posted.append(op)
        return op

    def cancel(self, hold: Hold) -> None:
        """Tell the sender of this attempt, and through it the other leg, that the hand-off is off."""
        self._to_cancel.append((hold.rid, hold.attempt))

    def start_beat(self) -> None:
        """Copy for one beat, beside the caller."""
        self._active += self._posted
        self._posted = []
        for key in self._to_cancel:
            for op in self._active:
                op.cancelled |= (op.rid, op.attempt) == key
        self._to_cancel = []
        self._beat = self._thread.submit(self._copy_all)

    def finish_beat(self) -> None:
        """Wait for the beat, if one was started. What the thread raised is raised here."""
        if self._beat is not None:
            self._beat.result()
            self._beat = None

    def close(self) -> None:
        """Stop for good, and so prove that no page is touched any more. Dead peers' pages are checked too."""
        self.finish_beat()
        self._thread.shutdown()
        for op in self._active:
            self._receiver.ended(op)
        self._active = []

    # The transfer thread.

    def _copy_all(self) -> None:
        for op in self._active:
            self._advance(op)
        self._active = [op for op in self._active if not op.drained]

    def _advance(self, op: Op) -> None:
        plan = op.plan
        if self._is_stalled(op):
            op.stalled_for += 1
            if op.stalled_for == VERDICT_AFTER:
                op.failed = op.peer_lost = True
            op.failed |= op.cancelled
            return
        op.progress += plan.late_pace if op.failed else plan.pace
        while op.copied < min(int(op.progress), len(op.pages)) and not self._is_stalled(op):
            source = self._pool.page_view(op.pages[op.copied])
            op.target.page_view(op.copied).copy_(source)
            op.copied += 1
        if plan.fails_at is not None and op.first_page + op.copied > plan.fails_at:
            op.failed = True
        op.drained = op.copied == len(op.pages)
        op.succeeded = op.drained and not op.failed
        op.failed |= op.cancelled and not op.drained
        if op.drained:
            self._receiver.ended(op)

    @staticmethod
    def _is_stalled(op: Op) -> bool:
        plan = op.plan
        if plan.stalls_at is None or op.first_page + op.copied < plan.stalls_at:
            return False
        return plan.resumes_after is None or op.stalled_for < plan.resumes_after
