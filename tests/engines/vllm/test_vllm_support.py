"""Which vLLM is governed: a warning for versions that were not tested, a refusal where methods are missing."""

from __future__ import annotations

import inspect
import re
import warnings
from pathlib import Path

import pytest
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.v1.core.sched.scheduler import Scheduler

import adapters.vllm
from adapters.vllm import UnsupportedEngine, govern, governed
from adapters.vllm import engine as support
from tests.engines.vllm.scripted import Scripted


def test_the_tested_version_is_governed_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        support.warn_if_untested()


def test_another_version_is_warned_of_with_the_tested_range(monkeypatch):
    monkeypatch.setattr(vllm, "__version__", "0.34.1")
    with pytest.warns(
        RuntimeWarning, match=r"tested with vLLM 0\.33\.0 to .*, and this is 0\.34\.1"
    ):
        support.warn_if_untested()


@pytest.mark.parametrize(
    ("kind", "methods"),
    [(Scheduler, support.SCHEDULER_METHODS), (KVConnectorBase_V1, support.CONNECTOR_METHODS)],
)
def test_what_is_stood_in_front_of_is_there(kind, methods):
    support.check(kind, methods)


@pytest.mark.parametrize("name", sorted(support.SCHEDULER_METHODS))
def test_a_scheduler_that_lacks_a_method_is_refused_and_left_alone(engine, monkeypatch, name):
    kind = type("Other", (Scheduler,), {})
    alone = engine()
    alone.scheduler.__class__ = kind
    connector = type(alone.connector)
    monkeypatch.setattr(kind, name, None)
    with pytest.raises(UnsupportedEngine, match=rf"no method {name}\(\)"):
        govern(alone.scheduler)
    assert type(alone.scheduler) is kind
    assert type(alone.connector) is connector


def test_a_method_with_other_parameters_is_refused():
    kind = type("Renamed", (Scripted,), {"request_finished": lambda self, request, blocks: None})
    with pytest.raises(UnsupportedEngine, match=r"request_finished\(\) has no parameter block_ids"):
        governed(kind)


def test_what_is_no_engine_is_refused(engine):
    with pytest.raises(UnsupportedEngine, match="neither a v1 Scheduler nor a KVConnectorBase_V1"):
        governed(dict)
    busy = engine()
    busy.add("r1")
    with pytest.raises(UnsupportedEngine, match="1 requests already"):
        govern(busy.scheduler)


def test_connectors_of_vllm_are_governed_by_name():
    kind = adapters.vllm.GovernedExampleConnector
    assert kind.__name__ == "GovernedExampleConnector"
    assert issubclass(kind, KVConnectorBase_V1)
    assert "kv_cache_config" in inspect.signature(kind).parameters
    assert adapters.vllm.GovernedExampleConnector is kind
    with pytest.raises(AttributeError, match="knows no connector 'Nonsense'"):
        _ = adapters.vllm.GovernedNonsense


def test_only_the_connector_is_governed(engine):
    """Loaded by name and module path, as a user does; the scheduler is vLLM's own."""
    alone = engine(connector="GovernedExampleConnector", module="adapters.vllm",
                   extra={"shared_storage_path": "unused"})  # fmt: skip
    assert type(alone.scheduler) is Scheduler
    alone.add("r1", answer=2)
    alone.step()
    alone.step(sent=["r1"], received=["nobody"])
    assert alone.told == [("r1", "length")]
    assert alone.free == alone.total
    assert alone.connector.governor.absorbed == {"finished_sending": 1, "finished_recving": 1}


def test_the_page_of_the_docs_runs(engine):
    page = Path(__file__).parents[3].joinpath("docs/vllm.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    told = []
    names = {"scheduler": engine().scheduler, "tell_the_peer": told.append}
    exec(code, names)
    assert names["scheduler"].governor is names["governor"]
    names["governor"].on_cancel("r1")
    assert told == ["r1"]
    for command in re.findall(r"adapters\.vllm\.(Governed\w+)", page):
        assert issubclass(getattr(adapters.vllm, command), Scheduler)
