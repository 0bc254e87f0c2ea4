"""The lines of logs, whatever they are packed in, and how they are damaged.

A log is a file, a recorder's path (all of its segments, in order), or ``-`` for standard input. It is read in
chunks of a mebibyte: nothing grows with its length, nor with that of a line that never ends.
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import attrs

from ..errors import TraceError
from ..recorder import segments
from ..trace import MAX_LINE

CHUNK: Final = 1 << 20


@attrs.frozen
class Place:
    """A line of a file, from 1; 0 for the file as a whole."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


@attrs.frozen
class Damage:
    """Something in a log that is no event: where, and what. `lost` tells whether something could not be read."""

    place: Place
    what: str
    lost: bool = True

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


def expand(paths: tuple[str, ...]) -> list[str]:
    """The files to read: a recorder's path stands for its segments.

    Raises:
        TraceError: there is no such file.
    """
    files: list[str] = []
    for path in paths:
        if path == "-" or Path(path).is_file():
            files.append(path)
        elif found := segments(path):
            files += map(str, found)
        else:
            what = (
                "a folder" if Path(path).is_dir() else "no such file, and no segments of a recorder"
            )
            raise TraceError(what, path=path)
    return files


def total_bytes(files: list[str]) -> int | None:
    """How many bytes there are to read, packed as they are; None where nobody knows."""
    if "-" in files:
        return None
    return sum(Path(path).stat().st_size for path in files)


def chunks(
    path: str, damaged: Callable[[Damage], None], advance: Callable[[int], None] | None = None
) -> Iterator[tuple[int, list[str], bool]]:
    """The lines of one file in lists, with the number of the first, and whether it is a last one without an end.

    Args:
        path: the file, or ``-``.
        damaged: told of what cannot be read.
        advance: told how many bytes of the file were read since it was last told.

    Raises:
        TraceError: the file cannot be read at all.
    """
    name = "<stdin>" if path == "-" else path
    try:
        raw: IO[bytes] = sys.stdin.buffer if path == "-" else Path(path).open("rb")  # noqa: SIM115  # see below
    except OSError as error:
        raise TraceError(error.strerror or str(error), path=name) from None
    try:
        yield from _chunks(name, _Counted(raw, advance), damaged)
    finally:
        if path != "-":
            raw.close()


def _chunks(
    name: str, raw: _Counted, damaged: Callable[[Damage], None]
) -> Iterator[tuple[int, list[str], bool]]:
    number, rest, skipping = 1, b"", False
    read = _unpacked(raw, name)
    while True:
        try:
            data = read(CHUNK)
        except (OSError, EOFError, zlib.error) as error:
            damaged(Damage(Place(name, number), f"the file ends or breaks in the middle: {error}"))
            data = b""
        if not data:
            break
        lines = (rest + data).split(b"\n")
        rest = lines.pop()
        if skipping and lines:
            del lines[0]
            number, skipping = number + 1, False
        if lines:
            yield number, _decoded(lines, name, number, damaged), False
            number += len(lines)
        if len(rest) > MAX_LINE or skipping:
            if not skipping:
                what = f"the line is longer than {MAX_LINE:,} bytes, and is left out"
                damaged(Damage(Place(name, number), what))
            rest, skipping = b"", True
    if rest:
        yield number, _decoded([rest], name, number, damaged, cut=True), True


def _decoded(
    lines: list[bytes],
    name: str,
    number: int,
    damaged: Callable[[Damage], None],
    *,
    cut: bool = False,
) -> list[str]:
    try:
        return b"\n".join(lines).decode().split("\n")
    except UnicodeDecodeError:
        pass
    texts = []
    for offset, line in enumerate(lines):
        try:
            texts.append(line.decode())
        except UnicodeDecodeError as error:
            texts.append("")
            if not cut:
                what = f"not UTF-8: byte {error.start + 1} of the line"
                damaged(Damage(Place(name, number + offset), what))
            else:
                damaged(Damage(Place(name, number), "the last line was cut short", lost=False))
    return texts


class _Counted(io.RawIOBase):
    """Reads as its file does, and tells how much."""

    def __init__(self, stream: IO[bytes], advance: Callable[[int], None] | None) -> None:
        self._stream, self._advance = stream, advance

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer`; 0 at the end."""
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        if self._advance is not None:
            self._advance(len(data))
        return len(data)


def _unpacked(raw: _Counted, name: str) -> Callable[[int], bytes]:
    """What reads on, unpacking by what the file begins with."""
    buffered = io.BufferedReader(raw, CHUNK)
    magic = buffered.peek(4)[:4]
    if magic[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=buffered).read1
    if magic == b"\x28\xb5\x2f\xfd":
        try:
            import zstandard
        except ImportError:
            msg = "packed with zstd: pip install 'request-lifecycle[zstd]'"
            raise TraceError(msg, path=name) from None
        reader = zstandard.ZstdDecompressor().stream_reader(buffered, read_across_frames=True)

        def read(size: int) -> bytes:
            try:
                return reader.read(size)
            except zstandard.ZstdError as error:
                raise EOFError(str(error)) from None

        return read
    return buffered.read1
