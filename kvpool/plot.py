"""Pictures of the pool: occupancy over time as PNG or SVG, and a live bar for the terminal.

The pool records nothing by itself. Call :meth:`OccupancyHistory.sample` once a step; it costs a few
microseconds. The horizontal axis is the pool's operation counter, or seconds if they are passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from kvpool.pool import PagePool, PoolStats

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

# From the bottom of the picture to its top. Colours that those who confuse red and green can tell
# apart.
CLASSES = {
    "held": "#0072b2",
    "pending": "#e69f00",
    "cached": "#56b4e9",
    "quarantined": "#d55e00",
    "free": "#dddddd",
}


@attrs.frozen
class Sample:
    """The counts at one moment. ``at`` is in seconds, or None: then the operation counter is the
    time.
    """

    stats: PoolStats
    at: float | None

    @property
    def x(self) -> float:
        """Where the sample stands on the time axis."""
        return self.stats.op if self.at is None else self.at


class OccupancyHistory:
    """The last ``limit`` samples of a pool."""

    def __init__(self, pool: PagePool, *, limit: int = 10_000) -> None:
        self.pool = pool
        self._samples: deque[Sample] = deque(maxlen=limit)

    def sample(self, at: float | None = None) -> None:
        """Note the counts now. Pass ``at`` (seconds) always or never."""
        self._samples.append(Sample(self.pool.stats(), at))

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The samples, oldest first."""
        return tuple(self._samples)


def plot_occupancy(
    samples: Iterable[Sample], path: str | Path, *, title: str = "KV page pool"
) -> Path:
    """Draw samples as stacked areas into ``path``, whose suffix (.png, .svg, .pdf) says the format.

    Needs ``matplotlib``. Raises ValueError without samples, or for a suffix that matplotlib does
    not know.
    """
    from matplotlib.figure import Figure

    points = list(samples)
    if not points:
        message = "there is nothing to plot: no sample was taken"
        raise ValueError(message)
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    xs = [point.x for point in points]
    heights = [[getattr(point.stats, name) for point in points] for name in CLASSES]
    # A count holds until the next sample, so the areas are steps, not slopes.
    axes.stackplot(xs, heights, labels=list(CLASSES), colors=list(CLASSES.values()), step="post")
    axes.set_title(title)
    axes.set_xlabel("pool operations" if points[0].at is None else "seconds")
    axes.set_ylabel("pages")
    axes.set_ylim(0, max(point.stats.total for point in points))
    axes.margins(x=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), reverse=True, frameon=False)
    target = Path(path)
    figure.savefig(target, dpi=150)
    return target


class OccupancyBar:
    """One line for a terminal: a bar in the colours of the classes, then the counts (needs
    ``rich``).

    Give it to ``rich.live.Live``, which asks it again at each refresh, or to ``console.print``.
    """

    def __init__(self, pool: PagePool, *, width: int = 40) -> None:
        self.pool = pool
        self.width = width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        stats = self.pool.stats()
        line = Text(no_wrap=True, overflow="ellipsis")
        for name, cells in zip(CLASSES, self._cells(stats), strict=True):
            line.append(("░" if name == "free" else "█") * cells, style=CLASSES[name])
        line.append(f" {stats.total} pages:")
        for name, colour in CLASSES.items():
            if count := getattr(stats, name):
                line.append(f"  {name} {count}", style=colour)
        yield line

    def _cells(self, stats: PoolStats) -> list[int]:
        """Cells of the bar for each class. They add up to the width; a class with a page has a
        cell.
        """
        counts = [getattr(stats, name) for name in CLASSES]
        total = sum(counts)
        if not total:
            return [0] * len(counts)
        cells = [max(1, round(count * self.width / total)) if count else 0 for count in counts]
        while (excess := sum(cells) - self.width) != 0:
            largest = cells.index(max(cells))
            cells[largest] -= 1 if excess > 0 else -1
        return cells
