"""Measures the core, the batch and the pool, prints tables, and writes them to ``benchmarks/results/``.

    python benchmarks/run.py            some minutes
    python benchmarks/run.py --quick    a glance
    python benchmarks/run.py --only batch

Targets are printed with what was measured; a target that is missed is said and is no error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import attrs
from bench_batch import sections as batch_sections
from bench_core import Section, sections
from bench_harness import sections as harness_sections
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where to write")
    parser.add_argument("--only", choices=("core", "batch", "pool"), help="this part alone")
    options = parser.parse_args()
    parts = [options.only] if options.only else ["core", "batch", "pool"]
    quick = options.quick
    if "core" in parts:
        both = chain(sections(quick=quick), harness_sections(quick=quick))
        report("core", "The core, measured", both, options.out)
    if "batch" in parts:
        report("batch", "The batch, measured", batch_sections(quick=quick), options.out)
    if "pool" in parts:
        pool = [sys.executable, str(HERE / "bench_pool.py")]
        if quick:
            pool += ["--rounds", "3"]
        sys.exit(subprocess.run(pool, check=False).returncode)


def report(name: str, title: str, measured: Iterable[Section], out: Path) -> None:
    """Print sections as they are measured, and write them to `out` as Markdown and JSON."""
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    done = []
    for section in measured:
        done.append(section)
        show(console, section)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.md").write_text(markdown(done, title), encoding="utf-8")
    (out / f"{name}.json").write_text(as_json(done), encoding="utf-8")
    console.print(f"written to {os.path.relpath(out)}/{name}.md and {name}.json")


def show(console: Console, section: Section) -> None:
    """Print one section."""
    table = Table(title=section.title, title_justify="left", box=None, pad_edge=False)
    for name in ("", f"median, {section.unit}", "quartiles", "ratio"):
        table.add_column(name, justify="left" if not name else "right")
    for row in rows(section):
        table.add_row(*row)
    console.print(table)
    for text, measured, met in section.targets:
        console.print(f"  {'met   ' if met else 'MISSED'}  {text}: {measured}")
    console.print()


def rows(section: Section) -> list[list[str]]:
    """A section's rows as text."""
    return [
        [
            timing.name,
            f"{timing.median:,.1f}",
            f"{timing.quartiles[0]:,.1f} to {timing.quartiles[1]:,.1f}",
            "" if timing.ratio != timing.ratio else f"{timing.ratio:.2f}",  # not a number
        ]
        for timing in section.timings
    ]


def markdown(
    done: list[Section], title: str = "The core, measured", command: str = "make bench"
) -> str:
    """The report as Markdown; `command` is what wrote it."""
    lines = [
        f"# {title}",
        "",
        f"`{command}` wrote this; ratios are of rivals in one run.",
        "",
    ]
    lines += [f"- {name}: {value}" for name, value in machine_facts().items()]
    for section in done:
        lines += [
            "",
            f"## {section.title}",
            "",
            f"| | median, {section.unit} | quartiles | ratio |",
        ]
        lines += ["|---|---:|---:|---:|"]
        lines += ["| " + " | ".join(row) + " |" for row in rows(section)]
        lines += [""]
        lines += [
            f"- {'met' if met else '**missed**'}: {text}: {measured}"
            for text, measured, met in section.targets
        ]
    return "\n".join(lines) + "\n"


def as_json(done: list[Section]) -> str:
    """The report as JSON; a ratio that does not apply is null."""
    sections_ = [attrs.asdict(section) for section in done]
    for section in sections_:
        for timing in section["timings"]:
            if timing["ratio"] != timing["ratio"]:  # not a number
                timing["ratio"] = None
    return json.dumps({"machine": machine_facts(), "sections": sections_}, indent=1) + "\n"


def machine_facts() -> dict[str, str]:
    """What the figures were measured with."""
    return {
        "processor": f"{platform.machine()}, {os.cpu_count()} cores",
        "Python": platform.python_version(),
        "attrs": version("attrs"),
        "numpy": version("numpy"),
        "transitions": version("transitions"),
    }


if __name__ == "__main__":
    main()
