"""What a round of ranks costs, against one bare all_reduce (adapters.torch_distributed).

python benchmarks/bench_consensus.py --ranks 2 --out consensus.json

Two or more processes over gloo on loopback. In one run, in blocks that take turns: a whole round, which agrees on
the ids as well; a bare ``all_reduce`` by MIN of as many bytes as the round reduces; and one of two bytes a request
(a verdict and a drain), the least that could be reduced if nothing had to be agreed on. Figures are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIZES = (1, 100, 1000)


def rank(number: int, ranks: int, port: int, rounds: int, repeats: int) -> None:
    """One process: measure; rank 0 prints."""
    import torch

    from adapters.torch_distributed import Consensus

    dist: Any = import_module("torch.distributed")  # torch does not type all of it
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=number, world_size=ranks)
    consensus = Consensus()
    results = {}
    for size in SIZES:
        rids = [f"cmpl-{index:032x}" for index in range(size)]
        verdicts, drained = [1] * size, [False] * size
        consensus.round(rids, verdicts, drained)  # makes room
        same = torch.zeros(consensus.reduced, dtype=torch.uint8)
        least = torch.zeros(2 * size, dtype=torch.uint8)
        work: dict[str, Callable[[], Any]] = {
            "round": partial(consensus.round, rids, verdicts, drained),
            "same": partial(dist.all_reduce, same, op=dist.ReduceOp.MIN),
            "least": partial(dist.all_reduce, least, op=dist.ReduceOp.MIN),
        }
        seconds: dict[str, list[float]] = {name: [] for name in work}
        for _ in range(repeats):
            for name, act in work.items():
                act()
                began = time.perf_counter()
                for _ in range(rounds):
                    act()
                seconds[name].append((time.perf_counter() - began) / rounds)
        pairs = zip(seconds["round"], seconds["same"], strict=True)
        to_least = zip(seconds["round"], seconds["least"], strict=True)
        results[size] = {
            **{f"{name}_us": round(1e6 * statistics.median(s), 1) for name, s in seconds.items()},
            "ratio": round(statistics.median(whole / bare for whole, bare in pairs), 3),
            "ratio_to_least": round(statistics.median(whole / bare for whole, bare in to_least), 3),
        }
    if number == 0:
        print(json.dumps(results))
    dist.destroy_process_group()


def measure(ranks: int, rounds: int = 50, repeats: int = 11) -> dict[str, dict[str, float]]:
    """The figures of `ranks` processes, by number of requests."""
    dist: Any = import_module("torch.distributed")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told = [str(ranks), str(store.port), str(rounds), str(repeats)]
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", str(number), *told],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for number in range(ranks)
    ]
    printed = [process.communicate(timeout=600)[0] for process in processes]
    if any(process.returncode for process in processes):
        msg = f"ranks ended with {[process.returncode for process in processes]}"
        raise RuntimeError(msg)
    figures: dict[str, dict[str, float]] = json.loads(printed[0])
    return figures


def main() -> None:
    """Measure, and print or write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rank", type=int, nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank(*options.rank)
        return
    figures = measure(options.ranks)
    print(
        f"{options.ranks} ranks: a round, and a bare all_reduce of as many bytes, and of two bytes a request"
    )
    for size, row in figures.items():
        times = ", ".join(f"{row[f'{name}_us']:.0f} us" for name in ("round", "same", "least"))
        print(f"{size:>6} requests: {times}; ratios {row['ratio']}, {row['ratio_to_least']}")
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
