"""Timing that a busy machine cannot fool easily: rivals take turns, and are compared within a turn.

The absolute figures of one run mean little on a shared machine. What means something is the ratio of two rivals
that ran right after one another, and the median of that ratio over many turns.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping

import attrs


@attrs.frozen
class Timing:
    """One rival in a comparison: nanoseconds an operation, and how they compare with the reference.

    `ratio` is the median over the turns of this rival's time divided by the reference's in the same turn.
    """

    name: str
    best: float
    median: float
    quartiles: tuple[float, float]
    ratio: float


def compare(
    rivals: Mapping[str, Callable[[], object]], *, per: int, rounds: int = 15
) -> list[Timing]:
    """Time each rival once a turn, in turns, with the garbage collector off.

    Args:
        rivals: by name; the first one is the reference.
        per: how many operations one call does.
        rounds: how many turns.
    """
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for name, run in rivals.items():
        run()
        times[name].clear()
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, run in rivals.items():
                start = time.perf_counter_ns()
                run()
                times[name].append((time.perf_counter_ns() - start) / per)
    finally:
        gc.enable()
    reference = times[next(iter(rivals))]
    timings = []
    for name, taken in times.items():
        low, _, high = statistics.quantiles(taken, n=4)
        ratio = statistics.median(
            ours / theirs for ours, theirs in zip(taken, reference, strict=True)
        )
        timings.append(Timing(name, min(taken), statistics.median(taken), (low, high), ratio))
    return timings
