"""What watching costs: an event told to a shadow, in nanoseconds and beside a bare attribute call.

    python benchmarks/bench_watch.py            a minute
    python benchmarks/bench_watch.py --quick    a glance

The figures of one run on a shared machine are compared with the rival that ran right beside them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from bench_core import Section
from measure import Rival, Timing, compare, plain
from rich.console import Console
from run import markdown, show

from lifecycle.shadow import Shadow

REPEATS = 2000
TARGET = 1000.0

LIFE: tuple[tuple[str, dict[str, object]], ...] = (
    ("submit", {}),
    ("admit", {"pages": 4}),
    ("forward_launched", {"step": 1}),
    ("forward_finished", {"step": 1}),
    ("prefill_finished", {}),
    ("transfer_pending", {}),
    ("transfer_pending", {}),
    ("transfer_succeeded", {}),
)
"""A request's life as its scheduler tells it; a free and a report follow."""


class Nothing:
    """Takes what a shadow takes, and does nothing with it: what the call alone costs."""

    def saw(self, rid: str, event: str, **details: object) -> None:
        """Nothing."""

    def freed(self, rid: str) -> None:
        """Nothing."""

    def reported(self, rid: str, reason: str) -> None:
        """Nothing."""


def lives(make: Callable[[], Shadow | Nothing]) -> Rival:
    """Whole lives, told to a watcher that has seen thousands already."""

    def prepare() -> Callable[[], object]:
        watcher = make()
        for number in range(5000):
            whole(watcher, f"before-{number}")
        rids = [f"r{number}" for number in range(REPEATS)]

        def run() -> None:
            for rid in rids:
                whole(watcher, rid)

        return run

    return Rival(prepare, REPEATS * (len(LIFE) + 2))


def whole(watcher: Shadow | Nothing, rid: str) -> None:
    """One life."""
    for event, details in LIFE:
        watcher.saw(rid, event, **details)
    watcher.freed(rid)
    watcher.reported(rid, "length")


def polls(make: Callable[[], Shadow | Nothing]) -> Rival:
    """The commonest event: a poll of a transfer that is pending."""
    watcher = make()
    for event, details in LIFE[:5]:
        watcher.saw("r", event, **details)

    def run() -> None:
        saw = watcher.saw
        for _ in range(20_000):
            saw("r", "transfer_pending")

    return plain(run, 20_000)


WATCHERS: dict[str, Callable[[], Shadow | Nothing]] = {
    "a bare attribute call": Nothing,
    "a shadow": Shadow,
    "a shadow that keeps no journal": lambda: Shadow(journal=False),
    "a shadow that follows 1 request of 1,000": lambda: Shadow(sample=0.001),
}


def sections(*, quick: bool) -> list[Section]:
    """The report."""
    rounds = 3 if quick else 15
    made = []
    for title, kind in (("an event of a whole life", lives), ("a poll that is pending", polls)):
        timings = compare({name: kind(make) for name, make in WATCHERS.items()}, rounds=rounds)
        made.append(Section(f"watching: {title}", "ns", timings, [_target(timings, "a shadow")]))
    return made


def _target(timings: list[Timing], name: str) -> tuple[str, str, bool]:
    timing = next(each for each in timings if each.name == name)
    text = f"{name}: at most {TARGET:,.0f} ns, and what it is beside a bare call"
    return text, f"{timing.median:,.0f} ns, {timing.ratio:.1f} times", timing.median <= TARGET


def main() -> None:
    """Measure, print, and write ``watch.md`` among the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    here = Path(__file__).resolve().parent
    parser.add_argument("--out", type=Path, default=here / "results", help="where to write")
    options = parser.parse_args()
    console = Console(highlight=False)
    done = sections(quick=options.quick)
    for section in done:
        show(console, section)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "watch.md").write_text(
        markdown(done, "Watching, measured", "python benchmarks/bench_watch.py"), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
