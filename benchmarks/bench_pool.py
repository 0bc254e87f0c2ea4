"""Allocation and release: kvpool against SGLang's and vLLM's allocators, on one machine, in one run.

Usage, from the repository's root:

    benchmarks/peers_pool.sh .venv-peers
    .venv-peers/bin/python benchmarks/bench_pool.py --out benchmarks/results/pool.md

Peers that cannot be imported are left out, and the table says so. With the peers come 12 figures of SGLang (three
page sizes, two sizes of pool, with and without sorting of freed pages as its disaggregated modes do) and 6 of
vLLM. One figure is the time of one allocation and one release, in microseconds: the contenders take turns, and
the best of all rounds counts for each, so that a busy moment of the machine hurts nobody in particular.

What is compared is not quite the same. kvpool's figure includes making a lease, double release detection and
the lock that lets other threads release; the peers have none of these. SGLang returns a tensor of token slots,
which kvpool makes on demand: the column "with slots" includes that.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.machinery
import os
import platform
import random
import sys
import timeit
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from kvpool import FakeStream, KVLayout, PagePool

POOL_TOKENS = (65_536, 1_048_576)


def import_sglang() -> tuple[type, type] | str:
    """SGLang's two allocators, or why they are not to be had."""
    try:
        # Before the stand-in below, which it would look into.
        importlib.import_module("transformers")
        for name in ("torchvision", "torchvision.transforms", "torchvision.io"):
            if name not in sys.modules:
                stand_in = MagicMock(name=name)
                stand_in.__spec__ = importlib.machinery.ModuleSpec(name, None)
                stand_in.__path__ = []
                sys.modules[name] = stand_in
        module = importlib.import_module("sglang.srt.mem_cache.allocator")
        flat: type = module.TokenToKVPoolAllocator
        paged: type = module.PagedTokenToKVPoolAllocator
    except Exception as error:  # noqa: BLE001 - a half-installed peer fails in many ways
        return f"not importable ({type(error).__name__}: {error})"
    return flat, paged


def import_vllm() -> type | str:
    """The BlockPool of vLLM, or why it is not to be had."""
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    try:
        block_pool: type = importlib.import_module("vllm.v1.core.block_pool").BlockPool
    except Exception as error:  # noqa: BLE001 - see above
        return f"not importable ({type(error).__name__}: {error})"
    return block_pool


def our_pool(pages: int, page_size: int = 16, slabs: int = 1) -> PagePool:
    """A pool whose tensors are as small as can be; the books are what is measured."""
    layout = KVLayout(layers=1, kv_heads=1, head_dim=1, page_size=page_size)
    return PagePool(layout, pages, slab_pages=pages // slabs)


def timer(statement: str, **names: object) -> timeit.Timer:
    """Times ``statement``, compiled, so that no call of a wrapper is added to either side."""
    return timeit.Timer(statement, globals=names)


def our_timer(pool: PagePool, pages: int) -> timeit.Timer:
    """Allocate and release."""
    return timer("release(alloc(pages, 'r'))", alloc=pool.alloc, release=pool.release, pages=pages)


def our_timer_with_slots(pool: PagePool, pages: int) -> timeit.Timer:
    """The same, with the tensor of token slots that SGLang's allocators return."""
    statement = "lease = alloc(pages, 'r'); lease.token_slots(); release(lease)"
    return timer(statement, alloc=pool.alloc, release=pool.release, pages=pages)


def best_times(timers: dict[str, timeit.Timer], rounds: int, seconds: float) -> dict[str, float]:
    """The best time of one execution in microseconds, for each, taking turns ``rounds`` times."""
    best = dict.fromkeys(timers, float("inf"))
    counts = {}
    for name, each in timers.items():
        each.timeit(number=1)
        counts[name] = max(3, int(seconds / max(each.timeit(number=3) / 3, 1e-7)))
    gc.collect()
    for _ in range(rounds):
        for name, each in timers.items():
            best[name] = min(best[name], each.timeit(number=counts[name]) / counts[name] * 1e6)
    return best


def sglang_rows(allocators: tuple[type, type], rounds: int, seconds: float) -> list[list[str]]:
    """64 tokens, allocated and freed."""
    flat, paged = allocators
    rows = []
    for page_size in (1, 16, 64):
        for tokens in POOL_TOKENS:
            for need_sort in (False, True):
                common = (torch.bfloat16, "cpu", None, need_sort)
                peer = (
                    flat(tokens, *common) if page_size == 1 else paged(tokens, page_size, *common)
                )
                pool = our_pool(tokens // page_size, page_size)
                pages = 64 // page_size
                best = best_times(
                    {
                        "theirs": timer("free(alloc(64))", alloc=peer.alloc, free=peer.free),
                        "ours": our_timer(pool, pages),
                        "slots": our_timer_with_slots(pool, pages),
                    },
                    rounds,
                    seconds,
                )
                rows.append(
                    [
                        f"{page_size}",
                        f"{tokens:,}",
                        "yes" if need_sort else "no",
                        f"{best['theirs']:.2f}",
                        f"{best['ours']:.2f}",
                        f"**{best['theirs'] / best['ours']:.0f}x**",
                        f"{best['slots']:.2f}",
                        f"{best['theirs'] / best['slots']:.1f}x",
                    ]
                )
    return rows


def vllm_rows(block_pool: type, rounds: int, seconds: float) -> list[list[str]]:
    """Blocks, allocated and freed, without caching."""
    rows = []
    for blocks in POOL_TOKENS:
        peer = block_pool(blocks, False, 16)
        pool = our_pool(blocks)
        for pages in (1, 16, 512):
            theirs = timer(
                "free(get(pages))", get=peer.get_new_blocks, free=peer.free_blocks, pages=pages
            )
            best = best_times({"theirs": theirs, "ours": our_timer(pool, pages)}, rounds, seconds)
            rows.append(
                [
                    f"{pages}",
                    f"{blocks:,}",
                    f"{best['theirs']:.2f}",
                    f"{best['ours']:.2f}",
                    f"**{best['theirs'] / best['ours']:.1f}x**",
                ]
            )
    return rows


def mixed_rows(
    sglang: tuple[type, type] | str, vllm: type | str, rounds: int, seconds: float
) -> list[list[str]]:
    """A load that suits no free list: 64 leases of 1 to 64 pages live, ended in random order.

    One figure is the mean time of one end and one beginning.
    """
    plan = random.Random(0)
    steps = [(plan.randrange(64), plan.randint(1, 64)) for _ in range(1000)]

    def load(alloc: Callable[..., object], free: Callable[..., object]) -> timeit.Timer:
        live = [alloc(32) for _ in range(64)]

        def cycle() -> None:
            for which, pages in steps:
                free(live[which])
                live[which] = alloc(pages)

        return timeit.Timer(cycle)

    timers: dict[str, timeit.Timer] = {}
    for slabs in (1, 16):
        pool = our_pool(65_536, slabs=slabs)
        timers[f"kvpool, {slabs} slabs" if slabs > 1 else "kvpool"] = load(pool.alloc, pool.release)
    if not isinstance(vllm, str):
        blocks = vllm(65_536, False, 16)
        timers["vLLM BlockPool"] = load(blocks.get_new_blocks, blocks.free_blocks)
    if not isinstance(sglang, str):
        paged = sglang[1](65_536 * 16, 16, torch.bfloat16, "cpu", None, False)
        timers["SGLang paged"] = load(lambda pages: paged.alloc(pages * 16), paged.free)
    best = best_times(timers, rounds, seconds)
    ours = best["kvpool"]
    return [
        [name, f"{time / len(steps):.2f}", f"{time / ours:.1f}x"] for name, time in best.items()
    ]


def our_rows(rounds: int, seconds: float) -> list[list[str]]:
    """What kvpool costs when there is more to do than to give and to take."""
    rows = []
    for pages in (65_536, 1_048_576):
        plain, slabs = our_pool(pages), our_pool(pages, slabs=16)
        stream = FakeStream()

        def with_stream(pool: PagePool = plain, stream: FakeStream = stream) -> None:
            lease = pool.alloc(16, rid="r")
            lease.use(stream)
            pool.release(lease)
            stream.complete()
            pool.reclaim()

        def with_op(pool: PagePool = plain) -> None:
            lease = pool.alloc(16, rid="r")
            lease.open_op()
            pool.release(lease)
            lease.drain_op()

        best = best_times(
            {
                "1": our_timer(plain, 1),
                "16": our_timer(plain, 16),
                "512": our_timer(plain, 512),
                "16 slabs": our_timer(slabs, 16),
                "stream": timeit.Timer(with_stream),
                "op": timeit.Timer(with_op),
            },
            rounds,
            seconds,
        )
        rows.append([f"{pages:,}", *(f"{time:.2f}" for time in best.values())])
    return rows


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, numbers to the right."""
    rule = ["---"] + ["---:"] * (len(heads) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in [heads, rule, *rows])


def main() -> None:
    """Measure, print, and write the table if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="write the Markdown here too")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each contender (15)")
    parser.add_argument("--seconds", type=float, default=0.02, help="time of one turn (0.02)")
    arguments = parser.parse_args()
    rounds, seconds = arguments.rounds, arguments.seconds
    sglang, vllm = import_sglang(), import_vllm()
    parts = [
        "# Allocation and release, microseconds",
        (
            f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}, "
            f"{os.cpu_count()} cores, CPU tensors; best of {rounds} turns. Made by "
            "`benchmarks/bench_pool.py`, whose head says what is compared. Pool sizes are in tokens "
            "for SGLang, in pages for the others. Ratios are their time divided by ours."
        ),
        "## SGLang 0.5.23, 64 tokens allocated and freed",
    ]
    if isinstance(sglang, str):
        parts.append(f"SGLang: {sglang}")
    else:
        heads = ["page size", "pool", "sorts", "SGLang", "kvpool", "ratio", "with slots", "ratio"]
        parts.append(table(heads, sglang_rows(sglang, rounds, seconds)))
    parts.append("## vLLM 0.33.0, BlockPool without caching")
    if isinstance(vllm, str):
        parts.append(f"vLLM: {vllm}")
    else:
        heads = ["pages", "pool", "vLLM", "kvpool", "ratio"]
        parts.append(table(heads, vllm_rows(vllm, rounds, seconds)))
    parts += [
        "## Mixed: 64 live leases of 1 to 64 pages, ended in random order, pool of 65,536 pages",
        table(["allocator", "time", "to kvpool"], mixed_rows(sglang, vllm, rounds, seconds)),
        "## kvpool alone: the pool's size does not matter; streams and ops are extra",
        table(
            ["pool", "1 page", "16", "512", "16 of 16 slabs", "16 and a stream", "16 and an op"],
            our_rows(rounds, seconds),
        ),
    ]
    text = "\n\n".join(parts) + "\n"
    print(text)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
