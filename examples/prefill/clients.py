"""Clients that give up: aborts posted from a thread of their own, as an HTTP server's handlers do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from .load import Spec


class Clients:
    """Posts the aborts of a load through ``abort``, which must take calls from any thread."""

    def __init__(self, load: Iterable[Spec], abort: Callable[[str], None]) -> None:
        self._abort = abort
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="clients")
        self._beat: Future[list[str]] | None = None
        self._due: defaultdict[int, list[str]] = defaultdict(list)
        for spec in load:
            if spec.abort_after is not None:
                self._due[spec.arrives + spec.abort_after].append(spec.rid)

    def start_beat(self, now: int) -> None:
        """Let the thread post what is due, beside the caller."""
        self._beat = self._thread.submit(self._post, self._due.pop(now, []))

    def finish_beat(self) -> list[str]:
        """Wait for the beat, if one was started, and return the rids whose abort was posted."""
        posted = [] if self._beat is None else self._beat.result()
        self._beat = None
        return posted

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _post(self, rids: list[str]) -> list[str]:
        for rid in rids:
            self._abort(rid)
        return rids
