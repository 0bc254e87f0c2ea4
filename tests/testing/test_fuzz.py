"""``lifecycle fuzz`` finds, shortens, writes down, and ends when it should."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner
from hypothesis.database import DirectoryBasedExampleDatabase

from lifecycle.cli import main
from lifecycle.testing import faulty, fuzz
from lifecycle.testing.careful import Careful, CarefulAtDecision
from lifecycle.testing.contract import Capabilities, ContractBroken, check_scheduler
from lifecycle.testing.regression import importable, plain, play, regression

FAULTY = "lifecycle.testing.faulty:FreesOnAbort"
CAREFUL = "lifecycle.testing.careful:Careful"


def lifecycle(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


def run_pytest(path, cwd):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )


MINE = """
from lifecycle.testing.careful import Careful


class Mine(Careful):
    def touched(self, attempt):
        return bool(attempt.steps)  # FAULT
"""


def test_a_finding_is_told_replayed_drawn_and_becomes_a_test(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    ran = lifecycle("fuzz", "mine:Mine", "--seed", 1, "--out", "found")
    assert ran.exit_code == 1, ran.output
    assert "no_free_in_flight is broken for request 'r1'" in ran.output
    assert "transfer_posted(c0)" in ran.output  # the timeline
    out = tmp_path / "found"
    assert {p.suffix for p in out.iterdir()} == {".jsonl", ".mmd", ".py"}

    replayed = lifecycle("replay", out / "no_free_in_flight.jsonl", "--json")
    assert replayed.exit_code == 0
    assert "r1" in json.loads(replayed.output)["requests"]
    drawn = (out / "no_free_in_flight.mmd").read_text(encoding="utf-8")
    assert drawn.startswith("sequenceDiagram\n    title mine#58;Mine\n")
    assert "no_free_in_flight is broken" in drawn

    test = out / "test_no_free_in_flight.py"
    failed = run_pytest(test, tmp_path)
    assert failed.returncode == 1, failed.stdout
    assert "ContractBroken_no_free_in_flight" in failed.stdout
    (tmp_path / "mine.py").write_text(MINE.replace("touched", "unused"), encoding="utf-8")
    mended = run_pytest(test, tmp_path)
    assert mended.returncode == 0, mended.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        faulty.FaultOutranksAbort,
        faulty.LateCompletionCrashes,
        faulty.QuarantineForgotten,
        faulty.TellsTheBetterReasonToo,
    ],
    ids=lambda cls: cls.__name__,
)
def test_a_regression_fails_on_the_faulty_and_passes_on_the_right_one(wrong):
    claimed = dict.fromkeys(wrong.needs, True)
    with pytest.raises(ContractBroken) as found:
        check_scheduler(wrong, seed=1, **claimed)
    broken, capabilities = found.value, Capabilities(**claimed)
    spec = f"lifecycle.testing.faulty:{wrong.__name__}"
    scope = {}
    exec(compile(regression(broken, spec, capabilities), "test", "exec"), scope)
    with pytest.raises(ContractBroken) as again:
        scope[f"test_{wrong.breaks}"]()
    assert again.value.violation == broken.violation
    assert again.value.trace == broken.trace
    right = CarefulAtDecision if capabilities.at_decision else Careful
    play(right, capabilities, plain(broken.script))


def test_words_of_a_script_are_what_the_scheduler_was_told():
    """The faulty one tells an error by identity, as a file's plain words are not."""
    script = [("submit", "r1", 1), ("submit", "r10", 1), ("trouble", "r1", "error"), ("turn",)]
    with pytest.raises(ContractBroken, match="fault_isolated"):
        play(faulty.OneFaultEndsAll, Capabilities(), script)
    play(Careful, Capabilities(), script)


def test_the_options_of_a_capability_reach_the_scheduler(tmp_path):
    spec = "lifecycle.testing.faulty:StaleAttemptFreesTheNew"
    assert faulty.StaleAttemptFreesTheNew.needs == ("preemption",)
    common = ("--seed", 1, "--profile", "ci", "--out", tmp_path / "out")
    assert lifecycle("fuzz", spec, "--preemption", *common).exit_code == 1
    text = (tmp_path / "out" / "test_attempt_scoped.py").read_text(encoding="utf-8")
    assert "Capabilities(preemption=True)" in text


def test_a_right_scheduler_comes_through_and_the_budget_is_kept(tmp_path):
    began = time.monotonic()
    ran = lifecycle("fuzz", CAREFUL, "--budget", 1, "--out", tmp_path / "out")
    assert ran.exit_code == 0, ran.output
    assert "nothing found in" in ran.output
    assert time.monotonic() - began < 30
    assert not (tmp_path / "out").exists()


def test_rounds_go_on_with_further_seeds_until_the_budget_is_spent():
    seen = []
    plan = fuzz.Plan(CAREFUL, Capabilities(), seed=3, examples=4, budget=2)
    outcome = fuzz.hunt(plan, seen.append)
    assert outcome.finding is None
    assert outcome.tally.rounds > 1
    assert outcome.tally.examples == sum(each.examples for each in seen) > 4
    assert outcome.tally.events > outcome.tally.examples


def test_the_same_seed_finds_the_same():
    plan = fuzz.Plan(FAULTY, Capabilities(), seed=11)
    first, second = fuzz.hunt(plan), fuzz.hunt(plan)
    assert first.finding == second.finding
    assert first.tally == second.tally


def test_several_processes_have_different_seeds_and_the_first_finding_ends_all(tmp_path):
    ran = lifecycle("fuzz", FAULTY, "--workers", 2, "--budget", 60, "--seed", 5, "--out", tmp_path)
    assert ran.exit_code == 1, ran.output
    assert (tmp_path / "test_no_free_in_flight.py").exists()
    plan = fuzz.Plan(CAREFUL, Capabilities(), seed=5, examples=20, coverage=True)
    outcome = fuzz.hunt_in_processes(plan, 2)
    assert outcome.finding is None
    assert outcome.tally.rounds == 2
    assert outcome.coverage.pairs["submit", "grammar_ready"]


ODD = """
import os, random

from lifecycle.testing.careful import Careful


class Moody(Careful):
    def decide(self, job, reason):
        if random.random() < 0.5:
            super().decide(job, reason)


class Kills(Careful):
    def submit(self, rid, chunks):
        os._exit(3)


class Exits(Careful):
    def submit(self, rid, chunks):
        raise SystemExit(4)


calls = [0]


def later(world):
    calls[0] += 1
    if calls[0] > 20:
        raise RuntimeError("no\\nmore")
    return Careful(world)


def breaks(world):
    raise OSError("no GPU")


number = 3
half = type("Half", (), {"__init__": lambda self, world: None, "step": lambda self: None})
without_preempt = type("NoPreempt", (), {
    "__init__": lambda self, world: None, "submit": len, "abort": len, "step": len,
})
"""


@pytest.fixture
def odd(tmp_path, monkeypatch):
    name = f"odd_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(ODD, encoding="utf-8")
    (tmp_path / "wrong.py").write_text("def (:", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("spec", "more", "said"),
    [
        ("nope", (), "'nope' is not PACKAGE:FACTORY"),
        ("a b:c", (), "is not PACKAGE:FACTORY"),
        ("no_such_module:X", (), "cannot import no_such_module: ModuleNotFoundError"),
        ("wrong:X", (), "cannot import wrong: SyntaxError"),
        ("ODD:Nope", (), "has no 'Nope'"),
        ("ODD:number", (), "is no factory, it is int"),
        ("ODD:breaks", (), "raised OSError: no GPU"),
        ("ODD:half", (), "it has no method submit, abort"),
        ("ODD:without_preempt", ("--preemption",), "it has no method preempt"),
        ("ODD:later", (), "cannot be tested: RuntimeError: no more"),
        ("ODD:Exits", (), "cannot be tested: it raised SystemExit: 4"),
        ("ODD:Kills", ("--workers", "2"), "a worker process ended without a word, with exit code 3"),
        (CAREFUL, ("--database", "redis://127.0.0.1:1/0"), "cannot use the database redis://127"),
        (CAREFUL, ("--database", "ftp://x"), "no database 'ftp://x'"),
        (CAREFUL, ("--coverage", "x.txt"), "--coverage writes .json or .md; got 'x.txt'"),
        (CAREFUL, ("--out", "wrong.py/x"), "cannot write into wrong.py/x"),
        (CAREFUL, ("--workers", "0"), "0 is not in the range"),
        (CAREFUL, ("--budget", "0"), "0.0 is not in the range"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_2(odd, spec, more, said):
    ran = lifecycle("fuzz", spec.replace("ODD", odd), *more)
    assert ran.exit_code == 2, ran.output
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr
    assert isinstance(ran.exception, SystemExit)


def test_a_scheduler_that_does_not_do_the_same_each_time_is_told_all_the_same(odd, tmp_path):
    ran = lifecycle("fuzz", f"{odd}:Moody", "--out", tmp_path / "out")
    assert ran.exit_code == 1, ran.output
    assert list((tmp_path / "out").glob("*.jsonl"))


def test_an_unknown_profile_in_the_environment_is_bad_input(monkeypatch):
    monkeypatch.setenv("LIFECYCLE_PROFILE", "weekly")
    ran = lifecycle("fuzz", CAREFUL)
    assert ran.exit_code == 2
    assert "LIFECYCLE_PROFILE='weekly' is no profile; the profiles are default, ci" in ran.stderr


def test_without_hypothesis_it_says_what_to_install():
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from lifecycle.cli import main\n"
        f"main(['fuzz', '{CAREFUL}'])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert 'pip install "request-lifecycle[testing]"' in ran.stderr
    assert "Traceback" not in ran.stderr


def test_only_names_that_python_can_import_are_taken():
    assert importable("a.b:c.d")
    for wrong in ("a", ":", "a:", "a:b:c", "a-b:c", "a:class", "a.:c", "a:b; import os"):
        assert not importable(wrong)


# Databases of findings.


def test_a_folder_keeps_findings_and_tries_them_first(tmp_path):
    where = tmp_path / "findings"
    plan = fuzz.Plan(FAULTY, Capabilities(), seed=1, database=str(where))
    first = fuzz.hunt(plan)
    assert first.finding is not None
    assert list(where.rglob("*"))
    second = fuzz.hunt(fuzz.Plan(FAULTY, Capabilities(), seed=2, database=str(where)))
    fresh = fuzz.hunt(fuzz.Plan(FAULTY, Capabilities(), seed=2))
    assert second.finding.violation.invariant == first.finding.violation.invariant
    assert second.tally.examples <= 3 < fresh.tally.examples  # what was kept, and once again

    other = fuzz.hunt(fuzz.Plan(CAREFUL, Capabilities(), seed=1, examples=20, database=str(where)))
    assert other.finding is None
    third = fuzz.hunt(fuzz.Plan(FAULTY, Capabilities(), seed=4, database=str(where)))
    assert third.tally.examples <= 3  # another scheduler's run does not take it away


@pytest.fixture
def redis_server(tmp_path):
    """A real server on loopback, ended with the test."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server here; Debian has it in its package redis-server")
    if importlib.util.find_spec("redis") is None:
        pytest.skip("no client for Redis here; the extra `redis` has it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly",
               "no", "--dir", str(tmp_path)]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        else:
            pytest.fail("redis-server did not start within 5 seconds")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(timeout=10)


def test_machines_share_findings_through_redis(redis_server, tmp_path):
    import redis

    found = lifecycle("fuzz", FAULTY, "--seed", 1, "--database", redis_server, "--out", tmp_path)
    assert found.exit_code == 1, found.output
    with redis.Redis.from_url(redis_server) as client:
        keys = client.keys("hypothesis-example:*")
        assert keys
        assert all(client.ttl(key) > 0 for key in keys)  # Hypothesis lets them expire
    plan = fuzz.Plan(FAULTY, Capabilities(), seed=99, database=redis_server)
    elsewhere = fuzz.hunt_in_processes(plan, 2)  # other processes, other seeds
    assert elsewhere.finding.violation.invariant == faulty.FreesOnAbort.breaks
    alone = fuzz.hunt(plan)
    assert alone.tally.examples <= 3
    with fuzz.open_database(redis_server) as database:
        assert type(database).__name__ == "RedisExampleDatabase"
    with fuzz.open_database(str(tmp_path)) as database:
        assert isinstance(database, DirectoryBasedExampleDatabase)
