"""Room on disk for what a long replay does not need in memory: lives that have ended, and long lists.

Both use temporary files that vanish with the process.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import weakref
from collections.abc import Iterator
from typing import IO, Any


class Shelf:
    """Saved lives by rid and incarnation, in a temporary SQLite file.

    ``json.dumps`` makes keys of rids: SQLite takes no lone surrogates, and a rid may be any text.
    """

    def __init__(self) -> None:
        self._rows = sqlite3.connect("", isolation_level=None)  # a temporary file of SQLite's own
        weakref.finalize(self, self._rows.close)
        self._rows.execute("PRAGMA journal_mode = OFF")
        self._rows.execute("PRAGMA synchronous = OFF")
        self._rows.execute(
            "CREATE TABLE life (rid TEXT, incarnation INTEGER, place INTEGER, saved TEXT,"
            " PRIMARY KEY (rid, incarnation)) WITHOUT ROWID"
        )
        self._rows.execute("CREATE INDEX by_place ON life (place)")

    def put(self, rid: str, incarnation: int, place: int, saved: dict[str, Any]) -> None:
        """Put a life away; `place` is its order among all lives."""
        row = (json.dumps(rid), incarnation, place, json.dumps(saved))
        self._rows.execute("INSERT INTO life VALUES (?, ?, ?, ?)", row)

    def take(self, rid: str) -> list[dict[str, Any]]:
        """Take out every life of `rid`, the first one first; empty if there is none."""
        key = (json.dumps(rid),)
        found = self._rows.execute(
            "SELECT saved FROM life WHERE rid = ? ORDER BY incarnation", key
        ).fetchall()
        if found:
            self._rows.execute("DELETE FROM life WHERE rid = ?", key)
        return [json.loads(saved) for (saved,) in found]

    def has(self, rid: str, incarnation: int) -> bool:
        """Whether that life is here."""
        found = self._rows.execute(
            "SELECT 1 FROM life WHERE rid = ? AND incarnation = ?", (json.dumps(rid), incarnation)
        )
        return found.fetchone() is not None

    def lives(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Every life here and its place, in the order of places."""
        for place, saved in self._rows.execute("SELECT place, saved FROM life ORDER BY place"):
            yield place, json.loads(saved)


class Spool:
    """A list of JSON objects that only grows: in memory while it is short, and on disk when it is not.

    Args:
        in_memory: how many objects stay in memory before all go to disk.
    """

    def __init__(self, in_memory: int = 10_000) -> None:
        self._in_memory = in_memory
        self._recent: list[dict[str, Any]] = []
        self._file: IO[str] | None = None
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, item: dict[str, Any]) -> None:
        """Add an object at the end."""
        self._recent.append(item)
        self._length += 1
        if len(self._recent) > self._in_memory:
            if self._file is None:
                self._file = tempfile.TemporaryFile("w+", encoding="ascii")  # noqa: SIM115  # lives as long as the list
                weakref.finalize(self, self._file.close)
            self._file.seek(0, os.SEEK_END)
            self._file.writelines(json.dumps(each) + "\n" for each in self._recent)
            self._recent.clear()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._file is not None:
            self._file.seek(0)
            for line in self._file:
                yield json.loads(line)
        yield from self._recent
