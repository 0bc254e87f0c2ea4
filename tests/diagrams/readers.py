"""Programs that read what is drawn. Each is here or the tests that need it are skipped, and say so."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NODE_MODULES = (
    Path(os.environ.get("LIFECYCLE_READERS", ROOT / "build" / "readers")) / "node_modules"
)


def needs(program):
    reason = f"{program} is not here; a package of the system brings it"
    return pytest.mark.skipif(shutil.which(program) is None, reason=reason)


def needs_module(name):
    found = importlib.util.find_spec(name) is not None
    return pytest.mark.skipif(not found, reason=f"{name} is not here: pip install {name}")


def needs_npm(name):
    there = shutil.which("node") is not None and (NODE_MODULES / name).is_dir()
    reason = f"not here: npm install --prefix build/readers {name}"
    return pytest.mark.skipif(not there, reason=reason)


def node(script, given):
    """The JSON that a script for node prints, with `given` as JSON on its standard input."""
    ran = subprocess.run(
        ["node", "--input-type=module", "-e", script],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        cwd=NODE_MODULES.parent if NODE_MODULES.is_dir() else None,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)


@cache
def graphviz(text, *options):
    ran = subprocess.run(["dot", *options], input=text.encode(), capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    assert ran.stderr == b"", ran.stderr.decode()
    return ran.stdout
