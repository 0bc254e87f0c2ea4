"""The life of each of vLLM's requests, as its connector and scheduler tell it.

What vLLM says                                      the contract's event
-------------------------------------------------   -----------------------------------------------------------
``on_new_request``                                  ``submit``
``update_state_after_alloc``                        ``admit``; with tokens to load, ``transfer_posted("recv")``
an id in ``finished_recving``                       ``transfer_succeeded("recv")``: drained, loaded or not
``request_finished`` of the connector is True       ``transfer_posted("send")``, and the blocks are lent
a request finishes by stop or length                ``complete``, after ``prefill_finished`` if its blocks are lent
a request is aborted, or an error                   ``abort``, ``error``
an id in ``finished_sending``                       ``transfer_succeeded("send")``
a preemption                                        ``preempt``

Choices where the contract leaves room:

- A load that failed is recomputed or ends the request, by vLLM's own ``kv_load_failure_policy``. For the blocks it
  only matters that nobody writes into them any more, so the completion of a failed load drops the claim as that of
  a good one does; whether the request goes on is vLLM's to say.
- vLLM tells the client of an abort at once, so the policy is ``report="at_decision"``, and the id may be used
  again while the former life drains.
- A life after the first has an id of its own within vLLM, ``r1#2``, so that a completion which is reported late
  for the former life cannot be taken for one of the new. Outputs bear the id that the client knows.
- Forward passes are no claims here: vLLM fences frees against its own passes (``defer_block_free``).
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs

from lifecycle import (
    Driver,
    DuplicateRequest,
    IllegalEvent,
    LifecycleError,
    Outcome,
    Policy,
    RequestLifecycle,
    RequestTable,
)
from lifecycle.ports import Hold

log = logging.getLogger("adapters.vllm")

RECV, SEND = "recv", "send"
"""The ops that vLLM knows: a load into the blocks, and whatever reads them after the finish."""

HELD_FOR_LOAD: Final = "WAITING_FOR_REMOTE_KVS"
"""VLLM's status of a request that waits until its load is over."""

POLICY: Final = Policy(report="at_decision")
DEADLINES: Final[Mapping[str, float]] = {"transferring": 600.0, "draining": 60.0}
"""Seconds. Longer than the leases of vLLM's own connectors, which end most transfers by themselves."""

_ALIASES = 16384  # how many ids of later lives are remembered for their last outputs


@attrs.define(eq=False)
class Life:
    """One life of a request of vLLM.

    `loads` tells whether the connector's last answer was to load asynchronously. `unannounced` is set while tokens
    come from outside without such an answer: vLLM's status of the request tells whether they are still loading.
    `tail` is set when the connector keeps a partial last block. `lent` names the ops that are out, of any attempt.
    `detached` holds the blocks of earlier attempts that drain.
    """

    engine_id: str
    rid: str
    incarnation: int
    request: Any
    lifecycle: RequestLifecycle
    loads: bool = False
    unannounced: bool = False
    tail: bool = False
    preemptions: int = 0
    lent: set[str] = attrs.field(factory=set)
    detached: dict[int, list[Any]] = attrs.field(factory=dict)


@attrs.define(eq=False)
class Quarantined:
    """Blocks out of circulation: nobody has proved that transfers let go of them. `ops` are those transfers."""

    life: Life
    blocks: list[Any]
    ops: set[str]


class Governor:
    """The table of requests of one scheduler, and what its effects do in vLLM.

    Args:
        policy: the open choices of the contract (section 6).
        deadlines: seconds that a request may be ``transferring`` (its blocks are lent after a normal finish) or
            ``draining`` (after an abort or error).
        clock: seconds; read whenever vLLM calls.
        on_outcome: called with each request's outcome, once.
        on_cancel: called with a request's id when its peer should be told that the transfer is off.

    Attributes:
        table: the lives of all requests.
        absorbed: how many reports of the workers were late or unknown, by ``finished_sending`` and
            ``finished_recving``.
        refused: events that the table declared illegal; each is logged, and changed nothing. The last 100.
        quarantined: by the id within vLLM, blocks that a deadline took out of circulation.
    """

    passive = False
    """Whether vLLM is left as it is, and only looked at (:class:`adapters.vllm.Observer`)."""

    def __init__(
        self,
        *,
        policy: Policy = POLICY,
        deadlines: Mapping[str, float] = DEADLINES,
        clock: Callable[[], float] = time.monotonic,
        on_outcome: Callable[[Outcome], None] | None = None,
        on_cancel: Callable[[str], None] | None = None,
    ) -> None:
        self.table = RequestTable(policy, deadlines=deadlines)
        self.driver = Driver(self.table, pool=self, transfer=self, reporter=self)
        self.clock, self.on_outcome, self.on_cancel = clock, on_outcome, on_cancel
        self.absorbed: Counter[str] = Counter()
        self.refused: list[LifecycleError] = []
        self.quarantined: dict[str, Quarantined] = {}
        self.scheduler: Any = (
            None  # set by the governed scheduler; None if only the connector is governed
        )
        self._manager: Any = None
        self._lives: dict[str, Life] = {}
        self._of: dict[tuple[str, int], Life] = {}
        self._aliases: OrderedDict[str, str] = OrderedDict()
        self._finishing: Life | None = (
            None  # vLLM frees its blocks itself, in the call that is under way
        )
        self._freeable: list[Life] = []  # vLLM is to free them at its next turn
        self._ended: list[Life] = []

    def bind(self, manager: Any) -> None:
        """VLLM's ``KVCacheManager``, whose blocks these are."""
        self._manager = manager

    # Names.

    def engine_id(self, rid: str) -> str:
        """The id within vLLM of the newest life of `rid`; `rid` itself if it is not known."""
        if self.scheduler is None or rid not in self.table:
            return rid
        return _name(rid, self.table[rid].incarnation)

    def rid(self, engine_id: str) -> str:
        """The id that the client knows."""
        return self._aliases.get(engine_id, engine_id)

    def name(self, rid: str) -> str:
        """The id within vLLM for a new life of `rid`.

        Raises:
            DuplicateRequest: a request of that id lives. Nothing changes.
        """
        if rid not in self.table:
            return rid
        former = self.table[rid]
        if not (former.done or former.reported):
            raise self.table._duplicate(former)
        alias = _name(rid, former.incarnation + 1)
        self._aliases[alias] = rid
        if len(self._aliases) > _ALIASES:
            self._aliases.popitem(last=False)
        return alias

    @property
    def renames(self) -> bool:
        """Whether any life has an id of its own within vLLM."""
        return bool(self._aliases)

    def life(self, engine_id: str) -> Life | None:
        """The life that bears this id within vLLM; None if it is over or not known."""
        return self._lives.get(engine_id)

    # What vLLM says.

    def arrived(self, request: Any) -> None:
        """A new request."""
        engine_id = request.request_id
        rid = self.rid(engine_id)
        try:
            lifecycle = self.driver.submit(rid, now=self.clock())
        except DuplicateRequest as error:
            self._refuse(error)
            return
        life = Life(engine_id, rid, lifecycle.incarnation, request, lifecycle)
        self._lives[engine_id] = life
        self._of[rid, lifecycle.incarnation] = life

    def allocated(self, request: Any, external_tokens: int) -> None:
        """Blocks were allocated; `external_tokens` of them are loaded from outside."""
        life = self._lives.get(request.request_id)
        if life is None:
            return
        self._catch_up(life)
        self._admit(life)
        life.unannounced = bool(external_tokens) and not life.loads
        if external_tokens and life.loads and RECV not in life.lifecycle.ops:
            self._post(life, RECV)

    def held_for_load(self, request: Any) -> None:
        """Post the load that vLLM holds a request for, if the connector's answer did not announce it.

        The answer passes by where ``get_num_new_matched_tokens`` was replaced on the connector itself. Without a
        claim the load's completion would be late, and the request would wait for ever.
        """
        life = self._lives.get(request.request_id)
        if life is None or not life.unannounced or request.status.name != HELD_FOR_LOAD:
            return
        life.unannounced = False
        if RECV not in life.lifecycle.ops:
            self._post(life, RECV)

    def lend(self, rid: str, op: str) -> None:
        """`op` touches the blocks of a request that runs: for connectors that post transfers of their own.

        Raises:
            IllegalEvent: the request is decided, or `op` is out already.
        """
        life = self._lives[self.engine_id(rid)]
        self._catch_up(life)
        self.driver.fire(
            life.rid, "transfer_posted", incarnation=life.incarnation, now=self.clock(), op=op
        )
        life.lent.add(op)

    def returned(self, rid: str, op: str) -> None:
        """`op`, which was lent the blocks, will never touch them again."""
        self.completed(self.engine_id(rid), op)
        self.free_now()

    def keeps_tail(self, request: Any) -> None:
        """The connector keeps the partial last block of a request that is about to finish."""
        life = self._lives.get(request.request_id)
        if life is not None:
            life.tail = True

    def finished(self, request: Any, reads_on: bool) -> bool:
        """A request finishes; `reads_on` is the connector's answer. Whether vLLM is to keep the blocks."""
        life = self._lives.get(request.request_id)
        if life is None:
            return reads_on
        self._catch_up(life)
        lifecycle, status = life.lifecycle, request.status.name
        self._finishing = life
        try:
            if reads_on or life.tail:
                self._admit(life)
                self._post(life, SEND)
            if status == "FINISHED_ABORTED":
                self._fire(life, "abort", source="client")
            elif status == "FINISHED_ERROR":
                self._fire(life, "error")
            elif (
                lifecycle.state == "queued" and not life.preemptions
            ):  # refused before it had blocks
                self._fire(life, "abort", source="server")
            else:
                self._admit(life)  # a preempted request may finish by what was computed before
                if lifecycle.ops:
                    self._fire(life, "prefill_finished")
                capped = status in ("FINISHED_LENGTH_CAPPED", "FINISHED_IGNORED")
                self._fire(life, "complete", reason="length" if capped else "stop")
        finally:
            self._finishing = None
        return bool(lifecycle.ops)

    def aborted(self, engine_id: str) -> None:
        """A client hung up after vLLM had finished its request, whose blocks are still lent."""
        life = self._lives.get(engine_id)
        if life is not None:
            self._fire(life, "abort", source="client")

    def preempted(self, request: Any) -> None:
        """VLLM is about to take the blocks of a running request back. What is lent of them drains on its own."""
        life = self._lives.get(request.request_id)
        if life is None or life.lifecycle.state != "prefilling":
            return
        if life.lifecycle.ops:
            life.detached[life.lifecycle.attempt] = self._manager.pop_blocks_for_free(request)
        life.preemptions += 1
        life.unannounced = False
        self._finishing = life
        try:
            self._fire(life, "preempt")
        finally:
            self._finishing = None

    def freed(self, request: Any) -> None:
        """VLLM frees the blocks of a finished request, as it was told to."""

    def mispinned(self, block_id: int) -> None:
        """The connector freed a block that it has not pinned; it was absorbed."""
        log.warning("the connector freed block %d, which it has not pinned", block_id)

    def completed(self, engine_id: str, op: str) -> bool:
        """A worker reports that `op` is over. False if it was late or unknown."""
        held = self.quarantined.get(engine_id)
        if held is not None and op in held.ops:
            held.ops.discard(op)
            held.life.lent.discard(op)
            if not held.ops:
                self.clear(engine_id)
            return True
        life = self._lives.get(engine_id)
        if life is not None and op == RECV:
            self.held_for_load(life.request)
        known = life is not None and (
            op in life.lifecycle.ops or any(op in old.ops for old in life.lifecycle.draining)
        )
        if life is not None:
            self._fire(life, "transfer_succeeded", op=op)
            life.lent.discard(op)
        else:
            first = 1 if self.scheduler is not None else None
            self.driver.fire(
                engine_id, "transfer_succeeded", incarnation=first, now=self.clock(), op=op
            )
        return known

    def reported(self, output: Any) -> Callable[[], None]:
        """The workers' report of a step (``KVConnectorOutput``), before the connector and the scheduler read it.

        Leaves in it what the connector has to know: completions of ops that are out. Calling the result leaves
        what the scheduler has to do: loads that are complete, and requests whose blocks nobody touches any more.
        """
        received = self._genuine(output.finished_recving, RECV, "finished_recving")
        sent = self._genuine(output.finished_sending, SEND, "finished_sending")
        waiting = {
            each
            for each in received
            if (life := self._lives.get(each)) is not None and not life.lifecycle.decided
        }
        output.finished_recving, output.finished_sending = received or None, sent or None

        def for_the_scheduler() -> None:
            output.finished_recving = waiting or None
            output.finished_sending = {life.engine_id for life in self._take_freeable()} or None

        return for_the_scheduler

    def tick(self) -> None:
        """Time passes: end what is past its deadline, and forget what is over."""
        for todo in self.driver.expire(self.clock()):
            if todo.error is not None:
                self._refuse(todo.error)
            elif todo.request is not None:
                self._note_end(self._of[todo.request.rid, todo.request.incarnation])
        self.free_now()
        self._reap()

    def free_now(self) -> None:
        """Have vLLM free what is due, where its scheduler is governed; else it does so at its next report."""
        if self.scheduler is not None:
            requests = self.scheduler.requests
            for life in self._take_freeable():
                if requests.get(life.engine_id) is life.request:
                    self.scheduler._free_blocks(life.request)

    def clear(self, engine_id: str) -> None:
        """Give quarantined blocks back: an operator, or a completion, says that nothing touches them any more.

        Raises:
            KeyError: nothing of that id is in quarantine.
        """
        self._give_back(self.quarantined.pop(engine_id).blocks)

    @property
    def drains(self) -> bool:
        """Whether something waits for its last claim: the engine has to keep stepping, or nobody hears of it."""
        return any(life.detached for life in self._lives.values())

    # What the table's effects do (lifecycle.ports).

    def release(self, hold: Hold) -> None:
        """The last claim is gone."""
        life = self._of[hold.rid, hold.incarnation]
        blocks = life.detached.pop(hold.attempt, None)
        if blocks is not None:
            self._give_back(blocks)
        elif self._finishing is not life and hold.attempt == life.lifecycle.attempt:
            self._freeable.append(life)

    def quarantine(self, hold: Hold) -> None:
        """A deadline passed: the blocks leave circulation, and vLLM forgets the request."""
        life = self._of[hold.rid, hold.incarnation]
        blocks = life.detached.pop(hold.attempt, None)
        if blocks is None:
            blocks = self._manager.pop_blocks_for_free(life.request)
            self._freeable.append(life)  # vLLM finds no blocks, and strikes it off
        held = self.quarantined.setdefault(life.engine_id, Quarantined(life, [], set()))
        held.blocks += blocks
        held.ops |= life.lent
        log.warning(
            "request %r: %d blocks are in quarantine; not proved to be over: %s",
            life.rid, len(blocks), ", ".join(sorted(held.ops)) or "nothing",
        )  # fmt: skip

    def holds(self, hold: Hold) -> bool:
        """Whether the blocks of this attempt are still out."""
        life = self._of.get((hold.rid, hold.incarnation))
        return life is not None and hold.attempt in life.detached

    def cancel(self, hold: Hold) -> None:
        """VLLM has no call for it; whoever can tell the peer is told here."""
        if self.on_cancel is not None:
            self.on_cancel(hold.rid)

    def report(self, outcome: Outcome) -> None:
        """VLLM tells its client itself; this is the outcome as the contract has it."""
        if self.on_outcome is not None:
            self.on_outcome(outcome)

    # How it keeps order.

    def _fire(self, life: Life, event: str, **details: Any) -> None:
        """An event whose refusal must not stop vLLM's loop, and with it every other request."""
        try:
            self.driver.fire(
                life.rid, event, incarnation=life.incarnation, now=self.clock(), **details
            )
        except IllegalEvent as error:
            self._refuse(error)
        self._note_end(life)

    def _admit(self, life: Life) -> None:
        if life.lifecycle.state == "queued":
            self._fire(life, "admit", pages=life.engine_id)

    def _post(self, life: Life, op: str) -> None:
        self._fire(life, "transfer_posted", op=op)
        life.lent.add(op)

    def _refuse(self, error: LifecycleError) -> None:
        log.error("%s", error)
        self.refused = [*self.refused[-99:], error]

    def _catch_up(self, life: Life) -> None:
        """A preemption that nobody told of (only the connector is governed): vLLM has freed the blocks already."""
        if life.request.num_preemptions > life.preemptions:
            life.preemptions = life.request.num_preemptions
            if life.lifecycle.state == "prefilling":
                self._finishing = life
                self._fire(life, "preempt")
                self._finishing = None

    def _genuine(self, reported: Iterable[str] | None, op: str, name: str) -> set[str]:
        genuine = set()
        for engine_id in sorted(reported or ()):
            if self.completed(engine_id, op):
                genuine.add(engine_id)
            else:
                self.absorbed[name] += 1
                log.warning("%s of request %r is late, and was absorbed", name, self.rid(engine_id))
        return genuine

    def _take_freeable(self) -> list[Life]:
        lives, self._freeable = self._freeable, []
        return lives

    def _give_back(self, blocks: list[Any]) -> None:
        """Blocks that were taken off vLLM's books, to its pool; after the passes that are under way."""
        scheduler = self.scheduler
        if (
            scheduler is not None
            and scheduler.defer_block_free
            and scheduler.sched_step_seq > scheduler.processed_step_seq
        ):
            scheduler.deferred_frees.append((scheduler.sched_step_seq, blocks))
        else:
            self._manager.block_pool.free_blocks(reversed(blocks))

    def _note_end(self, life: Life) -> None:
        if life.lifecycle.over:
            self._ended.append(life)

    def _reap(self) -> None:
        for life in self._ended:
            if self._lives.get(life.engine_id) is life:
                del self._lives[life.engine_id]
            self._of.pop((life.rid, life.incarnation), None)
        self._ended.clear()


def _name(rid: str, incarnation: int) -> str:
    return rid if incarnation == 1 else f"{rid}#{incarnation}"
