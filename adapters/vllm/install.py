"""Puts the governed classes together, and puts a scheduler that exists under them."""

from __future__ import annotations

from typing import Any

from . import connector as connectors
from . import engine
from . import scheduler as schedulers
from .engine import UnsupportedEngine
from .governor import Governor
from .observer import Observer

_made: dict[type, type] = {}


def governed(kind: type) -> type:
    """A governed subclass of a connector or scheduler class of vLLM.

    Its name is ``Governed`` and the name of `kind`. A class that is governed already is returned as it is.

    Raises:
        UnsupportedEngine: it is neither, or lacks what the adapter stands in front of.
    """
    if kind in _made.values():
        return kind
    if kind in _made:
        return _made[kind]
    engine.warn_if_untested()
    base = engine.module(engine.CONNECTOR)
    if issubclass(kind, base.KVConnectorBase_V1):
        engine.check(kind, engine.CONNECTOR_METHODS)
        made = connectors.governing(kind, hybrid=issubclass(kind, base.SupportsHMA))
    elif issubclass(kind, engine.module(engine.SCHEDULER).Scheduler):
        engine.check(kind, engine.SCHEDULER_METHODS)
        made = schedulers.governing(kind)
    else:
        msg = f"{kind.__module__}.{kind.__qualname__} is neither a v1 Scheduler nor a KVConnectorBase_V1 of vLLM"
        raise UnsupportedEngine(msg)
    made.__name__ = made.__qualname__ = f"Governed{kind.__name__}"
    _made[kind] = made
    return made


def govern(scheduler: Any, governor: Governor | None = None) -> Governor:
    """Put a scheduler of vLLM, and its KV connector, under the declared table. Do so before its first request.

    Args:
        scheduler: a v1 ``Scheduler``, or a subclass.
        governor: the table and its policy; by default the connector's, or a new one.

    Raises:
        UnsupportedEngine: it has no connector or has requests already, or lacks what the adapter stands in front
            of. Nothing was changed.
    """
    connector = scheduler.connector
    if connector is None:
        msg = "this scheduler has no KV connector: no transfer touches its blocks, there is nothing to govern"
        raise UnsupportedEngine(msg)
    if scheduler.requests:
        msg = f"this scheduler has {len(scheduler.requests)} requests already; govern it before the first"
        raise UnsupportedEngine(msg)
    classes = governed(type(scheduler)), governed(type(connector))  # either may be refused
    scheduler.__class__, connector.__class__ = classes
    governor = governor or connector.governor or Governor()
    governor.scheduler = scheduler
    scheduler.governor = connector.governor = governor
    governor.bind(scheduler.kv_cache_manager)
    connector.bind_kv_cache_manager(scheduler.kv_cache_manager)
    return governor


def observe(scheduler: Any, observer: Observer | None = None) -> Observer:
    """Look at a scheduler of vLLM, and change nothing: see :mod:`adapters.vllm.observer`.

    Raises:
        UnsupportedEngine: as :func:`govern`.
    """
    observer = observer or Observer()
    govern(scheduler, observer)
    return observer


def by_name(name: str, of: str) -> type:
    """A governed scheduler, or ``Governed`` and the name of a connector that vLLM knows."""
    rest = name.removeprefix("Governed")
    if name == rest or not rest:
        msg = f"module {of!r} has no attribute {name!r}"
        raise AttributeError(msg)
    if rest == "Scheduler":
        return governed(engine.module(engine.SCHEDULER).Scheduler)
    if rest == "AsyncScheduler":
        return governed(engine.module(engine.ASYNC_SCHEDULER).AsyncScheduler)
    factory = engine.module(engine.FACTORY).KVConnectorFactory
    try:
        kind: type = factory.get_connector_class_by_name(rest)
    except ValueError as error:
        msg = f"module {of!r} has no attribute {name!r}: vLLM knows no connector {rest!r}"
        raise AttributeError(msg) from error
    return governed(kind)
