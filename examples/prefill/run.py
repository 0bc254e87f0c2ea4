"""One worker, put together and run on one load to the end; and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import attrs
import torch

from kvpool import Audit, KVLayout, PagePool
from lifecycle import Driver, RequestTable

from .clients import Clients
from .engine import TransferEngine
from .handwritten import HandWritten
from .ledger import Ledger
from .load import Spec
from .model import Model
from .pages import FreeListPages, LeasedPages
from .receiver import Receiver
from .scheduler import PrefillScheduler
from .witness import Witness

LAYOUT = KVLayout(layers=2, kv_heads=4, head_dim=32, page_size=16, dtype=torch.float32)
POOL_PAGES = 256
"""Few enough that pages run short now and then."""
DRAIN_DEADLINE = 40.0
"""Turns that a decided request may wait for its last transfer; then its pages go to quarantine."""
PATIENCE = 2_000
"""Turns after the last arrival at which whatever has not ended is called stuck."""

LIFECYCLE, BEFORE, AFTER = "lifecycle", "before", "after"
KINDS = (LIFECYCLE, BEFORE, AFTER)
"""The schedulers: one that embeds the library, and the hand-written ones around the fix."""


@attrs.frozen
class Result:
    """What one scheduler did with a load.

    ``attempts`` tells for each rid how often it was preempted. ``late``, ``unknown``, ``illegal``,
    ``port_faults`` and the audits are the library's and its pool's; the hand-written ones have nothing that would
    tell. ``audit`` was taken when the last request had ended, ``final_audit`` after the transfer engine had
    stopped, which proves that what was in quarantine is quiet.
    """

    kind: str
    requests: int
    turns: int
    seconds: float
    attempts: dict[str, int]
    witness: Witness
    ledger: Ledger
    receiver: Receiver
    late: int = 0
    unknown: int = 0
    illegal: int = 0
    port_faults: int = 0
    audit: Audit | None = None
    final_audit: Audit | None = None

    @property
    def spoilt_answers(self) -> int:
        """Clients who were told that all went well, and whose KV is not theirs."""
        return sum(
            outcome.status == 200 and (rid, self.attempts[rid]) in self.receiver.spoilt
            for rid, outcome in self.witness.outcomes.items()
        )

    def faults(self) -> dict[str, int]:
        """What must be zero, by name."""
        return {
            "requests that never ended": self.requests - len(self.witness.outcomes),
            "requests reported twice": self.witness.told_twice,
            "pages freed twice": self.ledger.freed_twice,
            "pages freed while a transfer read them": self.ledger.freed_in_flight,
            "pages reused while a transfer read them": self.ledger.reused_in_flight,
            "pages given to two requests at once": self.ledger.two_owners,
            "pages leaked": self.ledger.leaked,
            "wrong bytes at the decode worker": self.receiver.wrong_bytes,
            "clients told 200 with another's KV": self.spoilt_answers,
            "aborts lost (client told 200)": self.witness.aborts_lost,
            "finish reasons replaced": self.witness.reasons_replaced,
        }

    def library_faults(self) -> dict[str, int]:
        """What must be zero too, where the library and the pool can tell."""
        if self.audit is None or self.final_audit is None:
            return {}
        balanced = self.audit.ok and self.final_audit.ok
        settled = self.audit.idle and self.final_audit.idle
        all_free = self.final_audit.stats.free == self.final_audit.stats.total
        return {
            "illegal events": self.illegal,
            "effects that a port refused": self.port_faults,
            "pool audits that failed": 2 - balanced - (settled and all_free),
        }

    @property
    def clean(self) -> bool:
        """Whether all of that is zero."""
        return not any({**self.faults(), **self.library_faults()}.values())

    @property
    def decisions(self) -> list[tuple[int, str, str]]:
        """Every report: the turn, the rid, the reason. The same seed gives the same list."""
        return [(told.at, told.outcome.rid, str(told.outcome.reason)) for told in self.witness.told]


Watch = Callable[[PrefillScheduler, PagePool], None]
"""Called once a turn."""


def run(kind: str, load: Sequence[Spec], watch: Watch | None = None) -> Result:
    """Run ``load`` on the scheduler ``kind`` (one of KINDS)."""
    pool = PagePool(LAYOUT, POOL_PAGES)
    receiver, ledger, witness = Receiver(LAYOUT), Ledger(), Witness()
    engine, model = TransferEngine(pool, receiver), Model(pool)
    pages: LeasedPages | FreeListPages
    driver: Driver | HandWritten
    post_abort: Callable[[str], None]
    table = None
    if kind == LIFECYCLE:
        pages = LeasedPages(pool, ledger)
        table = RequestTable(deadlines={"draining": DRAIN_DEADLINE})
        driver = Driver(table, pool=pages, transfer=engine, reporter=witness)
        post_abort = table.inbox.abort
    else:
        pages = FreeListPages(pool, ledger)
        driver = HandWritten(pages, engine, witness, fixed=kind == AFTER)
        post_abort = driver.post_abort
    clients = Clients(load, post_abort)
    scheduler = PrefillScheduler(
        load,
        driver=driver,
        pages=pages,
        page_size=LAYOUT.page_size,
        model=model,
        engine=engine,
        clients=clients,
        witness=witness,
    )
    last_turn = max(spec.arrives for spec in load) + PATIENCE
    begun = time.perf_counter()
    try:
        while not scheduler.idle and scheduler.now < last_turn:
            scheduler.turn()
            if watch is not None:
                watch(scheduler, pool)
        audit = None if table is None else pool.audit()
    finally:
        clients.close()
        model.close()
        engine.close()
    result = Result(
        kind=kind,
        requests=len(load),
        turns=scheduler.now,
        seconds=time.perf_counter() - begun,
        attempts={rid: job.life.attempt for (rid, _), job in scheduler.jobs.items()},
        witness=witness,
        ledger=ledger,
        receiver=receiver,
    )
    if table is None or not isinstance(driver, Driver):
        return result
    if pool.quarantined():
        pool.release_quarantine(proof="the transfer engine has stopped")
    return attrs.evolve(
        result,
        late=table.late.total(),
        unknown=table.unknown.total(),
        illegal=table.illegal.total() + len(scheduler.errors),
        port_faults=len(driver.faults),
        audit=audit,
        final_audit=pool.audit(),
    )
