"""Writes what happens as traces (contract section 9): JSON Lines in segments, by a thread of its own.

    recorder = Recorder("logs/prefill.jsonl", compress="gzip")
    shadow = Shadow(observers=(recorder,))            # beside somebody else's scheduler
    table = ObservedTable([recorder])                 # or as the table of your own

Events are noted in the scheduler's thread, which costs well below a microsecond, and written by another one every
`flush_every` seconds. ``logs/prefill.jsonl`` becomes the segments ``logs/prefill.000001.jsonl``,
``logs/prefill.000002.jsonl``, and so on; each begins with its policy line, and a full one is compressed
(``.jsonl.gz``). ``lifecycle check logs/prefill.jsonl`` reads them all, in order. What a shadow finds goes to
``logs/prefill.divergences.jsonl``.

What is safe
    The segment that is being written is never compressed, and whole lines reach the operating system at once, so a
    process that is killed loses at most the last `flush_every` seconds, and leaves at most one line cut short, at
    the end of a segment. A recorder that starts anew takes a new segment; it never appends to one, and compresses
    what others left behind unless they still write it (they hold a lock on it).

What is lost
    A scheduler is never kept waiting. Where more than `max_waiting` events wait to be written, the *rest of the
    life* of each request that has one more is left out: it looks as if it had not ended, never as if it had done
    something wrong. :attr:`Recorder.dropped` counts the events. A disk that is full loses what it has no room for,
    in whole lines, and :attr:`Recorder.failure` says so.
"""

from __future__ import annotations

import atexit
import contextlib
import gzip
import json
import os
import re
import shutil
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .compile import Effect
from .errors import EventError
from .observe import Observer
from .policy import DEFAULT_POLICY, Policy
from .request import RequestLifecycle
from .trace import _FIELDS
from .vocabulary import Event

if TYPE_CHECKING:
    from .shadow import Divergence

COMPRESSIONS: Final = {None: "", "gzip": ".gz", "zstd": ".zst"}
"""How a full segment is kept, and what its name ends in. ``zstd`` needs the extra ``[zstd]``."""

_Noted = tuple[float, str, str, Mapping[str, Any]]
_R = TypeVar("_R", bound="Recorder")


class Recorder(Observer):
    """An observer that writes a trace. It starts its thread at once; :meth:`close` ends it, as does a ``with``.

    Args:
        path: what the segments are named after; its folder is made if need be.
        policy: what stands in the first line of each segment.
        max_bytes: how long a segment grows, about.
        keep: how many full segments are kept, the newest ones; None keeps all.
        compress: None, ``"gzip"`` or ``"zstd"``.
        flush_every: seconds between two writes.
        max_waiting: how many events may wait to be written.
        clock: seconds, for the field ``t``.

    Attributes:
        written, dropped: how many events were written, and left out.
        failure: the last error of the disk; None if there was none.
        segment: the file that is being written.

    Raises:
        OSError: the first segment cannot be made.
        ValueError: a choice that does not exist, or ``zstd`` without its package.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        policy: Policy = DEFAULT_POLICY,
        *,
        max_bytes: int = 256 * 1024 * 1024,
        keep: int | None = None,
        compress: str | None = "gzip",
        flush_every: float = 0.1,
        max_waiting: int = 200_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if compress not in COMPRESSIONS:
            msg = f"compress is one of None, 'gzip', 'zstd'; got {compress!r}"
            raise ValueError(msg)
        if compress == "zstd":
            _zstandard()
        self.path, self.policy, self.max_bytes, self.keep = Path(path), policy, max_bytes, keep
        self.compress, self.flush_every, self.max_waiting = compress, flush_every, max_waiting
        self.clock = clock
        self._descriptor = -1
        self.written = self.dropped = 0
        self.failure: OSError | None = None
        self._waiting: deque[_Noted] = deque()
        self._diverged: deque[Divergence] = deque(maxlen=max_waiting)
        self._cut: dict[str, None] = {}  # whose life is left out from here on
        self._wake, self._closing = threading.Event(), False
        self._writing = threading.Lock()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._open()
        self._thread = threading.Thread(target=self._run, name="lifecycle-recorder", daemon=True)
        self._thread.start()
        _ALL.add(self)

    # What is noted, in the scheduler's thread.

    def saw(
        self,
        request: RequestLifecycle,
        event: str,
        details: Mapping[str, Any],
        effects: tuple[Effect, ...],  # noqa: ARG002  # a trace tells what happened, not what followed
    ) -> None:
        """Note an event."""
        self._note(request.rid, event, details)

    def refused(
        self,
        rid: str,
        event: str,
        details: Mapping[str, Any],
        error: EventError,  # noqa: ARG002  # a reader of the trace finds it again
    ) -> None:
        """Note an event that was illegal: that is what the trace is kept for."""
        self._note(rid, event, details)

    def unknown(self, rid: str, event: str, details: Mapping[str, Any]) -> None:
        """Note an event for nobody who is known."""
        self._note(rid, event, details)

    def diverged(self, divergence: Divergence) -> None:
        """Note what a shadow found."""
        self._diverged.append(divergence)

    def _note(self, rid: str, event: str, details: Mapping[str, Any]) -> None:
        if self._cut and rid in self._cut:
            if event != Event.SUBMIT:
                self.dropped += 1
                return
            del self._cut[rid]
        if len(self._waiting) >= self.max_waiting:
            self.dropped += 1
            self._cut[rid] = None
            if len(self._cut) > self.max_waiting:
                del self._cut[next(iter(self._cut))]
            return
        self._waiting.append((self.clock(), rid, event, details))

    # What is written, in the recorder's.

    def flush(self) -> None:
        """Write what waits, now and in this thread."""
        with self._writing:
            self._write_waiting()

    def close(self) -> None:
        """Write what waits, and end. A second call does nothing."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        with self._writing:
            if self._descriptor >= 0:
                self._write_waiting()
                os.close(self._descriptor)
                self._descriptor = -1
        _ALL.discard(self)

    def __enter__(self: _R) -> _R:  # noqa: PYI019  # typing has Self from Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        with self._writing:
            self._put_away()
        while not self._closing:
            self._wake.wait(self.flush_every)
            self.flush()

    def _write_waiting(self) -> None:
        waiting = self._waiting
        for _ in range(0, len(waiting), 2000):
            batch = [waiting.popleft() for _ in range(min(2000, len(waiting)))]
            lines = [line for noted in batch if (line := _line(noted)) is not None]
            self.dropped += len(batch) - len(lines)
            if lines and self._append(("\n".join(lines) + "\n").encode()):
                self.written += len(lines)
            else:
                self.dropped += len(lines)
        if self._diverged:
            found = [self._diverged.popleft() for _ in range(len(self._diverged))]
            text = "".join(json.dumps(each.to_json()) + "\n" for each in found)
            beside = self.path.with_name(f"{self.path.stem}.divergences.jsonl")
            try:
                with beside.open("a", encoding="utf-8") as stream:
                    stream.write(text)
            except OSError as error:
                self.failure = error

    def _append(self, data: bytes) -> bool:
        """Write whole lines, or nothing of them."""
        if self._descriptor < 0:
            return False
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            self.failure = error
            with contextlib.suppress(OSError):  # a line that was cut short would spoil the next
                os.ftruncate(self._descriptor, self._size)
            return False
        self._size += len(data)
        if self._size >= self.max_bytes:
            self._rotate()
        return True

    # Segments.

    def _open(self) -> None:
        number = max((number for number, _ in _numbered(self.path)), default=0) + 1
        while True:
            name = f"{self.path.stem}.{number:06d}{self.path.suffix}"
            self.segment = self.path.with_name(name)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
                self._descriptor = os.open(self.segment, flags, 0o644)
                break
            except FileExistsError:
                number += 1  # another recorder took it
        _lock(self._descriptor)
        self._size = 0
        self._append((json.dumps({"policy": self.policy.to_mapping()}) + "\n").encode())

    def _rotate(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1
        try:
            self._open()
        except OSError as error:
            self.failure = error
        self._put_away()

    def _put_away(self) -> None:
        """Compress the full segments that nobody writes any more, and delete the oldest."""
        full = [path for _, path in _numbered(self.path) if path != self.segment]
        for path in full:
            if self.compress and path.suffix == self.path.suffix and not _is_written(path):
                try:
                    _compress(path, self.compress)
                except OSError as error:
                    self.failure = error
        if self.keep is not None:
            full = [path for _, path in _numbered(self.path) if path != self.segment]
            for path in full[: max(0, len(full) - self.keep)]:
                path.unlink(missing_ok=True)


_ALL: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _close_all() -> None:
    for recorder in list(_ALL):
        recorder.close()


def _forget_all() -> None:
    """In a forked child there is no thread that writes, and the segment is the parent's.

    The lock may have been held by that thread at the fork, and then nobody would ever open it here.
    """
    for recorder in list(_ALL):
        recorder._descriptor, recorder.max_waiting = -1, 0
        recorder._writing, recorder._wake = threading.Lock(), threading.Event()
    _ALL.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _line(noted: _Noted) -> str | None:
    """One line of the trace; None for what no trace can hold."""
    t, rid, event, details = noted
    if _FIELDS["rid"](rid) or _FIELDS["event"](event):
        return None
    fields: dict[str, Any] = {"event": str(event), "rid": rid}
    for name, value in details.items():
        check = _FIELDS.get(name)
        if check is None or value is None:
            continue
        if name == "pages" and check(value) is not None:
            value = len(value) if hasattr(value, "__len__") else None  # noqa: PLW2901  # a lease: its length
            if value is None:
                continue
        if check(value) is None:
            fields[name] = str(value) if isinstance(value, str) else value
    if event == Event.COMPLETE and fields.get("reason") not in ("stop", "length"):
        return None
    fields["t"] = round(t, 6)
    return json.dumps(fields)


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError:
        msg = "zstd needs a package: pip install 'request-lifecycle[zstd]'"
        raise ValueError(msg) from None
    return zstandard


def _numbered(path: Path) -> list[tuple[int, Path]]:
    name = re.compile(
        re.escape(path.stem) + r"\.(\d{6,})" + re.escape(path.suffix) + r"(\.gz|\.zst)?"
    )
    try:
        beside = list(path.parent.iterdir())
    except OSError:
        return []
    found = [(int(m[1]), each) for each in beside if (m := name.fullmatch(each.name))]
    return sorted(found)


def segments(path: str | os.PathLike[str]) -> list[Path]:
    """The segments of a recorder's `path`, oldest first; empty where there are none."""
    return [each for _, each in _numbered(Path(path))]


def _lock(descriptor: int) -> bool:
    """Lock a segment for its recorder; False where another one has it."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover  # Windows, which refuses to delete an open file instead
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_written(path: Path) -> bool:
    """Whether a recorder that lives still writes this segment."""
    try:
        with path.open("rb") as stream:
            return not _lock(stream.fileno())
    except OSError:
        return True  # gone meanwhile


def _compress(path: Path, how: str) -> None:
    """Compress a file; it is there in one form or the other, whole, whenever the process is killed."""
    whole = path.with_name(path.name + COMPRESSIONS[how])
    part = path.with_name(f"{whole.name}.part")
    with path.open("rb") as source, part.open("wb") as raw:
        if how == "gzip":
            with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=3) as packed:
                shutil.copyfileobj(source, packed, 1 << 20)
        else:
            _zstandard().ZstdCompressor(level=3).copy_stream(source, raw)
        raw.flush()
        os.fsync(raw.fileno())
    part.replace(whole)
    path.unlink()
