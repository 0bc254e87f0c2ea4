"""What many requests in columns cost: an in-flight pass, mixed events, memory, growth with the fleet."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from bench_core import Section
from handwritten import HandWritten
from measure import Rival, Timing, compare, plain

from lifecycle import Event
from lifecycle.batch import ROW_BYTES, RequestBatch, code
from lifecycle.consensus import Verdict

PENDING = int(Verdict.PENDING)
WORDS = [event for event in Event if event != Event.SUBMIT]
SIGNALS = np.array(
    [code(event, reason="stop" if event == Event.COMPLETE else None) for event in WORDS], np.uint8
)
MIXED_ROUNDS = 4
MILLION = 1_000_000


def sections(*, quick: bool) -> Iterator[Section]:
    """Every section of the report."""
    for size, least in ((1_000, 50), (10_000, 80)):
        yield in_flight(size, least, quick=quick)
    yield mixed(100_000, quick=quick)
    yield memory()
    yield growth(quick=quick)


def _target(text: str, measured: float, most: float, unit: str) -> tuple[str, str, bool]:
    return f"{text}: at most {most:,} {unit}", f"{measured:,.2f}", measured <= most


def _transferring(size: int) -> tuple[RequestBatch, npt.NDArray[np.int64]]:
    """A batch whose rows are all in flight."""
    batch = RequestBatch()
    rows = batch.add(size)
    for event in ("admit", "prefill_finished"):
        batch.apply(event)
    return batch, rows


def _by_hand(size: int, passes: int) -> Callable[[], None]:
    """The loop over hand-written requests: each takes its poll as an event."""
    requests = [HandWritten(f"req-{number}") for number in range(size)]
    for request in requests:
        request.fire("admit")
        request.fire("prefill_finished")
    polls = [PENDING] * size

    def run() -> None:
        for _ in range(passes):
            for request, poll in zip(requests, polls, strict=True):
                if poll == PENDING:
                    request.fire("transfer_pending")
                else:
                    request.fire("transfer_succeeded" if poll else "transfer_failed")

    return run


def _unchecked(size: int, passes: int) -> Callable[[], None]:
    """The cheapest loop that there is: a pending poll is passed over, whatever the request's state."""
    requests = [HandWritten(f"req-{number}") for number in range(size)]
    polls = [PENDING] * size

    def run() -> None:
        for _ in range(passes):
            for request, poll in zip(requests, polls, strict=True):
                if poll == PENDING:
                    continue
                request.fire("transfer_succeeded" if poll else "transfer_failed")

    return run


def in_flight(size: int, least: int, *, quick: bool) -> Section:
    """Nanoseconds a request of a pass over an in-flight queue, all of it pending."""
    batch, rows = _transferring(size)
    queue = batch.queue(rows)
    polls = np.full(size, PENDING, np.uint8)
    loops, passes = max(1, 10_000 // size), max(1, 500_000 // size)

    def by_queue() -> None:
        for _ in range(passes):
            queue.poll(polls)

    def by_rows() -> None:
        for _ in range(passes):
            batch.poll(polls, rows)

    def by_event() -> None:
        for _ in range(passes):
            batch.apply("transfer_pending", rows)

    timings = compare(
        {
            "hand-written": plain(_by_hand(size, loops), loops * size),
            "a loop that skips what is pending, unchecked": plain(
                _unchecked(size, loops), loops * size
            ),
            "Queue.poll": plain(by_queue, passes * size),
            "RequestBatch.poll": plain(by_rows, passes * size),
            "RequestBatch.apply, the event for each row": plain(by_event, passes * size),
        },
        rounds=7 if quick else 25,
    )
    targets = []
    for timing in timings[2:4]:
        cheaper = 1 / timing.ratio
        targets.append(
            (
                f"{timing.name}: at least {least} times cheaper than hand-written",
                f"{cheaper:,.0f} times",
                cheaper >= least,
            )
        )
        if size >= 10_000:
            targets.append(_target(timing.name, timing.median, 3, "ns a request"))
    return Section(
        f"an in-flight pass over {size:,} requests, all pending", "ns a request", timings, targets
    )


def _mixed(size: int, rounds: int = MIXED_ROUNDS, *, repeats: int = 1) -> Rival:
    """Every row gets a random event, `rounds` times over; what is asked of the scheduler is taken out each time.

    All words are equally likely, so many events are late or illegal, and those are counted too. Rows are admitted
    and get two such rounds before the clock starts, so that they stand in many states. The events are the same
    each turn.
    """
    source = np.random.default_rng(7)
    drawn = [SIGNALS[source.integers(0, len(SIGNALS), size)] for _ in range(rounds + 2)]

    def prepare() -> Callable[[], None]:
        batches = []
        for _ in range(repeats):
            batch = RequestBatch()
            batch.add(size)
            batch.apply("admit")
            for signals in drawn[:2]:
                batch.apply(signals)
            batches.append(batch)

        def run() -> None:
            for batch in batches:
                for signals in drawn[2:]:
                    applied = batch.apply(signals)
                    _ = applied.rows, applied.asks

        return run

    return Rival(prepare, size * rounds * repeats)


def _mixed_by_hand(size: int) -> Rival:
    """The same events on hand-written requests, with an illegal one caught."""
    source = np.random.default_rng(7)
    drawn = [
        [WORDS[pick].value for pick in source.integers(0, len(WORDS), size)]
        for _ in range(MIXED_ROUNDS + 2)
    ]

    def through(requests: list[HandWritten], words: list[str]) -> list[tuple[int, tuple[str, ...]]]:
        asked = []
        for row, (request, word) in enumerate(zip(requests, words, strict=True)):
            try:
                effects = request.fire(word)
            except ValueError:
                continue
            if effects:
                asked.append((row, effects))
        return asked

    def prepare() -> Callable[[], None]:
        requests = [HandWritten(f"req-{number}") for number in range(size)]
        for request in requests:
            request.fire("admit")
        for words in drawn[:2]:
            through(requests, words)

        def run() -> None:
            for words in drawn[2:]:
                through(requests, words)

        return run

    return Rival(prepare, size * MIXED_ROUNDS)


def mixed(size: int, *, quick: bool) -> Section:
    """Nanoseconds a request-event where each row gets a random event."""
    timings = compare(
        {
            f"hand-written, {size // 10:,} requests": _mixed_by_hand(size // 10),
            "RequestBatch.apply, and what is asked": _mixed(size),
        },
        rounds=5 if quick else 15,
    )
    ours = timings[1].median
    return Section(
        f"random events over {size:,} rows, effects taken out",
        "ns a request-event",
        timings,
        [_target("RequestBatch.apply", ours, 8, "ns a request-event")],
    )


def memory() -> Section:
    """Bytes of a live row among a million, with a step and an op out: all that was allocated, errors included."""
    _transferring(10)  # the tables that all batches share are there already
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    batch = RequestBatch()
    batch.add(MILLION)
    batch.apply("admit")
    batch.apply("forward_launched")
    batch.apply("transfer_posted")
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(batch) == MILLION
    held = after - before
    each, total = held / MILLION, held / 2**20
    nan = float("nan")
    return Section(
        "memory of a million live requests, a step and an op out",
        "bytes a request",
        [
            Timing("the columns of a row", ROW_BYTES, ROW_BYTES, (ROW_BYTES, ROW_BYTES), nan),
            Timing("all that was allocated", each, each, (each, each), nan),
        ],
        [
            _target("the columns of a row", ROW_BYTES, 48, "bytes"),
            _target("a million live requests", total, 64, "MiB"),
        ],
    )


def growth(*, quick: bool) -> Section:
    """The same random events, from a thousand rows to a million."""
    sizes = (1_000, 10_000, 100_000, MILLION)
    timings = compare(
        {f"{size:,} rows": _mixed(size, repeats=max(1, 20_000 // size)) for size in sizes},
        rounds=3 if quick else 9,
    )
    costs = [timing.median for timing in timings]
    apart = max(costs) / min(costs)
    return Section(
        "random events, from a thousand rows to a million",
        "ns a request-event",
        timings,
        [_target("dearest to cheapest of these sizes", apart, 1.5, "times")],
    )
