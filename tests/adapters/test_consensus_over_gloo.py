"""adapters.torch_distributed: rounds of real gloo groups, one thread a rank. (Processes: tests/engines.)"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.torch_distributed import Consensus, RanksLost, Round, lose, settle
from lifecycle import Driver, FinishReason, LifecycleError, Policy, RequestTable, State
from lifecycle.consensus import Verdict, agree, drained, verdict

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)

F, P, S = Verdict


class Ranks:
    """Some ranks in this process, each a thread with a gloo group of its own; what they do, they do together."""

    def __init__(self, size, timeout=20.0, **options):
        self.store = dist.HashStore()
        self.members = self.together(
            lambda rank: Consensus(
                dist.ProcessGroupGloo(
                    dist.PrefixStore("gloo", self.store), rank, size, timedelta(seconds=timeout)
                ),
                **options,
            ),
            range(size),
        )

    @staticmethod
    def together(do, over):
        """``do(item)`` for each, in threads of their own; their results in order. A fault is a result too."""
        results = {}

        def run(number, item):
            try:
                results[number] = do(item)
            except LifecycleError as error:
                results[number] = error

        threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(over)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        return [results[number] for number in range(len(threads))]

    def round(self, *polls):
        """A round; `polls` has for each rank what it says: ``{rid: (verdict, drained)}``."""

        def one(pair):
            member, polled = pair
            said = [verdict for verdict, _ in polled.values()]
            return member.round(list(polled), said, [ended for _, ended in polled.values()])

        return self.together(one, zip(self.members, polls, strict=True))


@pytest.fixture(scope="module")
def two():
    return Ranks(2)


@pytest.fixture(scope="module")
def three():
    return Ranks(3)


def test_where_ranks_agree_a_round_is_one_exchange(two):
    before = [member.exchanges for member in two.members]
    rounds = two.round(
        {"a": (S, True), "b": (S, True), "c": (P, False), "d": (F, True), "e": (F, False)},
        {"a": (S, True), "b": (P, False), "c": (P, False), "d": (P, True), "e": (S, True)},
    )
    assert rounds[0] == rounds[1]
    assert rounds[0] == Round(
        ("a", "b", "c", "d", "e"), (S, P, P, F, F), (True, False, False, True, False), {}
    )
    assert [member.exchanges for member in two.members] == [count + 1 for count in before]


def test_ids_that_some_rank_lacks_are_named_and_the_rest_is_decided(two):
    rounds = two.round(
        {"a": (S, True), "only0": (S, True), "b": (F, False)},
        {"b": (S, True), "a": (S, True), "only1": (F, True)},
    )
    assert rounds[0] == rounds[1]
    assert rounds[0] == Round(("a", "b"), (S, F), (True, False), {"only0": (1,), "only1": (0,)})


def test_nothing_in_flight(two):
    assert two.round({}, {}) == [Round((), (), (), {})] * 2
    assert two.round({"a": (S, True)}, {}) == [Round((), (), (), {"a": (1,)})] * 2


POLLS = st.dictionaries(
    st.sampled_from(["r1", "r10", "r1\x00", "", "é", "\ud800", "x" * 300]),
    st.tuples(st.sampled_from(list(Verdict)), st.booleans()),
)


@settings(max_examples=60)
@given(st.tuples(POLLS, POLLS, POLLS), st.booleans())
def test_every_rank_gets_what_the_rules_of_the_core_say(three, polls, alike):
    if alike:  # random queues hardly ever are
        polls = tuple({rid: poll.get(rid, (P, False)) for rid in polls[0]} for poll in polls)
    rounds = three.round(*polls)
    assert rounds[0] == rounds[1] == rounds[2]
    ranks = range(3)
    expected = agree({rank: list(polls[rank]) for rank in ranks}, ranks)
    said = {rank: [polls[rank][rid][0] for rid in expected.rids] for rank in ranks}
    ended = {
        rank: [polls[rank][rid][0] is S or polls[rank][rid][1] for rid in expected.rids]
        for rank in ranks
    }
    assert rounds[0] == Round(
        expected.rids, verdict(said, ranks), drained(ended, ranks), expected.missing
    )


def test_the_room_grows_once_and_shrinks_slowly_alike_on_every_rank(two):
    many = {f"r{number}": (P, False) for number in range(1000)}
    few = {"a": (S, True)}
    counts = []
    for polls in (few, many, many, few, many, few, few, few, few, many):
        before = two.members[0].exchanges
        rounds = two.round(polls, polls)
        assert rounds[0] == rounds[1]
        assert rounds[0].rids == tuple(polls)
        counts.append(two.members[0].exchanges - before)
    assert counts == [1, 2, 1, 1, 2, 1, 1, 1, 1, 2]
    # One rank has many and the other few: the lists are exchanged, and nothing of unequal length is reduced.
    (first, second) = two.round(many, {**few, "r7": (S, True)})
    assert first == second
    assert first.rids == ("r7",)
    assert first.verdicts == (P,)
    assert len(first.missing) == 1000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ((["a"], [S], []), "1 requests, 1 verdicts, 0 drains"),
        ((["a", "a"], [S, S], [True, True]), "'a' stands twice"),
        ((["a", "b"], [S, 3], [True, True]), r"on request 'b' is one of 0 \(FAILED\).*not 3"),
        ((["a"], [-1], [True]), "a verdict is one of"),
        ((["a"], ["succeeded"], [True]), "a verdict is one of"),
        (([7], [S], [True]), "a rid is a text, not 7"),
    ],
)
def test_what_cannot_be_said_is_refused_and_not_sent(two, call, message):
    before = two.members[0].exchanges
    with pytest.raises(LifecycleError, match=message):
        two.members[0].round(*call)
    assert two.members[0].exchanges == before
    assert two.round({"a": (S, True)}, {"a": (S, True)})[1].verdicts == (S,)


def test_a_rank_that_is_late_is_waited_for(two):
    late = threading.Event()

    def one(rank):
        if rank == 1:
            late.wait(0.3)
        return two.members[rank].round(["a"], [S], [True])

    assert two.together(one, range(2))[0].verdicts == (S,)


class Quiet:
    """Ports that note what becomes of pages, and whom they are told of."""

    def __init__(self):
        self.told = []

    def release(self, hold):
        self.told.append(f"release {hold.rid}")

    def quarantine(self, hold):
        self.told.append(f"quarantine {hold.rid}")

    def holds(self, hold):
        return True

    def cancel(self, hold):
        self.told.append(f"cancel {hold.rid}")

    def report(self, outcome):
        self.told.append(f"report {outcome.rid} {outcome.reason}")


def driver(*rids, policy=None, deadlines=None):
    ports = Quiet()
    made = Driver(
        RequestTable(policy or Policy(), deadlines=deadlines),
        pool=ports,
        transfer=ports,
        reporter=ports,
    )
    for rid in rids:
        made.submit(rid, now=0.0)
        made.fire(rid, "admit", pages=1, now=0.0)
        made.fire(rid, "prefill_finished", now=0.0)
    return made, ports


def test_a_rank_that_never_comes_is_named_and_its_requests_end_in_quarantine():
    ranks = Ranks(3, timeout=0.5, store=(shared := dist.HashStore()), patience=3.0)
    ranks.round(*[{"a": (P, False)}] * 3)
    del shared
    errors = ranks.together(
        lambda rank: ranks.members[rank].round(["a"], [S], [True]) if rank != 1 else None, range(3)
    )
    for rank in (0, 2):
        assert isinstance(errors[rank], RanksLost)
        assert errors[rank].ranks == (1,)
        assert "rank 1 did not answer" in str(errors[rank])
        with pytest.raises(RanksLost, match="rank 1 did not answer"):
            ranks.members[rank].round(["a"], [S], [True])
    made, ports = driver("a", deadlines={"draining": 5.0})
    lose(made, ["a"], now=1.0)
    assert made.table["a"].state == State.ABORTED
    made.expire(7.0)
    assert ports.told == ["cancel a", "quarantine a", "report a peer_lost"]


def test_without_a_store_nobody_is_named():
    ranks = Ranks(2, timeout=0.3)
    (error,) = ranks.together(lambda member: member.round([], [], []), ranks.members[:1])
    assert isinstance(error, RanksLost)
    assert error.ranks == ()
    assert "give Consensus a store" in str(error)


def test_a_round_is_fired_at_the_requests():
    made, ports = driver("ok", "bad", "waits", "gone", "elsewhere")
    made.abort("gone")
    decided = Round(
        ("ok", "bad", "waits", "gone"),
        (S, F, P, F),
        (True, False, False, True),
        {"elsewhere": (1,)},
    )
    assert settle(made, decided) == ()
    table = made.table
    assert table["ok"].reason is FinishReason.LENGTH
    assert (table["bad"].state, table["bad"].claims) == (State.ABORTED, ("op:kv", "request"))
    assert table["waits"].state == table["elsewhere"].state == State.TRANSFERRING
    assert (table["gone"].state, table["gone"].reason) == (State.DONE, FinishReason.CLIENT_ABORT)
    events = table["bad"].journal
    assert settle(made, attrs.evolve(decided, drained=(True, True, False, True))) == ()
    assert table["bad"].journal[len(events) :] == (
        "transfer_drained",
    )  # the verdict is not fired again
    assert table["bad"].reason is FinishReason.TRANSFER_FAILED
    assert ports.told.count("release bad") == 1


def test_one_request_that_cannot_take_its_event_keeps_it_from_nobody():
    made, _ = driver("over", "ok", policy=Policy(late="strict"))
    made.fire("over", "transfer_succeeded")
    errors = settle(made, Round(("over", "ok"), (S, S), (True, True), {}))
    assert [error.rid for error in errors] == ["over"]
    assert made.table["ok"].done


def test_the_page_in_the_docs_runs():
    page = (Path(__file__).parents[2] / "docs" / "torch_distributed.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    assert ran.stdout.startswith("Round(rids=('r1', 'r2'), verdicts=(<Verdict.SUCCEEDED")
