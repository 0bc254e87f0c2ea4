"""Which vLLM this adapter knows, and the check that it finds there what it stands in front of."""

from __future__ import annotations

import importlib
import inspect
import warnings
from typing import Any, Final

from lifecycle import LifecycleError

TESTED: Final = ("0.33.0",)
"""The versions of vLLM whose own scheduler and tests ran under this adapter."""

SCHEDULER = "vllm.v1.core.sched.scheduler"
ASYNC_SCHEDULER = "vllm.v1.core.sched.async_scheduler"
CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base"
FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory"

# What is overridden or called, with the parameters that are passed. A release that renames one of them would
# otherwise go on ungoverned, in silence.
SCHEDULER_METHODS: Final[dict[str, tuple[str, ...]]] = {
    "add_request": ("request",),
    "finish_requests": ("request_ids", "finished_status"),
    "schedule": (),
    "update_from_output": ("scheduler_output", "model_runner_output"),
    "_preempt_request": ("request",),
    "_free_request": ("request",),
    "_free_blocks": ("request",),
    "_update_from_kv_xfer_finished": ("kv_connector_output",),
}
CONNECTOR_METHODS: Final[dict[str, tuple[str, ...]]] = {
    "on_new_request": ("request",),
    "get_num_new_matched_tokens": ("request", "num_computed_tokens"),
    "update_state_after_alloc": ("request", "blocks", "num_external_tokens"),
    "register_finished_partial_tail": ("request", "block_ids", "partial_tail_offloads"),
    "request_finished": ("request", "block_ids"),
    "update_connector_output": ("connector_output",),
    "bind_kv_cache_manager": ("kv_cache_manager",),
    "build_connector_meta": ("scheduler_output",),
    "has_pending_push_work": (),
}


class UnsupportedEngine(LifecycleError):
    """This vLLM lacks what the adapter stands in front of. Nothing was governed, and nothing was changed."""


def module(name: str) -> Any:
    """A module of vLLM.

    Raises:
        ModuleNotFoundError: vLLM is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "vllm":
            raise
        if error.name != "vllm":
            msg = f"vLLM has no module {error.name}; adapters.vllm was tested with {', '.join(TESTED)}"
            raise UnsupportedEngine(msg) from error
        msg = (
            f"adapters.vllm needs vLLM, which is not installed: pip install vllm=={TESTED[-1]} "
            "(scripts/engines_vllm.sh makes an environment without a GPU)"
        )
        raise ModuleNotFoundError(msg, name="vllm") from None


def warn_if_untested() -> None:
    """Warn, once a place, when this vLLM is not among those that were tested."""
    version = str(getattr(module("vllm"), "__version__", "unknown"))
    if version.split("+", maxsplit=1)[0] not in TESTED:
        msg = (
            f"adapters.vllm was tested with vLLM {TESTED[0]} to {TESTED[-1]}, and this is {version}"
        )
        warnings.warn(msg, RuntimeWarning, stacklevel=3)


def check(kind: type, methods: dict[str, tuple[str, ...]]) -> None:
    """Refuse a scheduler or connector class that lacks a method, or takes other parameters.

    Raises:
        UnsupportedEngine: with everything that is missing.
    """
    faults = [fault for name, takes in methods.items() if (fault := _fault(kind, name, takes))]
    if faults:
        msg = (
            f"{kind.__module__}.{kind.__qualname__} cannot be governed: {'; '.join(faults)}. "
            f"adapters.vllm was tested with vLLM {TESTED[0]} to {TESTED[-1]}"
        )
        raise UnsupportedEngine(msg)


def _fault(kind: type, name: str, takes: tuple[str, ...]) -> str | None:
    method = getattr(kind, name, None)
    if not callable(method):
        return f"it has no method {name}()"
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):
        return None  # a method without a Python signature; it is there
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return None
    missing = [each for each in takes if each not in parameters]
    if missing:
        return f"{name}() has no parameter {', '.join(missing)}"
    return None
