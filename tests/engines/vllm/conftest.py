"""The real scheduler of vLLM on a CPU. Without vLLM nothing here is collected: `make test-engines-vllm` has it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

collect_ignore = ["own_tests_plugin.py"]  # it is imported in a run of vLLM's tests, and only there
if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["*.py"]  # doctests are looked for in every module

# Read by vLLM when it is imported: no device, and no model hub to ask.
os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.engines.vllm.engine import write_model

    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def engine(model: Path) -> Callable[..., Any]:
    """Makes an :class:`~tests.engines.vllm.engine.Engine`; what it takes is passed on."""
    from tests.engines.vllm.engine import Engine

    return lambda **options: Engine(model, **options)
