"""Effects carried out through ports that fail: nothing is lost, nothing done twice, nobody else is touched."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from lifecycle import (
    WIRE,
    Driver,
    FinishReason,
    Hold,
    IllegalEvent,
    KVPool,
    LifecycleError,
    Policy,
    PolicyError,
    PrefixCache,
    Reporter,
    RequestTable,
    TransferEngine,
    UnknownRequest,
)


class Broken(RuntimeError):
    """What a port of these tests raises."""


class Ports:
    """All four ports, with a ledger; `plan` says which call raises, and whether before or after its work."""

    def __init__(self):
        self.done = []
        self.plan = {}
        self.out = set()

    def _call(self, what, hold, work=lambda: None):
        when = self.plan.pop(what, None)
        if isinstance(when, BaseException):
            raise when
        if when == "before":
            raise Broken(what)
        self.done.append((what, hold.rid, getattr(hold, "attempt", None)))
        work()
        if when == "after":
            raise Broken(what)

    def _key(self, hold):
        return (hold.rid, hold.incarnation, hold.attempt)

    def admit(self, request):
        self.out.add((request.rid, request.incarnation, request.attempt))

    def release(self, hold):
        assert self._key(hold) in self.out, f"a second release of {hold}"
        self._call("release", hold, lambda: self.out.discard(self._key(hold)))

    def quarantine(self, hold):
        assert self._key(hold) in self.out, f"a quarantine of {hold}, which is not out"
        self._call("quarantine", hold, lambda: self.out.discard(self._key(hold)))

    def holds(self, hold):
        return self._key(hold) in self.out

    def cancel(self, hold):
        self._call("cancel", hold)

    def publish(self, hold):
        self._call("publish", hold)

    def report(self, outcome):
        self._call("report", outcome)


def driven(policy=None, told=None, **table):
    ports = Ports()
    driver = Driver(
        RequestTable(policy or Policy(), **table),
        pool=ports,
        transfer=ports,
        reporter=ports,
        cache=ports,
        on_fault=None if told is None else told.append,
    )
    return driver, ports


def admit(driver, ports, rid="r", pages=("p",), **time):
    request = driver.table[rid] if rid in driver.table and not driver.table[rid].done else None
    request = request or driver.submit(rid, **time)
    driver.fire(rid, "admit", pages=pages, **time)
    ports.admit(request)
    return request


def verbs(ports):
    return [what for what, _, _ in ports.done]


def test_the_fakes_are_ports():
    for port in (KVPool, TransferEngine, Reporter, PrefixCache):
        assert isinstance(Ports(), port)


def test_effects_are_carried_out_in_order_and_pages_come_back_as_they_were_given():
    driver, ports = driven()
    admit(driver, ports, pages="lease")
    assert driver.holds == (Hold("r", 1, 0, "lease"),)
    driver.fire("r", "prefill_finished")
    driver.abort("r")
    assert verbs(ports) == ["cancel"]
    driver.fire("r", "transfer_drained")
    assert verbs(ports) == ["cancel", "release", "report"]
    assert driver.holds == ()


def test_only_what_ended_well_is_published():
    driver, ports = driven()
    admit(driver, ports)
    driver.fire("r", "complete", reason="stop")
    assert verbs(ports) == ["publish", "release", "report"]
    driver, ports = driven(Policy(publish_aborted="proven"))
    admit(driver, ports)
    driver.abort("r")
    assert verbs(ports) == ["cancel", "publish", "release", "report"]


def test_a_release_that_is_tried_again_publishes_nothing():
    """The pages of a preempted attempt could be kept; by the time of the retry the request is aborted."""
    driver, ports = driven()
    admit(driver, ports)
    ports.plan["release"] = "before"
    driver.fire("r", "preempt")
    driver.abort("r")
    assert verbs(ports) == ["publish", "cancel", "report"]
    assert driver.retry() == ()
    assert verbs(ports) == ["publish", "cancel", "report", "release"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", ["cancel", "release", "report", "publish"])
def test_a_port_that_raises_costs_nothing_else(verb, when):
    told = []
    driver, ports = driven(Policy(publish_aborted="proven"), told)
    admit(driver, ports)
    admit(driver, ports, "other")
    ports.plan[verb] = when
    driver.abort("r")
    assert driver.table["r"].done
    assert not driver.table["other"].done
    rest = [each for each in ("cancel", "publish", "release", "report") if each != verb]
    assert [each for each in verbs(ports) if each != verb] == rest
    assert len(told) == 1
    assert f"failed: Broken: {verb}" in str(told[0])
    if verb == "publish":
        assert (
            driver.faults == ()
        )  # a cache that fails keeps nothing; there is nothing to try again
        return
    assert len(driver.faults) == 1
    assert driver.retry() == ()
    assert ports.out == {("other", 1, 0)}
    assert Counter(verbs(ports))["release"] == 1
    assert driver.retry() == ()
    assert len(told) == 1
    assert driver.holds == (Hold("other", 1, 0, ("p",)),)


def test_a_port_that_raises_again_is_owed_again():
    driver, ports = driven()
    admit(driver, ports)
    ports.plan["release"] = "before"
    driver.abort("r")
    ports.plan["release"] = "before"
    (fault,) = driver.retry()
    assert (fault.effect.kind, fault.hold.rid) == ("release_kv", "r")
    assert driver.retry() == ()
    assert verbs(ports) == ["cancel", "report", "release"]


def test_what_stops_the_process_passes_through_and_nothing_is_lost():
    driver, ports = driven()
    admit(driver, ports)
    ports.plan["release"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        driver.abort("r")
    assert [fault.effect.kind for fault in driver.faults] == ["release_kv", "report"]
    driver.retry()
    assert verbs(ports) == ["cancel", "release", "report"]


def test_pages_that_nobody_takes_are_the_callers():
    driver, ports = driven()
    with pytest.raises(UnknownRequest, match="its pages are still yours"):
        driver.fire("ghost", "admit", pages="lease")
    admit(driver, ports)
    with pytest.raises(IllegalEvent):
        driver.fire("r", "admit", pages="other lease")
    assert driver.holds == (Hold("r", 1, 0, ("p",)),)


def test_each_attempt_gives_back_its_own_pages():
    driver, ports = driven()
    admit(driver, ports, pages="first")
    driver.fire("r", "transfer_posted", op="a")
    driver.fire("r", "preempt")
    admit(driver, ports, pages="second")
    assert [hold.pages for hold in driver.holds] == ["first", "second"]
    driver.fire("r", "transfer_succeeded", op="a")
    assert [hold.pages for hold in driver.holds] == ["second"]


def test_the_inbox_deadlines_and_mass_aborts_are_carried_out():
    driver, ports = driven(deadlines={"draining": 1.0})
    for rid in ("a", "b", "c"):
        admit(driver, ports, rid, now=0.0)
        driver.fire(rid, "prefill_finished", now=0.0)
    driver.inbox.abort("a")
    assert [todo.request.rid for todo in driver.drain_inbox(0.0)] == ["a"]
    assert [todo.request.rid for todo in driver.abort_prefix("b", now=0.0)] == ["b"]
    assert [todo.request.rid for todo in driver.abort_all(now=0.0)] == ["c"]
    assert len(driver.expire(1.0)) == 3
    assert Counter(verbs(ports)) == {"cancel": 3, "quarantine": 3, "report": 3}


def test_pages_of_a_restored_table_can_be_taken_charge_of():
    driver, ports = driven()
    driver.table.submit("r")
    driver.table.fire("r", "admit")
    driver.adopt(Hold("r", 1, 0, "lease"))
    ports.admit(driver.table["r"])
    driver.abort("r")
    assert verbs(ports) == ["cancel", "release", "report"]


def test_a_wire_mapping_that_leaves_a_reason_out_is_refused_at_once():
    short = {reason: wire for reason, wire in WIRE.items() if reason is not FinishReason.STOP}
    with pytest.raises(PolicyError, match="missing: stop"):
        Driver(RequestTable(), pool=Ports(), reporter=Ports(), wire=short)


class FaultyPorts(RuleBasedStateMachine):
    """Any events, any port raising at any time, before or after its work, and retries in between."""

    RIDS = ("a", "b")
    EVENTS = (
        "admit", "prefill_finished", "transfer_posted", "forward_launched", "forward_finished",
        "transfer_succeeded", "transfer_failed", "transfer_drained", "abort", "error", "preempt",
        "drain_timeout",
    )  # fmt: skip

    def __init__(self):
        super().__init__()
        self.driver, self.ports = driven(keep_done=None)

    @rule(rid=st.sampled_from(RIDS), event=st.sampled_from(EVENTS))
    def fire(self, rid, event):
        if rid not in self.driver.table:
            self.driver.submit(rid)
        try:
            request = self.driver.fire(rid, event)
        except LifecycleError:
            return
        if event == "admit":
            self.ports.admit(request)

    @rule(
        verb=st.sampled_from(["cancel", "release", "report", "publish", "quarantine"]),
        when=st.sampled_from(["before", "after"]),
    )
    def next_call_raises(self, verb, when):
        self.ports.plan[verb] = when

    @precondition(lambda self: self.driver.faults)
    @rule()
    def retry(self):
        self.driver.retry()

    def teardown(self):
        for _ in range(3):
            self.ports.plan.clear()
            for rid in list(self.RIDS):
                if rid in self.driver.table and not self.driver.table[rid].over:
                    self.driver.abort(rid)
                    for request in [self.driver.table[rid]]:
                        while request.steps or any(old.steps for old in request.draining):
                            self.driver.fire(rid, "forward_finished")
                        while request.ops or any(old.ops for old in request.draining):
                            self.driver.fire(rid, "transfer_drained")
            self.driver.retry()
        assert self.ports.out == set(), "drain_to_zero"
        assert self.driver.holds == ()
        assert self.driver.faults == ()
        assert len(self.driver.table) == 0
        done = Counter(what for what in self.ports.done if what[0] in ("release", "quarantine"))
        assert all(times == 1 for times in done.values()), "single_release"


TestFaultyPorts = FaultyPorts.TestCase
