"""The real prefill scheduler of SGLang on a CPU. Without SGLang nothing here is collected:
`make test-engines-sglang` has it.
"""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("sglang") is None:
    collect_ignore_glob = ["*.py"]  # doctests are looked for in every module


@pytest.fixture
def engine():
    """An :class:`~tests.engines.sglang.engine.Engine` that nothing governs."""
    from tests.engines.sglang.engine import Engine, published

    with published():
        yield Engine()
