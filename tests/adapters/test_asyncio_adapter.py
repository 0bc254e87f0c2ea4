"""adapters.asyncio: a request can be awaited; cancelling aborts it; no thread, and nothing polls."""

from __future__ import annotations

import asyncio
import queue
import re
import selectors
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from adapters.asyncio import AsyncTable
from lifecycle import FinishReason, LifecycleError, Policy, RequestTable, State, UnknownRequest


class Ports:
    """What a scheduler brings: it notes what it is told, in order."""

    def __init__(self):
        self.told = []

    def release(self, hold):
        self.told.append(("release", hold.rid))

    def quarantine(self, hold):
        self.told.append(("quarantine", hold.rid))

    def holds(self, hold):
        return ("release", hold.rid) not in self.told

    def cancel(self, hold):
        self.told.append(("cancel", hold.rid))

    def report(self, outcome):
        self.told.append(("report", outcome.rid))


def make(policy=None, *, threaded=False, ports=None, **table):
    ports = ports or Ports()
    requests = RequestTable(policy or Policy(), **table)
    made = AsyncTable(requests, pool=ports, transfer=ports, reporter=ports, threaded=threaded)
    return made, ports


def in_flight(table, rid="r1"):
    table.submit(rid)
    table.fire(rid, "admit", pages=4)
    table.fire(rid, "prefill_finished")


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def cancel(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_it_returns_what_the_client_is_told():
    async def main():
        table, ports = make()
        in_flight(table)
        task = asyncio.create_task(table.finished("r1"))
        await settle()
        assert not task.done()
        assert table.waiting == 1
        table.fire("r1", "transfer_succeeded")
        outcome = await task
        assert (outcome.rid, outcome.reason, outcome.status) == ("r1", FinishReason.LENGTH, 200)
        assert ports.told == [("release", "r1"), ("report", "r1")]
        assert table.waiting == 0
        assert await table.finished("r1") == outcome  # at once, now that it is over

    asyncio.run(main())


def test_a_cancelled_wait_aborts_and_the_pages_drain_all_the_same():
    async def main():
        table, ports = make()
        in_flight(table)
        task = asyncio.create_task(table.finished("r1"))
        await settle()
        await cancel(task)
        assert table.waiting == 0
        assert table.table["r1"].state == State.ABORTED
        assert ports.told == [("cancel", "r1")]  # the card may still read
        table.fire("r1", "transfer_failed")
        assert ports.told == [("cancel", "r1")]
        table.fire("r1", "transfer_drained")
        assert ports.told == [("cancel", "r1"), ("release", "r1"), ("report", "r1")]
        assert (await table.finished("r1")).reason is FinishReason.CLIENT_ABORT

    asyncio.run(main())


@pytest.mark.parametrize(
    "to", ["queued", "prefilling", "transferring", "grammar_failed", "aborted"]
)
def test_cancelling_aborts_in_every_state(to):
    async def main():
        table, _ = make()
        table.submit("r1")
        for event in (
            "admit",
            "prefill_finished",
            "transfer_failed" if to == "aborted" else "grammar_failed",
        ):
            if table.table["r1"].state == to:
                break
            table.fire("r1", event)
        assert table.table["r1"].state == to
        task = asyncio.create_task(table.finished("r1", source="server"))
        await settle()
        await cancel(task)
        expected = (
            FinishReason.GRAMMAR_ERROR if to == "grammar_failed" else FinishReason.SERVER_ABORT
        )
        assert table.table["r1"].reason is expected  # the first decision stays
        assert table.table["r1"].done == (to in ("queued", "prefilling"))

    asyncio.run(main())


def test_a_time_limit_of_asyncio_aborts_too():
    async def main():
        table, _ = make()
        table.submit("r1")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(table.finished("r1", source="timeout"), 0.01)
        assert table.table["r1"].reason is FinishReason.TIMEOUT

    asyncio.run(main())


def test_who_only_looks_on_aborts_nothing():
    async def main():
        table, _ = make()
        in_flight(table)
        client = asyncio.create_task(table.finished("r1"))
        watcher = asyncio.create_task(table.finished("r1", abort_on_cancel=False))
        await settle()
        assert table.waiting == 2
        await cancel(watcher)
        assert table.table["r1"].state == State.TRANSFERRING
        table.fire("r1", "transfer_succeeded")
        assert (await client).wire == "length"

    asyncio.run(main())


def test_a_cancel_that_comes_with_the_report_aborts_nothing_even_where_late_is_an_error():
    async def main():
        table, ports = make(Policy(late="strict"))
        in_flight(table)
        task = asyncio.create_task(table.finished("r1"))
        await settle()
        table.fire("r1", "transfer_succeeded")  # the future has its result; the task has not run
        await cancel(task)
        assert table.table["r1"].reason is FinishReason.LENGTH
        assert ports.told.count(("report", "r1")) == 1
        assert table.waiting == 0

    asyncio.run(main())


def test_a_cancel_reaches_the_life_that_was_awaited_and_not_the_next():
    async def main():
        table, _ = make(Policy(report="at_decision"))
        in_flight(table)
        first = asyncio.create_task(table.finished("r1"))
        await settle()
        table.abort("r1")  # reported at once, still draining
        table.submit("r1")
        assert (await first).incarnation == 1
        second = asyncio.create_task(table.finished("r1"))
        await settle()
        assert (await table.finished("r1", incarnation=1)).reason is FinishReason.CLIENT_ABORT
        assert table.table["r1"].state == State.QUEUED
        await cancel(second)
        assert table.table.life("r1", 2).reason is FinishReason.CLIENT_ABORT

    asyncio.run(main())


def test_a_cancel_that_is_taken_in_late_does_not_reach_the_next_life():
    async def main():
        table, _ = make(threaded=True)  # no thread here: the turns are taken by hand
        in_flight(table)
        wait = asyncio.create_task(table.finished("r1"))
        await settle()
        await cancel(wait)
        table.fire("r1", "transfer_succeeded")
        table.submit("r1")
        table.drain_inbox()
        assert table.table["r1"].state == State.QUEUED
        assert table.table.late["abort"] == 1

    asyncio.run(main())


def test_waiting_for_what_is_not_there_says_so():
    async def main():
        table, _ = make()
        with pytest.raises(UnknownRequest, match="'r1' is not in the table: submit it before"):
            await table.finished("r1")
        table.submit("r1")
        with pytest.raises(UnknownRequest, match=r"'r1' \(life 2\)"):
            await table.finished("r1", incarnation=2)
        assert table.waiting == 0

    asyncio.run(main())


def test_a_reporter_that_fails_keeps_nobody_waiting_and_is_tried_again():
    class Broken(Ports):
        def report(self, outcome):
            if "again" not in self.told:
                self.told.append("again")
                raise OSError(outcome.rid)
            super().report(outcome)

    async def main():
        table, ports = make(ports=Broken())
        in_flight(table)
        task = asyncio.create_task(table.finished("r1"))
        await settle()
        table.fire("r1", "transfer_succeeded")
        assert (await task).wire == "length"
        assert len(table.faults) == 1
        assert table.retry() == ()
        assert ports.told[-1] == ("report", "r1")

    asyncio.run(main())


class Counting(selectors.DefaultSelector):
    """A selector that counts how often the event loop goes round."""

    rounds = 0

    def select(self, timeout=None):
        self.rounds += 1
        return super().select(timeout)


def test_nothing_polls_and_no_thread_is_started():
    counter = Counting()
    loop = asyncio.SelectorEventLoop(counter)

    async def main():
        table, _ = make(deadlines={"transferring": 60.0})
        for number in range(100):
            in_flight(table, f"r{number}")
        tasks = [asyncio.create_task(table.finished(f"r{number}")) for number in range(100)]
        await settle()
        before, threads = counter.rounds, threading.enumerate()
        await asyncio.sleep(0.1)
        assert counter.rounds - before <= 2
        assert threading.enumerate() == threads
        for number in range(100):
            table.fire(f"r{number}", "transfer_succeeded")
        assert {outcome.wire for outcome in await asyncio.gather(*tasks)} == {"length"}

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_deadlines_are_kept_by_the_event_loop():
    async def main():
        table, ports = make(deadlines={"transferring": 30.0, "queued": 0.02, "draining": 0.02})
        in_flight(table, "long")
        table.submit("r1")  # its deadline comes before the one that is set already
        assert (await asyncio.wait_for(table.finished("r1"), 5)).reason is FinishReason.TIMEOUT
        table.abort("long")
        outcome = await asyncio.wait_for(table.finished("long"), 5)
        assert outcome.reason is FinishReason.CLIENT_ABORT
        assert ("quarantine", "long") in ports.told

    asyncio.run(main())


def test_aborting_all_ends_who_waits():
    async def main():
        table, _ = make()
        for rid in ("a1", "a2", "b1"):
            table.submit(rid)
        tasks = [asyncio.create_task(table.finished(rid)) for rid in ("a1", "a2", "b1")]
        await settle()
        table.abort_prefix("a")
        await settle()
        assert [task.done() for task in tasks] == [True, True, False]
        table.abort_all()
        assert (await tasks[2]).reason is FinishReason.SHUTDOWN

    asyncio.run(main())


class Scheduler(threading.Thread):
    """A scheduler in a thread: it submits what is handed over, and ends each request when it is told to."""

    def __init__(self, table):
        super().__init__(daemon=True)
        self.table, self.news, self.caught = table, queue.Queue(), []

    def run(self):
        while (item := self.news.get()) is not None:
            try:
                self.table.drain_inbox()
                if item[1] == "submit":
                    self.table.submit(item[0])
                elif item[1] != "look":
                    rid, event, *details = item
                    self.table.fire(rid, event, **dict(details))
            except LifecycleError as error:
                self.caught.append(error)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *raised):
        self.news.put(None)
        self.join(5)
        assert not self.is_alive()
        assert self.caught == []


def test_a_scheduler_thread_and_many_coroutines():
    """Handlers wait before and after the thread submitted, and cancel now and then: nobody hangs."""

    async def main():
        table, ports = make(threaded=True)
        with Scheduler(table) as scheduler:

            async def handler(number):
                rid = f"r{number}"
                scheduler.news.put((rid, "submit"))
                if number % 3 == 0:
                    await asyncio.sleep(0.001)
                scheduler.news.put((rid, "admit"))
                scheduler.news.put((rid, "complete", ("reason", "stop")))
                return await table.finished(rid)

            async def hangs_up(number):
                rid = f"gone{number}"
                wait = asyncio.create_task(table.finished(rid))
                await asyncio.sleep(0)
                await cancel(wait)  # before the thread knows of it
                scheduler.news.put((rid, "submit"))
                return await table.finished(rid)

            done = asyncio.gather(*map(handler, range(300)))
            gone = asyncio.gather(*map(hangs_up, range(30)))
            assert {o.wire for o in await asyncio.wait_for(done, 20)} == {"stop"}
            assert {o.reason for o in await asyncio.wait_for(gone, 20)} == {
                FinishReason.CLIENT_ABORT
            }
        assert table.waiting == 0
        assert sum(what == "report" for what, _ in ports.told) == 330

    asyncio.run(main())


def test_with_a_thread_a_cancel_waits_for_its_safe_point():
    async def main():
        table, ports = make(threaded=True)
        with Scheduler(table) as scheduler:
            for event in ("submit", "admit", "prefill_finished"):
                scheduler.news.put(("r1", event))
            task = asyncio.create_task(table.finished("r1"))
            await asyncio.sleep(0.05)
            await cancel(task)
            assert table.table["r1"].state == State.TRANSFERRING
            assert len(table.inbox) == 1
            scheduler.news.put(("r1", "look"))
            scheduler.news.put(("r1", "transfer_drained"))
            outcome = await asyncio.wait_for(table.finished("r1"), 5)
            assert outcome.reason is FinishReason.CLIENT_ABORT
        assert ports.told == [("cancel", "r1"), ("release", "r1"), ("report", "r1")]

    asyncio.run(main())


def test_an_event_loop_that_is_gone_does_not_hurt_the_scheduler():
    table, ports = make()
    loop = asyncio.new_event_loop()
    table.submit("r1")
    task = loop.create_task(table.finished("r1", abort_on_cancel=False))
    loop.run_until_complete(asyncio.sleep(0))
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert table.waiting == 1
    loop._ready.clear()
    loop.close()  # as a process does that stops in the middle
    table.abort("r1")
    assert table.faults == ()
    assert ports.told[-1] == ("report", "r1")
    assert not task.done()
    task._log_destroy_pending = False


def test_time_is_the_clocks_unless_it_is_given():
    now = [100.0]

    async def main():
        ports = Ports()
        table = AsyncTable(
            RequestTable(deadlines={"queued": 5.0}), pool=ports, reporter=None, clock=lambda: now[0]
        )
        table.submit("r1")
        assert table.table["r1"].since == 100.0
        table.submit("r2", now=104.0)
        assert table.table.next_deadline() == 105.0
        now[0] = 106.0
        table.expire(now[0])
        assert (await table.finished("r1")).reason is FinishReason.TIMEOUT
        assert table.table["r2"].state == State.QUEUED
        assert table.table.next_deadline() == 109.0

    started = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - started < 4  # no real seconds were waited for


def test_the_page_in_the_docs_runs_and_prints_what_it_says():
    page = (Path(__file__).parents[2] / "docs" / "asyncio.md").read_text(encoding="utf-8")
    code, printed = (
        re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)[0] for kind in ("python", "text")
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (ran.stderr, ran.stdout) == ("", printed)
