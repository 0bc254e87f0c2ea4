"""The search behind ``lifecycle fuzz``: rounds of examples, in one process or several, until something is found.

:func:`hunt` plays the machine of :mod:`lifecycle.testing.machine` in this process; it tells after each example
how far it is, and may be stopped by a deadline. :func:`hunt_in_processes` starts several, each with a seed of its
own, and ends them all at the first finding. Hypothesis keeps what is found in a database if it is given one, and
tries that first; a database can be shared between machines.

A round tries as many examples as the profile says. With a budget, rounds follow one another with further seeds.
"""

from __future__ import annotations

import importlib
import multiprocessing
import queue
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing.synchronize import Event as Flag
from typing import Any

import attrs
from hypothesis import Phase, settings
from hypothesis import seed as with_seed
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase
from hypothesis.errors import HypothesisException
from hypothesis.stateful import run_state_machine_as_test

from .contract import DEFAULT_SETTINGS, stages
from .coverage import Coverage
from .machine import WorldMachine, machine
from .player import Action, Capabilities, ContractBroken, MakeScheduler, shortened, world_for
from .referee import Violation
from .regression import importable

SEEDS_APART = 1_000_003
"""Between the seeds of workers; rounds count up by one, so that no two try the same."""

_TELL_EVERY = 0.1  # seconds, of a worker


class CannotHunt(Exception):
    """What is to be tested cannot be tested. The message is one line for the user."""


class _Stop(BaseException):
    """The time is over. No Exception, so that Hypothesis does not take it for a finding."""


@attrs.frozen
class Plan:
    """What is to be tested, and how.

    Attributes:
        spec: ``package.module:factory``; the factory builds the scheduler on a world.
        capabilities: what the scheduler can do.
        seed: of the first round.
        examples: in a round.
        budget: seconds; further rounds follow until then. None: one round.
        database: ``redis://host:port/number`` or a folder, where findings are kept; None: nowhere.
        coverage: whether to note which cells are visited.
    """

    spec: str
    capabilities: Capabilities
    seed: int
    examples: int = DEFAULT_SETTINGS.max_examples
    budget: float | None = None
    database: str | None = None
    coverage: bool = False


@attrs.define
class Tally:
    """How far a hunt is."""

    examples: int = 0
    events: int = 0
    rounds: int = 0

    def add(self, other: Tally) -> None:
        """Count what was done elsewhere, too."""
        self.examples += other.examples
        self.events += other.events
        self.rounds += other.rounds


@attrs.frozen
class Finding:
    """What was found, as it travels between processes.

    Attributes:
        violation, trace, script: as of :class:`~lifecycle.testing.player.ContractBroken`.
        seed: of the round in which it was found.
        steady: whether it broke again when it was played again; if not, it was not shortened.
    """

    violation: Violation
    trace: list[dict[str, Any]]
    script: list[Action]
    seed: int
    steady: bool = True

    @property
    def broken(self) -> ContractBroken:
        """It again as the exception that it was."""
        return ContractBroken(self.violation, self.trace, self.script)


@attrs.frozen
class Outcome:
    """How a hunt ended."""

    finding: Finding | None
    tally: Tally
    coverage: Coverage | None = None


Tell = Callable[[Tally], None]
"""Told after each example what was done since it was last told."""


# What is tested.


@contextmanager
def _here_first() -> Iterator[None]:
    """Modules of the current folder can be imported."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")


def resolve(spec: str, capabilities: Capabilities) -> MakeScheduler:
    """The factory that `spec` names, tried once.

    Raises:
        CannotHunt: no such module, no such factory, one that raises, or what it makes is no scheduler.
    """
    if not importable(spec):
        msg = f"{spec!r} is not PACKAGE:FACTORY, such as my_package.scheduler:MyScheduler"
        raise CannotHunt(msg)
    module, _, path = spec.partition(":")
    with _here_first():
        try:
            found: Any = importlib.import_module(module)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a module may raise anything
            msg = f"cannot import {module}: {_said(error)}"
            raise CannotHunt(msg) from None
    for name in path.split("."):
        if not hasattr(found, name):
            msg = f"{module} has no {path!r}"
            raise CannotHunt(msg)
        found = getattr(found, name)
    if not callable(found):
        msg = (
            f"{spec} is no factory, it is {type(found).__name__}; a factory is called with a World"
        )
        raise CannotHunt(msg)
    _try(spec, found, capabilities)
    made: MakeScheduler = found
    return made


def _try(spec: str, factory: Callable[..., Any], capabilities: Capabilities) -> None:
    world = world_for(capabilities)
    try:
        scheduler = factory(world)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it raises is told
        msg = f"{spec}(world) raised {_said(error)}"
        raise CannotHunt(msg) from None
    wanted = ["submit", "abort", "step"]
    wanted += ["preempt"] * capabilities.preemption + [
        "drain_timeout"
    ] * capabilities.drain_deadline
    missing = [name for name in wanted if not callable(getattr(scheduler, name, None))]
    if missing:
        msg = (
            f"{spec}(world) made {type(scheduler).__name__!r}, which is no scheduler: "
            f"it has no method {', '.join(missing)}"
        )
        raise CannotHunt(msg)


def _said(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


@contextmanager
def open_database(where: str | None) -> Iterator[ExampleDatabase | None]:
    """Hypothesis' own database of findings: on a Redis server, or in a folder.

    Raises:
        CannotHunt: it cannot be reached, or the client for Redis is not installed.
    """
    if where is None:
        yield None
        return
    if "://" not in where:
        yield DirectoryBasedExampleDatabase(where)
        return
    if not where.startswith(("redis://", "rediss://", "unix://")):
        msg = f"no database {where!r}: give redis://HOST:PORT/NUMBER, or a folder"
        raise CannotHunt(msg)
    try:
        import redis
        from hypothesis.extra.redis import RedisExampleDatabase
    except ImportError:
        msg = 'a database on Redis needs its client; install it with: pip install "request-lifecycle[redis]"'
        raise CannotHunt(msg) from None
    try:
        client = redis.Redis.from_url(where, socket_connect_timeout=5)
        client.ping()
    except (redis.RedisError, ValueError) as error:
        msg = f"cannot use the database {where}: {_said(error)}"
        raise CannotHunt(msg) from None
    try:
        yield RedisExampleDatabase(client)
    except redis.RedisError as error:
        msg = f"the database {where} was lost: {_said(error)}"
        raise CannotHunt(msg) from None
    finally:
        client.close()


# The search.


def hunt(plan: Plan, tell: Tell = lambda _: None) -> Outcome:
    """Search in this process.

    Args:
        plan: what and how.
        tell: told after each example.

    Raises:
        CannotHunt: what is to be tested cannot be tested.
    """
    make_scheduler = resolve(plan.spec, plan.capabilities)
    deadline = None if plan.budget is None else time.monotonic() + plan.budget
    tally = Tally()

    def count(since: Tally) -> None:
        tally.add(since)
        tell(since)

    seen = Coverage() if plan.coverage else None
    finding = None
    with open_database(plan.database) as database, nullcontext() if seen is None else seen:
        try:
            while finding is None:
                finding = _round(plan, make_scheduler, tally, count, deadline, database)
                count(Tally(rounds=1))
                if deadline is None:
                    break
        except _Stop:
            pass
    return Outcome(finding, tally, seen)


def _round(
    plan: Plan,
    make_scheduler: MakeScheduler,
    tally: Tally,
    count: Tell,
    deadline: float | None,
    database: ExampleDatabase | None,
) -> Finding | None:
    seed = plan.seed + tally.rounds
    for requests, chunks, examples in stages(plan.examples):
        config = settings(
            DEFAULT_SETTINGS,
            max_examples=examples,
            database=database,
            phases=[Phase.reuse, Phase.generate] if database is not None else [Phase.generate],
        )
        plain = machine(make_scheduler, plan.capabilities, requests, chunks)
        watched = _watched(plain, f"{plan.spec}[{requests}x{chunks}]", count, deadline)
        try:
            try:
                run_state_machine_as_test(with_seed(seed)(watched), settings=config)
            except ContractBroken as broken:
                return _finding(shortened(broken, make_scheduler, plan.capabilities), seed)
        except HypothesisException as error:
            if (
                watched.stopped
            ):  # Hypothesis takes an example that was broken off for one that changed
                raise _Stop from None
            if watched.found is None:
                why = error if watched.raised is None else watched.raised
                msg = f"{plan.spec} cannot be tested: {_said(why)}"
                raise CannotHunt(msg) from None
            # What was found did not happen again: the scheduler does not do the same each time.
            return attrs.evolve(_finding(watched.found, seed), steady=False)
        except (Exception, SystemExit) as error:
            if _is_of_the_database(error):
                raise
            msg = f"{plan.spec} cannot be tested: it raised {_said(error)}"
            raise CannotHunt(msg) from None
    return None


def _is_of_the_database(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "redis"


def _finding(broken: ContractBroken, seed: int) -> Finding:
    return Finding(broken.violation, list(broken.trace), list(broken.script), seed)


class _Watched(WorldMachine):
    """A machine that counts, keeps what it found, and looks at the clock."""

    found: ContractBroken | None = None
    raised: Exception | None = None
    stopped = False
    count: Tell
    deadline: float | None

    def __init__(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            type(self).stopped = True
            raise _Stop
        try:
            super().__init__()
        except Exception as error:
            type(self).raised = error
            raise

    def do(self, *action: Any, turn: bool = True) -> None:
        """As before."""
        try:
            super().do(*action, turn=turn)
        except ContractBroken as broken:
            type(self).found = broken
            raise

    def teardown(self) -> None:
        """Count what was played."""
        try:
            super().teardown()
        finally:
            try:
                type(self).count(Tally(examples=1, events=len(self.world.trace)))
            except _Stop:
                type(self).stopped = True
                raise


def _watched(
    plain: type[WorldMachine], name: str, count: Tell, deadline: float | None
) -> type[_Watched]:
    # Hypothesis files findings under the name of the class: one name for each scheduler and stage.
    parts = {"count": staticmethod(count), "deadline": deadline, "found": None}
    return type(name, (_Watched, plain), parts)


# Several processes.


def hunt_in_processes(plan: Plan, workers: int, tell: Tell = lambda _: None) -> Outcome:
    """Search in several processes, each with a seed of its own; the first finding ends all.

    Raises:
        CannotHunt: what is to be tested cannot be tested, or a worker ended without a word.
    """
    resolve(plan.spec, plan.capabilities)  # told once, and not by each
    context = multiprocessing.get_context("spawn")  # no threads and locks of this process in them
    messages: multiprocessing.Queue[Any] = context.Queue()
    stop = context.Event()
    plans = [attrs.evolve(plan, seed=plan.seed + SEEDS_APART * n) for n in range(workers)]
    started = [
        context.Process(target=_work, args=(n, each, messages, stop), daemon=True)
        for n, each in enumerate(plans)
    ]
    for process in started:
        process.start()
    try:
        return _gathered(messages, started, stop, tell, coverage=plan.coverage)
    finally:
        stop.set()
        for process in started:
            process.join(timeout=5)
            if process.is_alive():
                process.terminate()
                process.join()


def _gathered(
    messages: multiprocessing.Queue[Any],
    started: list[Any],
    stop: Flag,
    tell: Tell,
    *,
    coverage: bool,
) -> Outcome:
    tally, finding, failed = Tally(), None, ""
    seen = Coverage() if coverage else None
    running = set(range(len(started)))
    while running:
        try:
            number, word, what = messages.get(timeout=0.5)
        except queue.Empty:
            gone = [n for n in running if not started[n].is_alive()]
            if gone and messages.empty():
                code = started[gone[0]].exitcode
                msg = f"a worker process ended without a word, with exit code {code}: the scheduler ended it"
                raise CannotHunt(msg) from None
            continue
        if word == "tally":
            tally.add(what)
            tell(what)
            continue
        running.discard(number)
        if word == "failed":
            failed = failed or what
            stop.set()
            continue
        found, visited = what
        if found is not None and finding is None:
            finding = found
            stop.set()
        if seen is not None and visited is not None:
            seen.merge(visited)
    if finding is None and failed:
        raise CannotHunt(failed)
    return Outcome(finding, tally, seen)


def _work(number: int, plan: Plan, messages: multiprocessing.Queue[Any], stop: Flag) -> None:
    """What a worker process does."""
    since, told = Tally(), time.monotonic()

    def tell(more: Tally) -> None:
        nonlocal since, told
        since.add(more)
        now = time.monotonic()
        if now - told > _TELL_EVERY:
            messages.put((number, "tally", since))
            since, told = Tally(), now
            if stop.is_set():
                raise _Stop

    try:
        outcome = hunt(plan, tell)
    except CannotHunt as error:
        messages.put((number, "failed", str(error)))
        return
    messages.put((number, "tally", since))
    visited = None if outcome.coverage is None else outcome.coverage.dump()
    messages.put((number, "ended", (outcome.finding, visited)))
