"""The harness as a stranger has it: from a wheel, in an environment of its own, outside of the source tree.

The scheduler under test does not import this library; fifteen lines of test do. What the library needs (attrs,
Hypothesis, pytest) is lent by this environment, without the library itself, so that no network is needed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LENT = (
    "attr", "attrs", "hypothesis", "_hypothesis_globals.py", "_hypothesis_pytestplugin.py", "sortedcontainers",
    "pytest", "_pytest", "py.py", "exceptiongroup", "tomli", "typing_extensions.py",
    "pluggy", "iniconfig", "packaging", "pygments",
)  # fmt: skip

SCHEDULER = '''
class Scheduler:
    """Of somebody else: it knows pools, senders and clients, and nothing of this library."""

    def __init__(self, engine):
        self.engine, self.jobs = engine, {}

    def submit(self, rid, chunks):
        self.jobs[rid] = {"state": "waiting", "pages": None, "step": None, "op": False, "reason": None}

    def abort(self, rid, source):
        reasons = {"client": "client_abort", "server": "server_abort"}
        self.decide(rid, reasons.get(source, source))

    def step(self):
        for told in self.engine.notices():
            job = self.jobs.get(told.rid)
            if job is None or job["state"] == "over":
                continue
            what = str(told.event)
            if what == "grammar_ready" and job["state"] == "waiting":
                job["state"] = "ready"
            elif what == "forward_finished" and job["step"] == told.step:
                job["step"] = None
                if job["state"] == "running":
                    job["state"], job["op"] = "sending", True
                    self.engine.send(told.rid, "kv", last=True)
            elif what == "transfer_succeeded" and job["op"]:
                job["op"] = False
                if job["state"] == "sending":
                    job["state"], job["reason"] = "ending", "length"
            elif what == "transfer_drained" and job["op"]:
                job["op"] = False
                self.decide(told.rid, "transfer_failed")
            elif what == "transfer_failed" and job["op"]:
                self.decide(told.rid, "transfer_failed")
            elif what in ("grammar_failed", "peer_lost", "error"):
                reasons = {"grammar_failed": "grammar_error", "error": "internal_error"}
                self.decide(told.rid, reasons.get(what, what))
            self.settle(told.rid)
        for rid, job in self.jobs.items():
            if job["state"] == "ready":
                job["pages"] = self.engine.alloc(rid, 1)
                if job["pages"]:
                    job["state"], job["step"] = "running", self.engine.launch(rid)

    def decide(self, rid, reason):
        job = self.jobs.get(rid)
        if job is None or job["state"] == "over":
            return
        if job["state"] != "ending":
            job["state"] = "ending"
            self.engine.cancel(rid)
        faults = ("transfer_failed", "peer_lost", "internal_error")
        if job["reason"] in (None, "length") or (job["reason"] in faults and reason not in faults):
            job["reason"] = reason
        self.settle(rid)

    def settle(self, rid):
        job = self.jobs[rid]
        if job["state"] == "ending" and self.quiet(job):
            job["state"] = "over"
            if job["pages"]:
                self.engine.free(rid, job["pages"])
            self.engine.report(rid, job["reason"])

    def quiet(self, job):
        return job["step"] is None and not job["op"]


class Hasty(Scheduler):
    """Does not wait for the sender."""

    def quiet(self, job):
        return job["step"] is None
'''

TEST = """
import engine
from lifecycle.testing.contract import Capabilities, SchedulerContract


class TestScheduler(SchedulerContract):
    capabilities = Capabilities(chunked_prefill=False)

    def make_scheduler(self, world):
        return engine.Scheduler(world)


class TestHasty(TestScheduler):
    def make_scheduler(self, world):
        return engine.Hasty(world)
"""


def run(*command, cwd, **environment):
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST", "LIFECYCLE"))
    }
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, cwd=cwd, timeout=100,
        env={**kept, "PYTHONDONTWRITEBYTECODE": "1", **environment},
    )  # fmt: skip


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """A folder with the environment `env` in it, into which the wheel is installed."""
    here = tmp_path_factory.mktemp("stranger")
    built = run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--wheel-dir", here / "wheel", ROOT, cwd=here, HATCH_BUILD_HOOKS_ENABLE="",
    )  # fmt: skip
    if built.returncode != 0 and "Could not find a version" in built.stderr:
        pytest.skip("the wheel cannot be built: its build system cannot be installed (no network?)")
    assert built.returncode == 0, built.stderr
    (wheel,) = (here / "wheel").glob("request_lifecycle-*.whl")
    venv.create(here / "env", with_pip=False, symlinks=True)
    python = next(
        p
        for p in (here / "env" / "bin" / "python", here / "env" / "Scripts" / "python.exe")
        if p.exists()
    )
    asked = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=here)
    site = Path(asked.stdout.strip())
    installed = run(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check",
        "--no-deps", wheel, cwd=here,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr
    lend(Path(sysconfig.get_path("purelib")), site)
    (here / "engine.py").write_text(SCHEDULER, encoding="utf-8")
    (here / "test_engine.py").write_text(TEST, encoding="utf-8")
    return here, python


def lend(ours: Path, theirs: Path) -> None:
    """Links to the packages that the library needs, and to what says that they are there."""
    for name in LENT:
        if (ours / name).exists():
            (theirs / name).symlink_to(ours / name)
    for said in ours.glob("*.dist-info"):
        if said.name.partition("-")[0].lower() in {"attrs", "hypothesis", "pytest", "pluggy"}:
            (theirs / said.name).symlink_to(said)


@pytest.mark.slow
def test_a_stranger_tests_a_scheduler_in_fifteen_lines(stranger):
    here, python = stranger
    assert len(TEST.strip().splitlines()) <= 15
    assert "lifecycle" not in SCHEDULER
    where = run(python, "-c", "import lifecycle; print(lifecycle.__file__)", cwd=here)
    assert str(here) in where.stdout, where.stderr  # the wheel's, not the source tree's
    ran = run(python, "-m", "pytest", "-v", "-p", "no:cacheprovider", "test_engine.py", cwd=here)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "TestScheduler::test_contract PASSED" in ran.stdout
    assert "TestHasty::test_contract FAILED" in ran.stdout
    assert "no_free_in_flight is broken for request 'r1'" in ran.stdout


@pytest.mark.slow
def test_the_plugin_comes_with_the_wheel_and_needs_no_torch(stranger):
    here, python = stranger
    ran = run(python, "-m", "pytest", "--markers", "-p", "no:cacheprovider", cwd=here)
    assert "@pytest.mark.lifecycle_contract" in ran.stdout, ran.stdout + ran.stderr
    without = run(
        python,
        "-c",
        "import lifecycle.testing.contract, sys; print('torch' in sys.modules)",
        cwd=here,
    )
    assert without.stdout.strip() == "False", without.stderr
