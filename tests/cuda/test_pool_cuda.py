"""The pool on a CUDA device: streams, memory that really goes back, and no hidden waits."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kvpool import (  # noqa: E402 - kvpool needs torch
    DeviceMemoryError,
    KVLayout,
    LateWriteError,
    LeaseState,
    PagePool,
    PagesComingError,
    PageTable,
)

ROOT = Path(__file__).parents[2]
SMALL = KVLayout(layers=2, kv_heads=4, head_dim=64, page_size=16, dtype=torch.float16)
# 32 MiB a page of 16 tokens, so that a slab is not lost among what the driver keeps for itself.
LARGE = KVLayout(layers=32, kv_heads=8, head_dim=2048, page_size=16, dtype=torch.float16)
LONG_CYCLES = 1_000_000_000  # half a second or so


def read_late(pool: PagePool, side, lease, out) -> None:
    """A kernel on ``side`` that reads the pages of ``lease`` long after it was launched."""
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG_CYCLES)
        for view, part in zip(lease.token_views(), out, strict=True):
            part.copy_(view)


@pytest.mark.parametrize("told", [True, False])
def test_pages_are_not_reused_under_a_running_kernel(told):
    """With ``told=False`` the pool does not know of the stream: the same test then sees the pages spoilt."""
    pool = PagePool(SMALL, 8, device="cuda")
    side = torch.cuda.Stream()
    lease = pool.alloc(8, rid="reader")
    for view in lease.token_views():
        view.fill_(1)
    out = [torch.zeros_like(view) for view in lease.token_views()]
    if told:
        lease.use(side)
    read_late(pool, side, lease, out)
    lease.release()
    if told:
        assert lease.state is LeaseState.PENDING
        with pytest.raises(PagesComingError):
            pool.alloc(8, rid="writer")
        side.synchronize()
    writer = pool.alloc(8, rid="writer")
    for view in writer.token_views():
        view.fill_(2)
    torch.cuda.synchronize()
    is_intact = all(bool((part == 1).all()) for part in out)
    assert is_intact == told


def test_the_fence_before_a_transfer_waits_for_the_kernels():
    pool = PagePool(SMALL, 4, device="cuda")
    side = torch.cuda.Stream()
    lease = pool.alloc(4)
    lease.use(side)
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG_CYCLES)
    fence = lease.open_op("kv")
    assert not fence.query()
    fence.synchronize()
    assert side.query()


def test_nothing_waits_for_the_device():
    pool = PagePool(SMALL, 64, slab_pages=16, device="cuda")
    table = PageTable(pool, max_requests=8, max_pages=16)
    stream = torch.cuda.Stream()

    def step() -> None:
        lease = pool.alloc(5, rid="r")
        lease.use(stream)
        lease.page_ids(torch.int32)
        lease.page_ids(torch.int64)
        lease.token_slots(3, 70)
        row = table.add(lease)
        table.commit()
        pool.extend(lease, 1)
        table.update(row)
        table.commit()
        lease.open_op("kv")
        table.remove(row)
        table.commit()
        lease.release()
        lease.drain_op("kv")
        pool.reclaim()
        pool.stats()

    step()  # whatever is made once
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_ids_on_the_device_are_right():
    pool = PagePool(SMALL, 32, slab_pages=8, device="cuda")
    table = PageTable(pool, max_requests=4, max_pages=12)
    lease = pool.alloc(11)
    row = table.add(lease)
    table.commit()
    assert lease.page_ids().tolist() == list(lease.pages)
    assert table.table[row].tolist() == [*lease.pages, 0]
    assert table.lengths.tolist()[row] == 11
    slots = [page * 16 + i for page in lease.pages for i in range(16)]
    assert lease.token_slots(17, 100).tolist() == slots[17:100]
    assert lease.page_ids().is_cuda
    assert table.table.is_cuda


def test_trim_gives_memory_back_to_the_driver():
    before = torch.cuda.mem_get_info()[0]
    if before < 5 * LARGE.total_bytes(4):
        pytest.skip(f"needs {5 * LARGE.total_bytes(4):,} free bytes")
    pool = PagePool(LARGE, 16, slab_pages=4, device="cuda")
    with_pool = torch.cuda.mem_get_info()[0]
    assert before - with_pool >= LARGE.total_bytes(16)
    kept = pool.alloc(1)
    report = pool.trim()
    assert report.slabs == 3
    assert report.observed_bytes >= LARGE.total_bytes(12)
    assert torch.cuda.mem_get_info()[0] - with_pool >= LARGE.total_bytes(12)
    kept.page_view(0).fill_(1)
    pool.grow(3)
    assert len(pool.alloc(15)) == 15
    pool.audit().check()


def test_trim_waits_for_kernels_that_the_pool_was_not_told_of():
    pool = PagePool(SMALL, 8, device="cuda")
    lease = pool.alloc(8)
    side = torch.cuda.Stream()
    out = [torch.zeros_like(view) for view in lease.token_views()]
    for view in lease.token_views():
        view.fill_(1)
    del view
    read_late(pool, side, lease, out)
    lease.release()
    pool.trim()
    assert side.query()
    assert all(bool((part == 1).all()) for part in out)


def test_the_device_must_have_the_memory():
    free = torch.cuda.mem_get_info()[0]
    pages = free // LARGE.bytes_per_page + 100
    with pytest.raises(DeviceMemoryError, match="Nothing was allocated"):
        PagePool(LARGE, pages, device="cuda")
    assert torch.cuda.mem_get_info()[0] >= free - (64 << 20)


def test_a_late_write_on_another_stream_is_caught():
    pool = PagePool(SMALL, 4, device="cuda", debug=True)
    lease = pool.alloc(2, rid="culprit")
    late = lease.page_view(0)
    lease.release()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        late.fill_(3)
    side.synchronize()
    with pytest.raises(LateWriteError, match="culprit"):
        pool.alloc(4)


def test_the_sanitizer_of_torch_finds_no_race():
    """The sanitizer sees waits of the host, but not polls, so the script waits before it reclaims."""
    script = """
        import torch
        from kvpool import KVLayout, PagePool, PageTable

        layout = KVLayout(layers=2, kv_heads=2, head_dim=16, page_size=16, dtype=torch.float16)
        pool = PagePool(layout, 8, device="cuda")
        table = PageTable(pool, 4, 8)
        streams = [torch.cuda.Stream() for _ in range(2)]
        for step in range(6):
            stream = streams[step % 2]
            with torch.cuda.stream(stream):
                lease = pool.alloc(8, rid=str(step))
                lease.use(stream)
                for view in lease.token_views():
                    view.fill_(step)
                lease.token_slots()
                lease.release()
            stream.synchronize()
            pool.reclaim()
        assert pool.audit().check().idle
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "TORCH_CUDA_SANITIZER": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "data race" not in result.stderr
