"""A KV connector that does what a test says: how much it loads, and whether it reads on after a finish.

It stands for a transfer engine. vLLM loads it as it does connectors from outside, by name and module path. What
its workers would report is what a test hands to :meth:`tests.engines.vllm.engine.Engine.step`.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)


class NoMetadata(KVConnectorMetadata):
    """There are no workers to tell anything."""


class Scripted(KVConnectorBase_V1):
    """The scheduler's side of a connector.

    Attributes:
        loads: for a request's id, how many tokens are loaded from outside while it waits.
        reads_on: the ids of requests whose blocks are still being read when they finish, however they finish.
        seen: every call that concerns a request, in order: ``("finished", rid)``, ``("received", rid)``, ...
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.loads: dict[str, int] = {}
        self.reads_on: set[str] = set()
        self.seen: list[tuple[str, str]] = []
        self.block_pool: Any = None

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self.block_pool = gpu_block_pool

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        tokens = max(0, self.loads.get(request.request_id, 0) - num_computed_tokens)
        return tokens, tokens > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            self.loads[request.request_id] = 0
            self.seen.append(("load", request.request_id))

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return NoMetadata()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        self.seen.append(("finished", request.request_id))
        return request.request_id in self.reads_on, None

    def update_connector_output(self, connector_output: Any) -> None:
        self.seen += [("sent", rid) for rid in sorted(connector_output.finished_sending or ())]
        self.seen += [("received", rid) for rid in sorted(connector_output.finished_recving or ())]

    # The workers' side, of which there is none.

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def wait_for_layer_load(self, layer_name: str) -> None:
        raise NotImplementedError

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def wait_for_save(self) -> None:
        raise NotImplementedError
