"""The pytest plugin. It is loaded wherever this library is installed; ``-p no:lifecycle`` leaves it out.

``LIFECYCLE_PROFILE=default|ci|nightly``
    takes a profile of :mod:`lifecycle.testing.profiles` for the run. Without it nothing is changed.

``kv_audit``
    a fixture. At the end of the test it looks into every page pool that the test made (``kvpool.PagePool``), or
    gave it (``kv_audit.watch(pool)``: anything with ``audit()``), and fails the test, as an error of its teardown,
    if a page is still held or pending, or the books do not balance. Quarantined pages are no leak: they wait for a
    proof. A test that failed by itself is not asked. It is the first fixture that is set up, so others may release
    what they hold when they end. The marker ``kv_audit`` does the same for a whole class or module.

``lifecycle_contract``
    a marker that every test of a scheduler contract or a stack contract has: ``-m "not lifecycle_contract"``.

``--lifecycle-coverage FILE``
    notes which cells of the table the run visited (:mod:`lifecycle.testing.coverage`), prints a summary, and
    writes it to FILE (``.json`` or ``.md``); with pytest-xdist, of all workers together. With
    ``--lifecycle-coverage-fail-under PERCENT`` too little fails the run.

Nothing is imported for what is not used: no Hypothesis, no torch.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from .coverage import Coverage

PROFILE = "LIFECYCLE_PROFILE"  # as in lifecycle.testing.profiles, which imports Hypothesis
CONTRACTS = (
    ("lifecycle.testing.contract", "SchedulerContract"),
    ("lifecycle.testing.stack", "StackContract"),
)
_CALL_FAILED = pytest.StashKey[bool]()
_COVERAGE = pytest.StashKey["Coverage"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("lifecycle", "request-lifecycle")
    group.addoption(
        "--lifecycle-coverage",
        metavar="FILE",
        help="Note which cells of the table are visited; write them to FILE (.json or .md).",
    )
    group.addoption(
        "--lifecycle-coverage-fail-under",
        metavar="PERCENT",
        type=float,
        help="Fail if less than so much of what can be reached was visited.",
    )


@pytest.hookimpl(tryfirst=True)  # before Hypothesis looks for the profile that its own option names
def pytest_configure(config: pytest.Config) -> None:
    """Markers, profile, coverage."""
    config.addinivalue_line(
        "markers", "kv_audit: fail if a page of a pool that the test makes is still held at its end"
    )
    config.addinivalue_line(
        "markers", "lifecycle_contract: a scheduler contract or a stack contract (set by itself)"
    )
    _take_profile(config)
    _begin_coverage(config)


def _take_profile(config: pytest.Config) -> None:
    own = config.getoption("--hypothesis-profile", None) or ""
    if not os.environ.get(PROFILE) and not own.startswith("lifecycle-"):
        return
    try:
        from . import profiles
    except ImportError:
        msg = f'{PROFILE} needs hypothesis: pip install "request-lifecycle[testing]"'
        raise pytest.UsageError(msg) from None
    profiles.register()
    if own:
        return  # Hypothesis loads what its own option names
    try:
        name = profiles.named()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if name is not None:
        profiles.load(name)


# Contracts and audits.


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the contracts; set up the audit where a marker asks for it, and before all else."""
    loaded = [
        getattr(sys.modules[module], name) for module, name in CONTRACTS if module in sys.modules
    ]
    for item in items:
        cls = getattr(item, "cls", None)
        if loaded and cls is not None and issubclass(cls, tuple(loaded)):
            item.add_marker("lifecycle_contract")
        names: list[str] | None = getattr(item, "fixturenames", None)
        if names is None:
            continue
        if "kv_audit" in names:
            names.remove("kv_audit")
        elif item.get_closest_marker("kv_audit") is None:
            continue
        names.insert(0, "kv_audit")


class Audited(Protocol):
    """What can be watched; ``kvpool.PagePool`` is one."""

    def audit(self) -> Any:
        """What an audit found: its ``ok`` says whether the books balance, its ``idle`` whether all is back."""


class KvAudit:
    """Watches page pools during a test."""

    def __init__(self) -> None:
        self.pools: list[Audited] = []

    def watch(self, pool: Any) -> Any:
        """Watch a pool that was not made in this test. Returns it."""
        if all(pool is not other for other in self.pools):
            self.pools.append(pool)
        return pool

    def leaks(self) -> list[str]:
        """What every pool that is not idle says."""
        found = []
        for pool in self.pools:
            reclaim = getattr(pool, "reclaim", None)
            if reclaim is not None:
                reclaim()  # see the events that are reached by now
            audit = pool.audit()
            if not audit.idle:
                found.append(str(audit))
        return found


@pytest.fixture
def kv_audit(request: pytest.FixtureRequest) -> Iterator[KvAudit]:
    """Fail the test if a page of a pool that it makes, or has watched, is still held at its end."""
    watching = KvAudit()
    with pytest.MonkeyPatch.context() as patch:
        _watch_new_pools(watching, patch)
        yield watching
    if not request.node.stash.get(_CALL_FAILED, False):
        leaks = watching.leaks()
        if leaks:
            text = "\n".join(leaks)
            pytest.fail(f"pages have leaked:\n{text}", pytrace=False)


def _watch_new_pools(watching: KvAudit, patch: pytest.MonkeyPatch) -> None:
    try:
        pool_class = importlib.import_module("kvpool.pool").PagePool
    except ImportError:  # no torch: there are only pools that are given
        return
    made = pool_class.__init__

    @functools.wraps(made)
    def init(pool: Any, *given: Any, **named: Any) -> None:
        made(pool, *given, **named)
        watching.watch(pool)

    patch.setattr(pool_class, "__init__", init)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether the test itself failed."""
    report = yield
    if call.when != "teardown" and not report.passed:
        item.stash[_CALL_FAILED] = True
    return report


# Coverage of behaviour.


def _begin_coverage(config: pytest.Config) -> None:
    wanted = config.getoption("--lifecycle-coverage")
    under = config.getoption("--lifecycle-coverage-fail-under")
    if wanted is None and under is None:
        return
    if wanted is not None and Path(wanted).suffix.lower() not in (".json", ".md"):
        msg = f"--lifecycle-coverage writes .json or .md; got {wanted!r}"
        raise pytest.UsageError(msg)
    from .coverage import CannotRecord, Coverage

    seen = Coverage()
    recording = ExitStack()
    try:
        recording.enter_context(seen)
    except CannotRecord as error:
        raise pytest.UsageError(str(error)) from None
    config.add_cleanup(recording.close)
    config.stash[_COVERAGE] = seen


@pytest.hookimpl(optionalhook=True)  # pytest-xdist has it
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended: add what it recorded."""
    seen = node.config.stash.get(_COVERAGE, None)
    dumped = getattr(node, "workeroutput", {}).get("lifecycle_coverage")
    if seen is not None and dumped is not None:
        seen.merge(json.loads(dumped))


@pytest.hookimpl(trylast=True)  # after pytest-xdist has gathered its workers
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what was visited; a worker hands it to the one who started it."""
    config = session.config
    seen = config.stash.get(_COVERAGE, None)
    if seen is None:
        return
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output["lifecycle_coverage"] = json.dumps(seen.dump())
        return
    wanted = config.getoption("--lifecycle-coverage")
    if wanted is not None:
        path = Path(wanted)
        as_json = path.suffix.lower() == ".json"
        text = json.dumps(seen.to_json(), indent=1) + "\n" if as_json else seen.markdown()
        path.write_text(text, encoding="utf-8")
    if _too_little(config, seen) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _too_little(config: pytest.Config, seen: Coverage) -> bool:
    under = config.getoption("--lifecycle-coverage-fail-under")
    return under is not None and seen.percent < under


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say what was visited."""
    seen = config.stash.get(_COVERAGE, None)
    if seen is None:
        return
    terminalreporter.section("coverage of behaviour")
    terminalreporter.write_line(seen.text())
    wanted = config.getoption("--lifecycle-coverage")
    if wanted is not None:
        terminalreporter.write_line(f"written to {wanted}")
    if _too_little(config, seen):
        under = config.getoption("--lifecycle-coverage-fail-under")
        terminalreporter.write_line(
            f"FAIL {seen.percent:.2f} % of what can be reached was visited, less than {under:g} %", red=True
        )  # fmt: skip
