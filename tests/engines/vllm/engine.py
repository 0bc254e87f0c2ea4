"""vLLM's own v1 scheduler, block pool and KV cache manager, on a CPU, with no model behind them.

The scheduler decides and accounts; what a model runner and a connector's workers would answer is handed to it by
:meth:`Engine.step`. That is how vLLM's own tests of its connectors drive it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 16  # tokens of one block
EOS = 2


def write_model(folder: Path) -> Path:
    """The description of a tiny model; the scheduler reads its sizes and never loads it."""
    config = {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "hidden_size": 64,
        "ffn_dim": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "max_position_embeddings": 2048,
        "vocab_size": 512,
        "word_embed_proj_dim": 64,
        "eos_token_id": EOS,
        "torch_dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


class Engine:
    """A scheduler with a connector, driven step by step.

    Args:
        model: the folder that :func:`write_model` made.
        blocks: how many KV blocks the pool has; one of them is vLLM's null block.
        connector, module: which connector to load, and from which module (None: one of vLLM's own).
        role: ``kv_both``, ``kv_producer`` or ``kv_consumer``.
        scheduler: the class to drive; by default vLLM's Scheduler, with `asynchronous` its AsyncScheduler.
        caching: whether the prefix cache is on.
        extra: the connector's own configuration.
    """

    def __init__(
        self,
        model: Path,
        *,
        blocks: int = 64,
        connector: str = "Scripted",
        module: str | None = "tests.engines.vllm.scripted",
        role: str = "kv_both",
        scheduler: type[Scheduler] | None = None,
        asynchronous: bool = False,
        caching: bool = False,
        extra: dict[str, Any] | None = None,
    ) -> None:
        config = VllmConfig(
            scheduler_config=SchedulerConfig(
                max_num_seqs=16,
                max_num_batched_tokens=512,
                max_model_len=1024,
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
                async_scheduling=asynchronous,
                disable_hybrid_kv_cache_manager=True,
            ),
            model_config=ModelConfig(model=str(model), skip_tokenizer_init=True, dtype="float16"),
            cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=caching),
            kv_transfer_config=KVTransferConfig(
                kv_connector=connector,
                kv_connector_module_path=module,
                kv_role=role,
                kv_connector_extra_config=extra or {},
            ),
            device_config=DeviceConfig("cpu"),
        )
        config.cache_config.num_gpu_blocks = blocks
        config.cache_config.kv_cache_layout = "LBNHC"
        group = KVCacheGroupSpec(
            ["layer"],
            FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32),
        )
        kv_cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[group])
        kind = scheduler or (AsyncScheduler if asynchronous else Scheduler)
        self.scheduler: Any = kind(
            vllm_config=config,
            kv_cache_config=kv_cache,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            log_stats=True,
        )
        init_none_hash(sha256)
        self.told: list[tuple[str, str]] = []
        """What clients were told: (rid, finish reason), in order."""

    # What the tests look at.

    @property
    def connector(self) -> Any:
        return self.scheduler.connector

    @property
    def pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    @property
    def free(self) -> int:
        """How many blocks the pool would give out."""
        return int(self.pool.get_num_free_blocks())

    @property
    def total(self) -> int:
        """How many blocks there are to give out: one is the null block."""
        return int(self.pool.num_gpu_blocks) - 1

    def blocks(self, rid: str) -> list[int]:
        """The ids of the blocks that the scheduler has on its books for `rid`."""
        (ids,) = self.scheduler.kv_cache_manager.get_block_ids(rid)
        return list(ids)

    def status(self, rid: str) -> str | None:
        request = self.scheduler.requests.get(rid)
        return None if request is None else request.status.name

    # What happens.

    def request(self, rid: str, tokens: int = 40, answer: int = 16) -> Request:
        """A request for `answer` tokens after a prompt of `tokens`, unlike the prompts of other ids."""
        prompt = [hash((rid, position)) % 400 + 8 for position in range(tokens)]
        params = SamplingParams(max_tokens=answer)
        params.update_from_generation_config({}, EOS)
        return Request(
            request_id=rid,
            prompt_token_ids=prompt,
            sampling_params=params,
            pooling_params=None,
            block_hasher=get_request_block_hasher(BLOCK, sha256),
        )

    def add(self, rid: str, tokens: int = 40, answer: int = 16) -> Request:
        request = self.request(rid, tokens, answer)
        self.scheduler.add_request(request)
        return request

    def abort(self, *rids: str) -> None:
        """What the engine core does when a client hangs up."""
        self.scheduler.finish_requests(list(rids), RequestStatus.FINISHED_ABORTED)

    def step(
        self,
        *,
        sent: Iterable[str] = (),
        received: Iterable[str] = (),
        bad_blocks: Iterable[int] = (),
    ) -> Any:
        """One turn of the engine: schedule, run, and hand over what the workers report.

        `sent` and `received` are the ids that the connector's workers report as finished.
        """
        output = self.scheduler.schedule()
        self.answer(output, sent=sent, received=received, bad_blocks=bad_blocks)
        return output

    def answer(
        self,
        output: Any,
        *,
        sent: Iterable[str] = (),
        received: Iterable[str] = (),
        bad_blocks: Iterable[int] = (),
    ) -> None:
        """The model runner's answer to what :meth:`Scheduler.schedule` put out."""
        rids = list(output.num_scheduled_tokens)
        transfers = KVConnectorOutput(
            finished_sending=set(sent) or None,
            finished_recving=set(received) or None,
            invalid_block_ids=set(bad_blocks),
        )
        # A prompt that is not computed to its end yields no token.
        tokens = [
            [7] if self._samples(rid, output.num_scheduled_tokens[rid]) else [] for rid in rids
        ]
        result = ModelRunnerOutput(
            req_ids=rids,
            req_id_to_index={rid: index for index, rid in enumerate(rids)},
            sampled_token_ids=tokens,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=None,
            kv_connector_output=None if transfers.is_empty() else transfers,
        )
        for outputs in self.scheduler.update_from_output(output, result).values():
            self.told += [
                (each.request_id, str(each.finish_reason))
                for each in outputs.outputs
                if each.finish_reason is not None
            ]

    def _samples(self, rid: str, scheduled: int) -> bool:
        request = self.scheduler.requests.get(rid)
        return request is None or request.num_computed_tokens >= request.num_prompt_tokens
