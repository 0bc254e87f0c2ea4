"""Pictures of the pool."""

from __future__ import annotations

import io

import pytest
import torch

from kvpool import KVLayout, OccupancyBar, OccupancyHistory, PagePool, plot_occupancy

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=1, page_size=4, dtype=torch.float32)


def busy_pool() -> PagePool:
    pool = PagePool(LAYOUT, 100)
    pool.alloc(60, rid="r1")
    pool.alloc(1, rid="r2").release(ops=["kv"])
    pool.alloc(20, rid="r3").quarantine(reason="no proof")
    return pool


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_occupancy_is_drawn(tmp_path, suffix, start):
    pytest.importorskip("matplotlib")
    pool = PagePool(LAYOUT, 100)
    history = OccupancyHistory(pool, limit=4)
    for step in range(6):
        pool.alloc(10 + step)
        history.sample(at=float(step))
    assert [sample.x for sample in history.samples] == [2, 3, 4, 5]
    path = plot_occupancy(history.samples, tmp_path / f"pool{suffix}")
    assert path.read_bytes().startswith(start)


def test_nothing_cannot_be_drawn(tmp_path):
    with pytest.raises(ValueError, match="no sample"):
        plot_occupancy([], tmp_path / "pool.png")


def test_the_bar_shows_every_class_that_has_a_page():
    console = pytest.importorskip("rich.console")
    out = io.StringIO()
    bar = OccupancyBar(busy_pool(), width=20)
    console.Console(file=out, width=120).print(bar)
    line = out.getvalue()
    for part in ("100 pages", "held 60", "pending 1", "quarantined 20", "free 19"):
        assert part in line
    assert line.count("█") + line.count("░") == 20
    assert "cached" not in line


def test_the_audit_is_a_table_too():
    console = pytest.importorskip("rich.console")
    out = io.StringIO()
    console.Console(file=out, width=120).print(busy_pool().audit().table())
    text = out.getvalue()
    for part in ("books balance", "r1", "op kv", "no proof", "quarantined"):
        assert part in text
