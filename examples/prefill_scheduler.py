"""A small, real disaggregated-prefill scheduler that embeds lifecycle, beside hand-written clean-up.

Run it with ``make demo``, ``lifecycle demo`` or ``python examples/prefill_scheduler.py``. It runs 2,000 requests
with seeded faults: grammars that fail, clients that abort from another thread, transfers that fail and go on
copying, transfers that are slow, peers that freeze or die. At the end stands what must be zero.

The code is in the package ``prefill`` beside this file; read ``prefill/scheduler.py`` first.

Exit codes: 0 where everything that must be zero is zero in the run on the library, 1 where it is not, 2 on bad
input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

try:
    from prefill.load import make_load
    from prefill.report import (
        TITLES,
        make_console,
        say_what_runs,
        show_faults,
        show_lifecycle,
        show_progress,
        show_reasons,
    )
    from prefill.run import KINDS, LIFECYCLE, run

    from kvpool import OccupancyHistory, plot_occupancy
except ImportError as error:
    sys.stderr.write(
        f"prefill_scheduler.py: {error.name} is not installed; "
        'in a clone of the repository: make demo, or pip install ".[cli,torch]"\n'
    )
    sys.exit(2)

PLOT_FORMATS = (".png", ".svg", ".pdf")


def run_demo(
    requests: int = 2000, seed: int = 0, plot: Path | None = None, *, quiet: bool = False
) -> bool:
    """Run the load on all three schedulers and print the tables; whether the library made no fault.

    With ``quiet`` only the last table is printed. ``plot`` takes the pool's occupancy over time (suffix .png,
    .svg or .pdf).

    Raises:
        OSError: the plot cannot be written.
    """
    console = make_console()
    load = make_load(requests, seed)
    history: list[OccupancyHistory] = []
    if not quiet:
        say_what_runs(console, requests, seed)
    results = []
    for kind in KINDS:
        with show_progress(
            console, kind, requests, history if plot is not None and kind == LIFECYCLE else None
        ) as watch:
            result = run(kind, load, watch)
        results.append(result)
        if not quiet and not console.is_terminal:
            console.print(
                f"{TITLES[kind]:<28} {len(result.witness.outcomes):,} of {requests:,} requests ended, "
                f"{result.turns:,} turns, {result.seconds:.1f} s"
            )
    if not quiet:
        console.print()
        show_reasons(console, results)
        show_lifecycle(console, results[0])
    show_faults(console, results)
    if plot is not None:
        plot_occupancy(history[0].samples, plot, title="KV pages of the prefill worker")
        console.print(f"  Pages over time: {plot}")
    return results[0].clean


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Run a prefill scheduler on a load full of faults."
    )
    parser.add_argument(
        "--requests", type=_count, default=2000, metavar="N", help="how many (2000)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the same seed, the same load (0)"
    )
    parser.add_argument(
        "--plot", type=_plot_file, metavar="FILE", help="draw the pool over time (.png, .svg, .pdf)"
    )
    parser.add_argument("--quiet", action="store_true", help="print the last table only")
    options = parser.parse_args(argv)
    try:
        clean = run_demo(options.requests, options.seed, options.plot, quiet=options.quiet)
    except OSError as error:
        sys.stderr.write(
            f"prefill_scheduler.py: {error.filename or 'output'}: {error.strerror or error}\n"
        )
        return 2
    except KeyboardInterrupt:
        return 130
    return 0 if clean else 1


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        message = f"a whole number of at least 1, not {text!r}"
        raise argparse.ArgumentTypeError(message)
    return number


def _plot_file(text: str) -> Path:
    path = Path(text)
    if path.suffix not in PLOT_FORMATS:
        message = f"a file that ends in {', '.join(PLOT_FORMATS)}, not {text!r}"
        raise argparse.ArgumentTypeError(message)
    if not path.absolute().parent.is_dir():
        message = f"there is no folder {str(path.parent)!r}"
        raise argparse.ArgumentTypeError(message)
    try:
        import matplotlib  # noqa: F401, ICN001  # asked now, not after the run
    except ImportError:
        message = 'a plot needs matplotlib: pip install "request-lifecycle[plot]"'
        raise argparse.ArgumentTypeError(message) from None
    return path


if __name__ == "__main__":
    sys.exit(main())
