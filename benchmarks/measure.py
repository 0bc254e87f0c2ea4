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
class Rival:
    """What is timed: `prepare` is called before each turn, untimed, and what it returns is timed.

    `per` is how many operations that does.
    """

    prepare: Callable[[], Callable[[], object]]
    per: int


def plain(run: Callable[[], object], per: int) -> Rival:
    """A rival that needs no preparation."""
    return Rival(lambda: run, per)


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
    rivals: Mapping[str, Rival], *, rounds: int = 15, collect: bool = False
) -> list[Timing]:
    """Time each rival once a turn, in turns; each turn begins with another one, so that none is always first.

    Args:
        rivals: by name; the first one is the reference.
        rounds: how many turns.
        collect: whether the garbage collector runs, as it does in a scheduler that does not switch it off.
    """
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for rival in rivals.values():
        rival.prepare()()
    names = list(rivals)
    gc.collect()
    if not collect:
        gc.disable()
    try:
        for turn in range(rounds):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                run = rivals[name].prepare()
                start = time.perf_counter_ns()
                run()
                times[name].append((time.perf_counter_ns() - start) / rivals[name].per)
    finally:
        gc.enable()
    reference = times[names[0]]
    timings = []
    for name, taken in times.items():
        low, _, high = statistics.quantiles(taken, n=4)
        ratio = statistics.median(
            ours / theirs for ours, theirs in zip(taken, reference, strict=True)
        )
        timings.append(Timing(name, min(taken), statistics.median(taken), (low, high), ratio))
    return timings
