"""One rank, in a process of its own: ``ranks.py SCENARIO RANK RANKS PORT``. Prints one JSON object."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from importlib import import_module


def main(scenario, rank, ranks, port):
    dist = import_module("torch.distributed")
    torch = import_module("torch")
    from adapters.torch_distributed import Consensus, RanksLost

    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=20)
    )
    if scenario == "bare":  # what schedulers do: one verdict a request of their own queue
        verdicts = torch.full((3 + 2 * rank,), 2, dtype=torch.uint8)
        dist.all_reduce(verdicts, op=dist.ReduceOp.MIN)
        sys.stdout.write(json.dumps(verdicts.tolist()) + "\n")
        return
    consensus = Consensus(timeout=2.0, store=store, patience=6.0)
    queue = ["a", "b", *(f"only{rank}-{number}" for number in range(2 * rank))]
    said = [2, 0 if rank == ranks - 1 else 2, *[2] * 2 * rank]
    if scenario == "late" and rank == 1:
        time.sleep(1.0)
    rounds = [consensus.round(queue, said, [False] * len(queue)) for _ in range(3)]
    first = rounds[0]
    assert rounds.count(first) == 3
    told = {
        "rids": first.rids,
        "verdicts": first.verdicts,
        "drained": first.drained,
        "missing": first.missing,
    }
    if scenario in ("dies", "freezes") and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL if scenario == "dies" else signal.SIGSTOP)
    if scenario in ("dies", "freezes"):
        began = time.monotonic()
        try:
            consensus.round(queue, said, [False] * len(queue))
        except RanksLost as lost:
            told |= {"lost": lost.ranks, "seconds": time.monotonic() - began}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a broken group cannot be taken down in order


main(sys.argv[1], *map(int, sys.argv[2:]))
