"""What the core costs: an event, an import, a request in memory, a table of many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import attrs
from handwritten import HandWritten
from measure import Rival, Timing, compare, plain

import lifecycle.request
from lifecycle import PREFILL, Event, Policy, RequestLifecycle, RequestTable
from lifecycle.compile import Automaton
from lifecycle.diagrams.machine import machine

HEALTHY = (
    "grammar_ready",
    "admit",
    "forward_launched",
    "forward_finished",
    "forward_launched",
    "forward_finished",
    "prefill_finished",
    "transfer_pending",
    "transfer_pending",
    "transfer_succeeded",
)
ABORTED = (
    "grammar_ready",
    "admit",
    "forward_launched",
    "transfer_posted",
    "forward_finished",
    "abort",
    "abort",
    "transfer_failed",
    "transfer_pending",
    "transfer_drained",
)
REST = ("forward_launched", "forward_finished", "prefill_finished", "transfer_succeeded")
COMPILED = Path(__file__).resolve().parents[1] / "build" / "compiled"
"""Where ``make compiled`` puts the compiled build."""


@attrs.frozen
class Section:
    """A table of the report: what was measured, the rivals, and whether targets were met.

    `targets` are lines such as ("at most 1.3 times hand-written", measured ratio, met).
    """

    title: str
    unit: str
    timings: list[Timing]
    targets: list[tuple[str, str, bool]]


def sections(*, quick: bool) -> Iterator[Section]:
    """Every section of the report."""
    yield from both_lives(quick=quick)
    yield from compiled(quick=quick)
    yield imports(quick=quick)
    yield memory(quick=quick)
    yield from tables(quick=quick)
    yield compiling(quick=quick)


def both_lives(*, quick: bool, build: str = "") -> Iterator[Section]:
    """One event, of two kinds of life; `build` is noted in the titles."""
    yield events(f"one event of a healthy life{build}", HEALTHY, quick=quick)
    yield events(f"one event of an aborted life{build}", ABORTED, quick=quick)


def compiled(*, quick: bool) -> Iterator[Section]:
    """The same on the compiled build, all rivals in a process of their own that imports it from `COMPILED`.

    Nothing where it has not been built (``make compiled``).
    """
    if not COMPILED.is_dir():
        return
    ran = subprocess.run(
        [sys.executable, __file__, *(["--quick"] if quick else [])],
        env={**os.environ, "PYTHONPATH": str(COMPILED)},
        check=True,
        stdout=subprocess.PIPE,
    )
    for section in json.loads(ran.stdout):
        timings = [Timing(**timing) for timing in section.pop("timings")]
        yield Section(timings=timings, **section)


def _lives(make: Callable[[], Any], life: tuple[str, ...], many: int) -> Rival:
    """`many` lives, their events alone: requests are made before the clock starts."""

    def prepare() -> Callable[[], None]:
        fires = [make().fire for _ in range(many)]

        def run() -> None:
            for fire in fires:
                for event in life:
                    fire(event)

        return run

    return Rival(prepare, many * len(life))


def _triggers(life: tuple[str, ...], many: int) -> Rival:
    """The same on `transitions` machines of the same table; making the machines is not counted either."""

    def prepare() -> Callable[[], None]:
        lives = [[getattr(model, event) for event in life] for model in _models(many)]

        def run() -> None:
            for triggers in lives:
                for trigger in triggers:
                    trigger()

        return run

    return Rival(prepare, many * len(life))


def _models(many: int) -> list[Any]:
    return [machine().model for _ in range(many)]


def _by_name(many: int) -> Rival:
    """The healthy life by the named methods, as a scheduler would write it."""

    def prepare() -> Callable[[], None]:
        requests = [RequestLifecycle("r", journal=False) for _ in range(many)]

        def run() -> None:
            for request in requests:
                request.grammar_ready()
                request.admit()
                request.launch_forward()
                request.finish_forward()
                request.launch_forward()
                request.finish_forward()
                request.finish_prefill()
                request.poll("pending")
                request.poll("pending")
                request.poll("succeeded")

        return run

    return Rival(prepare, many * len(HEALTHY))


def events(title: str, life: tuple[str, ...], *, quick: bool) -> Section:
    """Nanoseconds an event; the making of the request is not counted, for any rival."""
    lives = 300 if quick else 2000
    members = tuple(Event(word) for word in life)
    rivals = {
        "hand-written": _lives(lambda: HandWritten("r"), life, lives),
        "lifecycle, journal off": _lives(lambda: RequestLifecycle("r", journal=False), life, lives),
        "lifecycle, journal on": _lives(lambda: RequestLifecycle("r"), life, lives),
        "transitions": _triggers(life, 5),
        "journal off, members of Event": _lives(
            lambda: RequestLifecycle("r", journal=False), members, lives
        ),
    }
    if life is HEALTHY:
        rivals["journal off, named methods"] = _by_name(lives)
    timings = compare(rivals, rounds=7 if quick else 25)
    off, on, slow = timings[1:4]
    faster = slow.median / off.median
    return Section(
        title,
        "ns an event",
        timings,
        [
            ("journal off: at most 1.3 times hand-written", f"{off.ratio:.2f}", off.ratio <= 1.3),
            ("journal on: at most 2 times hand-written", f"{on.ratio:.2f}", on.ratio <= 2),
            ("at least 100 times faster than transitions", f"{faster:.0f}", faster >= 100),
        ],
    )


def imports(*, quick: bool) -> Section:
    """Milliseconds that an import adds to a bare interpreter; each time a new process."""

    def start(code: str) -> Rival:
        return plain(lambda: subprocess.run([sys.executable, "-c", code], check=True), 1_000_000)

    timings = compare(
        {
            "bare interpreter": start("pass"),
            "import attr": start("import attr"),
            "import lifecycle": start("import lifecycle"),
            "and a first request": start("import lifecycle; lifecycle.RequestLifecycle('r')"),
        },
        rounds=5 if quick else 15,
    )
    bare, _, lazy, used = (timing.best for timing in timings)
    return Section(
        "import, in a new process",
        "ms",
        timings,
        [
            ("import lifecycle: under 50 ms over bare", f"{lazy - bare:.1f} ms", lazy - bare < 50),
            # Names are imported when they are asked for, so the line above says little of what a user waits for.
            (
                "and a first request: under 50 ms over bare",
                f"{used - bare:.1f} ms",
                used - bare < 50,
            ),
        ],
    )


def memory(*, quick: bool) -> Section:
    """Bytes of a live request, with a rid of its own; a step and an op are out."""
    many = 20_000 if quick else 100_000
    sizes = {}
    for journal in (False, True):
        kept: list[RequestLifecycle | None] = [None] * many
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(many):
            request = RequestLifecycle(f"req-{number}", journal=journal)
            request.admit(4)
            request.launch_forward()
            request.post_transfer("chunk")
            kept[number] = request
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        sizes[journal] = (after - before) / many
    off, on = sizes[False], sizes[True]
    return Section(
        "memory of a live request, a step and an op out",
        "bytes",
        [
            Timing("lifecycle, journal off", off, off, (off, off), 1.0),
            Timing("lifecycle, journal on, three events", on, on, (on, on), on / off),
        ],
        [("at most 400 bytes without journal", f"{off:.0f}", off <= 400)],
    )


def _one_by_one(live: int, lives: int) -> Rival:
    """So many requests wait; beside them one is submitted and lives its life, over and over."""
    table = RequestTable(journal=False)
    for number in range(live):
        table.submit(f"waiting-{number}")
    turn = count()

    def prepare() -> Callable[[], None]:
        this = next(turn)  # rids of its own, so that no turn submits a former life again
        rids = [f"req-{this}-{number}" for number in range(lives)]

        def run() -> None:
            submit, fire = table.submit, table.fire
            for rid in rids:
                submit(rid)
                fire(rid, "admit", pages=4)
                for event in REST:
                    fire(rid, event)

        return run

    return Rival(prepare, lives)


def _all_together(live: int, lives: int) -> Rival:
    """So many requests live, and each event goes round all of them: the caches hold none for long."""
    table = RequestTable(journal=False)
    turn = count()

    def prepare() -> Callable[[], None]:
        this = next(turn)
        loads = [
            [f"req-{this}-{load}-{number}" for number in range(live)]
            for load in range(max(1, lives // live))
        ]

        def run() -> None:
            submit, fire = table.submit, table.fire
            for rids in loads:
                for rid in rids:
                    submit(rid)
                for rid in rids:
                    fire(rid, "admit", pages=4)
                for event in REST:
                    for rid in rids:
                        fire(rid, event)

        return run

    return Rival(prepare, max(live, lives // live * live))


def tables(*, quick: bool) -> Iterator[Section]:
    """Submit and a full healthy life: one by one, all together, and all together with the garbage collector on."""
    lives = 3_000 if quick else 10_000
    for title, load, collect in (
        ("one by one, the others wait", _one_by_one, False),
        ("all live ones together", _all_together, False),
        ("all live ones together, garbage collector on", _all_together, True),
    ):
        timings = compare(
            {f"{size:,} live": load(size, lives) for size in (1_000, 10_000, 100_000)},
            rounds=3 if quick else 9,
            collect=collect,
        )
        rate, flat = 1e9 / timings[-1].median, timings[-1].ratio
        yield Section(
            f"submit and a full healthy life in a table: {title}",
            "ns a request",
            timings,
            [
                (
                    "at least 150,000 requests a second at 100,000 live",
                    f"{rate:,.0f}",
                    rate >= 150_000,
                ),
                ("flat (within 1.5) from 1,000 to 100,000 live", f"{flat:.2f} times", flat <= 1.5),
            ],
        )


def compiling(*, quick: bool) -> Section:
    """Milliseconds to unfold the default table."""
    (timing,) = compare(
        {"compile the prefill table": plain(lambda: Automaton(PREFILL, Policy()), 1_000_000)},
        rounds=5 if quick else 21,
    )
    return Section(
        "unfolding the table, once at import",
        "ms",
        [timing],
        [("under 20 ms", f"{timing.best:.1f} ms", timing.best < 20)],
    )


if __name__ == "__main__":  # in the process that `compiled` starts
    found = lifecycle.request.__file__
    assert not found.endswith(".py"), f"no compiled build: {found}"
    report = both_lives(quick="--quick" in sys.argv, build=", compiled build")
    sys.stdout.write(json.dumps([attrs.asdict(section) for section in report]))
