"""The same decisions, written by hand as engines write them, at the places where they come up.

:class:`HandWritten` takes the events that :class:`lifecycle.Driver` takes and sits in its place, so that the
scheduler, the load, the transfers and the pool are the same. It follows SGLang's disaggregated prefill around
pull request 30937, in two versions:

``before``
    A grammar error at the first token frees the pages at once. The request is still in the in-flight queue,
    whose terminal poll frees them again and puts its own finish reason in place.
``after``, with the fix merged
    A grammar error waits for the terminal poll, which frees once and keeps the reason.

Both versions have in common:

- An abort or deadline that comes while the KV is being sent cancels the sender and waits in ``to_finish``. Nobody
  reads it there: if the transfer succeeds the client gets ``length``, if it fails, ``transfer_failed``
  (sglang 33507).
- *Failed* is taken for *drained*: a terminal poll frees the pages (sglang 38961).
- An abort between chunks and a preemption free the pages at once, although the transfer of an earlier chunk may
  be reading them (sglang 36926).

Each of them looks right on its own. They were written by good people.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

from lifecycle import WIRE, AbortSource, FinishReason, Hold, Outcome, State, Todo
from lifecycle.vocabulary import ABORT_REASONS

from .engine import TransferEngine
from .pages import FreeListPages, PageList
from .witness import Witness

R = FinishReason


@attrs.define(eq=False)
class Request:
    """What an engine keeps about a request.

    ``finished_reason`` is what the client will be told, ``to_finish`` an abort that waits to become one.
    ``ops`` are the chunks whose transfer has not succeeded yet, ``failed`` why one has failed.
    """

    rid: str
    state: State = State.QUEUED
    incarnation: int = 1
    attempt: int = 0
    pages: PageList | None = None
    ops: set[str] = attrs.field(factory=set)
    failed: FinishReason | None = None
    to_finish: FinishReason | None = None
    finished_reason: FinishReason | None = None


class HandWritten:
    """Decides how requests end. ``fixed`` chooses the version after the fix."""

    def __init__(
        self, pages: FreeListPages, engine: TransferEngine, reporter: Witness, *, fixed: bool
    ) -> None:
        self._pages, self._engine, self._reporter, self._fixed = pages, engine, reporter, fixed
        self._requests: dict[str, Request] = {}
        self._inflight: list[Request] = []
        self._aborts: deque[str] = deque()
        self._on: dict[str, Callable[..., None]] = {
            "abort": self._aborted,
            "admit": self._admitted,
            "forward_finished": self._forward_finished,
            "transfer_posted": self._posted,
            "prefill_finished": self._prefill_finished,
            "transfer_succeeded": self._succeeded,
            "transfer_failed": partial(self._failed, reason=R.TRANSFER_FAILED),
            "peer_lost": partial(self._failed, reason=R.PEER_LOST),
            "grammar_failed": self._grammar_failed,
            "error": self._broke,
            "preempt": self._preempted,
        }

    @property
    def holds(self) -> tuple[Hold, ...]:
        """Nothing is ever on its way back: pages are freed at once or not at all."""
        return ()

    def submit(self, rid: str, *, now: float | None = None) -> Request:  # noqa: ARG002  # as the driver
        """A new request."""
        request = self._requests[rid] = Request(rid)
        return request

    def fire(
        self,
        rid: str,
        event: str,
        *,
        incarnation: int | None = None,  # noqa: ARG002  # as the driver
        now: float | None = None,  # noqa: ARG002  # as the driver
        attempt: int | None = None,
        **details: Any,
    ) -> None:
        """Something happened. Events that this code has no place for (a drain) are nobody's business."""
        request = self._requests.get(rid)
        handler = self._on.get(event)
        if request is not None and handler is not None and attempt in (None, request.attempt):
            handler(request, **details)

    def post_abort(self, rid: str) -> None:
        """From any thread."""
        self._aborts.append(rid)

    def drain_inbox(self, now: float | None = None) -> tuple[Todo, ...]:
        """Take in the aborts that other threads posted."""
        while self._aborts:
            self.fire(self._aborts.popleft(), "abort", now=now, source="client")
        return ()

    def expire(self, now: float) -> tuple[Todo, ...]:  # noqa: ARG002  # as the driver
        """The in-flight queue: end what has a terminal poll.

        Success waits for all chunks. Failed waits for none, and the pages are freed all the same.
        """
        for request in self._inflight:
            if request.failed is None and request.ops:
                continue
            self._free(request)
            if request.finished_reason is None or not self._fixed:
                request.finished_reason = request.failed or R.LENGTH
            self._finish(request, request.finished_reason)
        self._inflight = [request for request in self._inflight if request.state is not State.DONE]
        return ()

    # What happened.

    def _aborted(self, request: Request, source: str) -> None:
        reason = ABORT_REASONS[AbortSource(source)]
        if request.state is State.QUEUED:
            self._finish(request, reason)
        elif request.state is not State.DONE and request.to_finish is None:
            request.to_finish = reason
            if request.state is State.TRANSFERRING:
                self._cancel(request)

    def _admitted(self, request: Request, pages: PageList) -> None:
        request.pages, request.state = pages, State.PREFILLING

    def _posted(self, request: Request, op: str) -> None:
        request.ops.add(op)

    def _succeeded(self, request: Request, op: str) -> None:
        request.ops.discard(op)

    def _failed(
        self,
        request: Request,
        reason: FinishReason,
        op: str | None = None,  # noqa: ARG002  # one is enough
    ) -> None:
        if request.failed is None:
            request.failed = reason

    def _forward_finished(self, request: Request, step: int) -> None:  # noqa: ARG002  # any pass will do
        if request.state is State.PREFILLING and request.to_finish is not None:
            self._cancel(request)
            self._free(request)
            self._finish(request, request.to_finish)

    def _prefill_finished(self, request: Request) -> None:
        request.state = State.TRANSFERRING
        self._inflight.append(request)

    def _grammar_failed(self, request: Request, cause: str) -> None:  # noqa: ARG002  # not told to the client here
        if request.state is State.QUEUED:
            self._finish(request, R.GRAMMAR_ERROR)
        elif request.state is State.TRANSFERRING:
            request.finished_reason = R.GRAMMAR_ERROR
            if not self._fixed:
                self._free(request)

    def _broke(self, request: Request, message: str) -> None:  # noqa: ARG002  # not told to the client here
        self._cancel(request)
        self._free(request)
        self._finish(request, R.INTERNAL_ERROR)

    def _preempted(self, request: Request) -> None:
        self._free(request)
        request.attempt += 1
        request.state, request.failed = State.QUEUED, None
        request.ops.clear()

    # How it ends.

    def _free(self, request: Request) -> None:
        assert request.pages is not None
        self._pages.release(request.pages)

    def _cancel(self, request: Request) -> None:
        self._engine.cancel(Hold(request.rid, 1, request.attempt))

    def _finish(self, request: Request, reason: FinishReason) -> None:
        request.state = State.DONE
        wire = WIRE[reason]
        self._reporter.report(
            Outcome(request.rid, 1, reason, wire.finish, wire.status, wire.message)
        )
