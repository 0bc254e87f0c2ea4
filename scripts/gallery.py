"""Points the harness at every faulty scheduler of the gallery, seed after seed, and writes what it found.

    python scripts/gallery.py --seeds 15 --out docs/gallery.md

Exit 1 if a fault was not found, was given another name, or took more than 12 events to tell.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import attrs
from rich.console import Console
from rich.progress import Progress

from lifecycle.testing.contract import ContractBroken, check_scheduler
from lifecycle.testing.faulty import GALLERY, Faulty

LONGEST = 12


@attrs.define
class Record:
    """What became of one faulty scheduler."""

    faulty: type[Faulty]
    seconds: list[float] = attrs.field(factory=list)
    lengths: list[int] = attrs.field(factory=list)
    missed: list[int] = attrs.field(factory=list)

    def take(self, seed: int, found: tuple[float, int] | None) -> None:
        """What one seed found: seconds and events; None if it did not find the right thing."""
        if found is None:
            self.missed.append(seed)
        else:
            self.seconds.append(found[0])
            self.lengths.append(found[1])

    def row(self, seeds: int) -> str:
        """As a row of a Markdown table."""
        text = (self.faulty.__doc__ or "").strip()
        found = f"{seeds - len(self.missed)} of {seeds}"
        took = f"{statistics.median(self.seconds):.1f}" if self.seconds else ""
        events = f"{min(self.lengths)} to {max(self.lengths)}" if self.lengths else ""
        name, breaks = f"`{self.faulty.__name__}`", f"`{self.faulty.breaks}`"
        cells = (name, text, self.faulty.seen_in, breaks, found, took, events)
        return "| " + " | ".join(cells) + " |"


def main() -> int:
    """Run the gallery."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=15, help="how many seeds, from 1")
    parser.add_argument("--out", type=Path, help="write the table here")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args()
    records = [Record(faulty) for faulty in GALLERY]
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("gallery", total=len(records) * options.seeds)
        with ProcessPoolExecutor(options.workers) as workers:
            tries = [
                (record, seed, workers.submit(_try, record.faulty, seed))
                for record in records
                for seed in range(1, options.seeds + 1)
            ]
            for record, seed, tried in tries:
                record.take(seed, tried.result())
                progress.advance(task)
    text = _table(records, options.seeds)
    sys.stdout.write(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    return 1 if any(record.missed for record in records) else 0


def _try(faulty: type[Faulty], seed: int) -> tuple[float, int] | None:
    start = time.perf_counter()
    try:
        needs: dict[str, Any] = dict.fromkeys(faulty.needs, True)
        check_scheduler(faulty, seed=seed, **needs)
    except ContractBroken as broken:
        events = sum("event" in line for line in broken.trace)  # a policy is no event
        if broken.violation.invariant is faulty.breaks and events <= LONGEST:
            return time.perf_counter() - start, events
    return None


def _table(records: list[Record], seeds: int) -> str:
    lines = [
        "# The gallery",
        "",
        "Schedulers that are wrong, each in one publicly reported way, and what the harness made of them:",
        f"with {seeds} seeds, how often it found the fault under the right name, the median time, and how many",
        "events the shortened trace has. `make gallery` writes this page.",
        "",
        "| scheduler | what is wrong | seen in | breaks | found | seconds | events |",
        "|---|---|---|---|---|---:|---:|",
    ]
    return "\n".join([*lines, *(record.row(seeds) for record in records)]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
