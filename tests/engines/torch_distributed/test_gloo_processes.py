"""Consensus in 2 and 4 real processes: queues that differ, a rank that is late, dies, or freezes."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.engines.record import record

ROOT = Path(__file__).parents[3]
SOURCE = "contract section 7"


def run(scenario, ranks, *, seconds=60):
    """Every rank's exit code (None if it had to be killed) and what it printed."""
    dist = import_module("torch.distributed")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                Path(__file__).with_name("ranks.py"),
                scenario,
                *map(str, (rank, ranks, store.port)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "PATH": ""},
        )
        for rank in range(ranks)
    ]
    results = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=seconds)
            code = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            code = None
        results.append((code, json.loads(out) if out.strip() else None, err))
    return results


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("scenario", ["differ", "late"])
def test_ranks_agree_though_their_queues_differ_and_one_is_late(scenario, ranks):
    results = run(scenario, ranks)
    assert [code for code, _, _ in results] == [0] * ranks, results
    first = results[0][1]
    assert all(told == first for _, told, _ in results)
    assert first["rids"] == ["a", "b"]
    assert first["verdicts"] == [2, 0]
    assert first["drained"] == [True, False]
    assert first["missing"]["only1-0"] == [rank for rank in range(ranks) if rank != 1]


def test_a_bare_all_reduce_of_queues_that_differ_hangs_or_dies_or_is_wrong():
    results = run("bare", 2, seconds=12)
    outcome = [(code, told) for code, told, _ in results]
    assert outcome != [(0, [2] * 3), (0, [2] * 5)], outcome
    torch = import_module("torch")
    record(
        engine="torch.distributed (gloo)",
        version=torch.__version__,
        failure="ranks with queues of different length",
        source=SOURCE,
        alone="; ".join(
            f"rank {rank} {'hangs' if code is None else f'ends with {code}'}"
            for rank, (code, _) in enumerate(outcome)
        ),
        governed="the ids that differ are named with their ranks; the others are decided",
    )


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("scenario", ["dies", "freezes"])
def test_a_rank_that_is_gone_is_named_in_bounded_time(scenario, ranks):
    results = run(scenario, ranks, seconds=20)
    for rank, (code, told, err) in enumerate(results):
        if rank == 1:
            assert code in (-9, None)
            continue
        assert code == 0, err
        assert told["lost"] == [1]
        assert told["seconds"] < 15
