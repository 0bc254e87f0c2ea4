"""What the core costs: an event, an import, a request in memory, a table of many."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator

import attrs
from handwritten import HandWritten
from measure import Timing, compare

from lifecycle import PREFILL, Policy, RequestLifecycle, RequestTable
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
    yield events("one event of a healthy life", HEALTHY, quick=quick)
    yield events("one event of an aborted life", ABORTED, quick=quick)
    yield imports(quick=quick)
    yield memory()
    yield tables(quick=quick)
    yield compiling(quick=quick)


def _lives(
    make: Callable[[], RequestLifecycle | HandWritten], life: tuple[str, ...], count: int
) -> Callable[[], None]:
    def run() -> None:
        for _ in range(count):
            fire = make().fire
            for event in life:
                fire(event)

    return run


def events(title: str, life: tuple[str, ...], *, quick: bool) -> Section:
    """Nanoseconds an event, the making of the request included."""
    count = 200 if quick else 1000
    timings = compare(
        {
            "hand-written": _lives(lambda: HandWritten("r"), life, count),
            "lifecycle, journal off": _lives(
                lambda: RequestLifecycle("r", journal=False), life, count
            ),
            "lifecycle, journal on": _lives(lambda: RequestLifecycle("r"), life, count),
        },
        per=count * len(life),
        rounds=7 if quick else 25,
    )
    slow = _transitions(life, 5 if quick else 20)
    timings.append(slow)
    off, on = timings[1], timings[2]
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


def _transitions(life: tuple[str, ...], count: int) -> Timing:
    """The same life on a transitions machine of the same table; making the machine is not counted."""
    taken = []
    for _ in range(count):
        model = machine().model
        start = time.perf_counter_ns()
        for event in life:
            getattr(model, event)()
        taken.append((time.perf_counter_ns() - start) / len(life))
    low, middle, high = statistics.quantiles(taken, n=4)
    return Timing("transitions", min(taken), middle, (low, high), float("nan"))


def imports(*, quick: bool) -> Section:
    """Milliseconds that an import adds to a bare interpreter; each time a new process."""

    def start(code: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    timings = compare(
        {
            "bare interpreter": start("pass"),
            "import attr": start("import attr"),
            "import lifecycle": start("import lifecycle"),
            "and a first request": start("import lifecycle; lifecycle.RequestLifecycle('r')"),
        },
        per=1_000_000,
        rounds=5 if quick else 15,
    )
    added = timings[2].best - timings[0].best
    return Section(
        "import, in a new process",
        "ms",
        timings,
        [("import lifecycle: under 50 ms over bare", f"{added:.1f} ms", added < 50)],
    )


def memory() -> Section:
    """Bytes of a live request: two claims out, no journal."""
    count = 20_000
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    kept = []
    for _ in range(count):
        request = RequestLifecycle("r", journal=False)
        request.admit(4)
        request.launch_forward()
        request.post_transfer("chunk")
        kept.append(request)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    each = (after - before) / len(kept)
    return Section(
        "memory of a live request, a step and an op out",
        "bytes",
        [Timing("lifecycle, journal off", each, each, (each, each), 1.0)],
        [("at most 400 bytes", f"{each:.0f}", each <= 400)],
    )


def tables(*, quick: bool) -> Section:
    """A table with so many live requests: one is submitted and lives its life, over and over."""
    lives = 2_000 if quick else 10_000
    sizes = (1_000, 10_000, 100_000)

    def load(live: int) -> Callable[[], None]:
        table = RequestTable(journal=False)
        for number in range(live):
            table.submit(f"waiting-{number}")
        rids = [f"req-{number}" for number in range(lives)]

        def run() -> None:
            submit, fire = table.submit, table.fire
            for rid in rids:
                submit(rid)
                fire(rid, "admit", pages=4)
                fire(rid, "forward_launched")
                fire(rid, "forward_finished")
                fire(rid, "prefill_finished")
                fire(rid, "transfer_succeeded")

        return run

    timings = compare(
        {f"{size:,} live": load(size) for size in sizes}, per=lives, rounds=5 if quick else 11
    )
    rate = 1e9 / timings[-1].median
    flat = timings[-1].ratio
    return Section(
        "submit and a full healthy life in a table",
        "ns a request",
        timings,
        [
            ("at least 150,000 requests a second at 100,000 live", f"{rate:,.0f}", rate >= 150_000),
            ("flat from 1,000 to 100,000 live", f"{flat:.2f} times", flat <= 1.5),
        ],
    )


def compiling(*, quick: bool) -> Section:
    """Milliseconds to unfold the default table."""
    (timing,) = compare(
        {"compile the prefill table": lambda: Automaton(PREFILL, Policy())},
        per=1_000_000,
        rounds=5 if quick else 21,
    )
    return Section(
        "unfolding the table, once at import",
        "ms",
        [timing],
        [("under 20 ms", f"{timing.best:.1f} ms", timing.best < 20)],
    )
