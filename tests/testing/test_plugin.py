"""The pytest plugin, in pytest runs of its own."""

from __future__ import annotations

import json

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture
def run(pytester, monkeypatch):
    """Run pytest in a process of its own, as a user of the installed library would."""
    monkeypatch.delenv("LIFECYCLE_PROFILE", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run(*arguments):
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)

    return run


POOLS = """
import pytest
import torch
from kvpool import FakeStream, KVLayout, PagePool

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=1, page_size=1, dtype=torch.float32)

def pool():
    return PagePool(LAYOUT, 4)

def test_returns_all(kv_audit):
    made = pool()
    made.release(made.alloc(2))

def test_leaks(kv_audit):
    pool().alloc(2, rid="forgotten")

def test_leaks_and_is_not_asked():
    pool().alloc(2)

@pytest.mark.kv_audit
def test_leaks_under_the_marker():
    made = pool()
    lease = made.alloc(1, rid="pending one")
    lease.open_op("kv")
    made.release(lease)

def test_quarantine_is_no_leak(kv_audit):
    made = pool()
    made.quarantine(made.alloc(1), reason="never proven")

SHARED = pool()

def test_a_pool_from_elsewhere_is_watched_if_given(kv_audit):
    assert kv_audit.watch(SHARED) is SHARED
    SHARED.alloc(1, rid="in the shared one")

def test_fails_by_itself(kv_audit):
    pool().alloc(2, rid="of no interest")
    raise ValueError

@pytest.fixture
def engine():
    made = pool()
    lease = made.alloc(1)
    yield
    made.release(lease)

def test_a_fixture_may_release_when_it_ends(engine, kv_audit):
    pass
"""


def test_a_test_that_leaks_pages_fails_and_says_whose(pytester, run):
    pytester.makepyfile(POOLS)
    ran = run("-v")
    ran.assert_outcomes(passed=7, failed=1, errors=3)
    text = ran.stdout.str()
    for name in (
        "test_leaks",
        "test_leaks_under_the_marker",
        "test_a_pool_from_elsewhere_is_watched_if_given",
    ):
        assert f"ERROR at teardown of {name} _" in text
    for rid in ("forgotten", "pending one", "in the shared one"):
        assert f"{rid} attempt 0" in text
    assert "of no interest" not in text.replace('rid="of no interest"', "")


def test_the_audit_works_under_xdist(pytester, run):
    pytester.makepyfile(POOLS)
    run("-n", "2").assert_outcomes(passed=7, failed=1, errors=3)


def test_without_torch_a_pool_that_is_given_is_watched(pytester, run):
    pytester.makeconftest("import sys\nsys.modules['torch'] = None")
    pytester.makepyfile("""
        class Audit:
            idle = False
            def __str__(self): return "3 held by nobody"

        class Pool:
            def audit(self): return Audit()

        def test_it(kv_audit):
            kv_audit.watch(Pool())
    """)
    ran = run()
    ran.assert_outcomes(passed=1, errors=1)
    ran.stdout.fnmatch_lines(["*3 held by nobody"])


def test_it_can_be_left_out(pytester, run):
    pytester.makepyfile("def test_it(kv_audit): pass")
    ran = run("-p", "no:lifecycle")
    ran.assert_outcomes(errors=1)
    ran.stdout.fnmatch_lines(["*fixture 'kv_audit' not found"])
    assert "lifecycle-coverage" not in run("-p", "no:lifecycle", "--help").stdout.str()
    assert "lifecycle-coverage" in run("--help").stdout.str()


def test_what_is_not_used_is_not_imported(pytester, run):
    pytester.makepyfile("""
        import sys

        def test_it():
            assert "lifecycle.testing.plugin" in sys.modules
            for name in ("torch", "hypothesis.settings", "lifecycle.testing.coverage", "kvpool", "rich"):
                assert name not in sys.modules
    """)
    run().assert_outcomes(passed=1)


PROFILE = """
from hypothesis import settings

def test_it():
    print("examples", settings().max_examples, settings().deadline, settings().derandomize)
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("default", "examples 100 None False", marks=pytest.mark.slow),
        ("ci", "examples 100 None True"),
        pytest.param("nightly", "examples 20000 None False", marks=pytest.mark.slow),
    ],
)
def test_the_environment_chooses_a_profile(pytester, run, monkeypatch, name, said):
    monkeypatch.delenv("CI", raising=False)  # where it is set Hypothesis has a profile of its own
    pytester.makepyfile(PROFILE)
    monkeypatch.setenv("LIFECYCLE_PROFILE", name)
    run("-s").stdout.fnmatch_lines([f"*{said}*"])
    monkeypatch.delenv("LIFECYCLE_PROFILE")
    run("-s", "--hypothesis-profile", f"lifecycle-{name}").stdout.fnmatch_lines([f"*{said}*"])
    assert (
        "examples 100 0:00:00.200000 False" in run("-s").stdout.str()
    )  # nothing chosen, nothing changed


def test_an_unknown_profile_is_a_usage_error(pytester, run, monkeypatch):
    pytester.makepyfile(PROFILE)
    monkeypatch.setenv("LIFECYCLE_PROFILE", "weekly")
    ran = run()
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines(
        ["*LIFECYCLE_PROFILE='weekly' is no profile; the profiles are default, ci, nightly"]
    )


CONTRACT = """
from hypothesis import settings
from lifecycle.testing.careful import Careful
from lifecycle.testing.contract import DEFAULT_SETTINGS, SchedulerContract

class TestMine(SchedulerContract):
    config = settings(DEFAULT_SETTINGS, max_examples=10)

    def make_scheduler(self, world):
        return Careful(world)

def test_other():
    pass
"""


def test_contracts_have_a_marker(pytester, run):
    pytester.makepyfile(CONTRACT)
    ran = run("--strict-markers", "-v", "-m", "lifecycle_contract")
    ran.assert_outcomes(passed=1, deselected=1)
    ran.stdout.fnmatch_lines(["*::TestMine::test_contract PASSED*"])


def test_a_contract_without_settings_follows_the_profile(monkeypatch):
    from lifecycle.testing import contract

    asked = []
    monkeypatch.setattr(
        contract, "run_state_machine_as_test", lambda _machine, settings: asked.append(settings)
    )
    for profile, examples in (("ci", 1_200), ("nightly", 20_000)):
        monkeypatch.setenv("LIFECYCLE_PROFILE", profile)
        asked.clear()
        contract.check_scheduler(None)
        assert sum(each.max_examples for each in asked) == examples
        assert all(each.derandomize == (profile == "ci") for each in asked)
    asked.clear()
    mine = contract.settings(contract.DEFAULT_SETTINGS, max_examples=50)
    contract.check_scheduler(None, config=mine)
    assert sum(each.max_examples for each in asked) == 50


EVENTS = """
import pytest
from lifecycle import RequestLifecycle

@pytest.mark.parametrize("n", range(4))
def test_it(n):
    request = RequestLifecycle("r")
    request.admit()
    request.abort()
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_coverage_is_written_and_summed_over_workers(pytester, run, workers):
    pytester.makepyfile(EVENTS)
    ran = run("-n", workers, "--lifecycle-coverage", "seen.json")
    ran.assert_outcomes(passed=4)
    ran.stdout.fnmatch_lines(
        ["*coverage of behaviour*", "prefill, default policy: 2 of 1836 cells*"]
    )
    seen = json.loads((pytester.path / "seen.json").read_text(encoding="utf-8"))
    (table,) = seen["tables"]
    assert table["cells"]["queued[none] x admit"] == 4
    assert table["visited"] + len(table["missing"]) == table["reachable"] == 1836
    assert seen["pairs"] == {"admit > abort": 4, "submit > admit": 4}


def test_too_little_coverage_fails_the_run(pytester, run):
    pytester.makepyfile(EVENTS)
    ran = run("--lifecycle-coverage-fail-under", "50")
    assert ran.ret == pytest.ExitCode.TESTS_FAILED
    ran.stdout.fnmatch_lines(["FAIL 0.11 % of what can be reached was visited, less than 50 %"])
    assert run("--lifecycle-coverage-fail-under", "0.1").ret == 0
    ran = run("--lifecycle-coverage", "seen.txt")
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
