"""adapters.mooncake over the real engine, TCP on loopback, two processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")

from adapters.mooncake import TESTED, TransferRefused, Transfers  # noqa: E402
from lifecycle import Driver, FinishReason, RequestTable, State  # noqa: E402
from tests.engines.record import record  # noqa: E402

SIZE = 1 << 28


class Ports:
    def __init__(self):
        self.told = []

    def release(self, hold):
        self.told.append("release")

    def quarantine(self, hold):
        self.told.append("quarantine")

    def holds(self, hold):
        return True

    def report(self, outcome):
        self.told.append("report")


@pytest.fixture(scope="module")
def local():
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    memory = np.zeros(SIZE, dtype=np.uint8)
    assert engine.register_memory(memory.ctypes.data, SIZE) == 0
    return engine, memory


class Peer:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("peer.py"), str(SIZE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        port, address = self.read("peer")
        self.name, self.address = f"127.0.0.1:{port}", int(address)

    def read(self, word):
        for line in self.process.stdout:
            if line.startswith(word + " "):
                return line.split()[1:]
        raise AssertionError(self.process.wait(5))

    def count(self, value):
        self.process.stdin.write(f"{value}\n")
        self.process.stdin.flush()
        return int(self.read("count")[0])


@pytest.fixture
def peer():
    made = Peer()
    yield made
    made.process.kill()
    made.process.communicate(timeout=10)


@pytest.fixture
def flight(local):
    engine, memory = local
    memory[:] = 1
    transfers, ports = Transfers(engine), Ports()
    table = RequestTable(deadlines={"draining": 5.0})
    driver = Driver(table, pool=ports, transfer=transfers, reporter=ports)
    request = driver.submit("r1", now=0.0)
    driver.fire("r1", "admit", pages=1, now=0.0)
    driver.fire("r1", "prefill_finished", now=0.0)

    def post(peer, name=None):
        transfers.post(request, "kv", name or peer.name, memory.ctypes.data, peer.address, SIZE)

    def poll_for(seconds):
        until = time.monotonic() + seconds
        while transfers.running and time.monotonic() < until:
            assert transfers.poll(driver, now=1.0) == ()
            time.sleep(0.002)
        return not transfers.running

    return memory, driver, request, ports, post, poll_for


def test_success(peer, flight):
    _, _, request, ports, post, poll_for = flight
    post(peer)
    assert poll_for(30)
    assert (request.state, request.reason) == (State.DONE, FinishReason.LENGTH)
    assert ports.told == ["release", "report"]
    assert peer.count(1) == SIZE


def test_a_peer_that_is_killed_ends_in_quarantine(peer, flight):
    _, driver, request, ports, post, poll_for = flight
    post(peer)
    os.kill(peer.process.pid, signal.SIGSTOP)  # before it has everything
    os.kill(peer.process.pid, signal.SIGKILL)
    assert poll_for(30)
    assert (request.state, request.claims) == (State.ABORTED, ("op:kv", "request"))
    driver.expire(9.0)
    assert ports.told == ["quarantine", "report"]


def test_a_cancel_stops_nothing_and_the_pages_wait_for_the_end(peer, flight):
    memory, driver, request, ports, post, poll_for = flight
    post(peer)
    os.kill(peer.process.pid, signal.SIGSTOP)
    driver.abort("r1", now=1.0)
    assert ports.told == []
    assert not poll_for(1.0)
    memory[:] = 2  # what an engine alone does that frees at the abort: the next owner's bytes
    os.kill(peer.process.pid, signal.SIGCONT)
    assert poll_for(30)
    leaked = peer.count(2)
    assert leaked > 0
    assert (request.state, request.reason) == (State.DONE, FinishReason.CLIENT_ABORT)
    assert ports.told == ["release", "report"]
    record(
        engine="Mooncake",
        version=TESTED,
        failure="pages used again after an abort, while the peer is frozen",
        source="contract section 3",
        alone=f"{leaked} of {SIZE} bytes written after the abort reached the peer",
        governed="the pages stay claimed until the transfer has ended",
    )


def test_a_bad_address_is_refused_or_fails_and_frees_nothing(peer, flight):
    _, driver, request, ports, post, poll_for = flight
    try:
        post(peer, "127.0.0.1:1")
    except TransferRefused:
        driver.fire("r1", "transfer_failed", now=1.0)
    assert poll_for(30)
    assert request.claims == ("op:kv", "request")
    assert ports.told == []
