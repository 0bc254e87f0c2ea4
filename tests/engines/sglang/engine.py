"""SGLang's prefill scheduler without a model: its own methods, queues, requests, radix cache, pools and allocator.

What is not SGLang's here is the sender (a transfer that the test ends by hand), the forward pass (a token that
the test names) and the socket to the client (a list). torchvision, which SGLang imports for pictures, is an empty
module.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
import types
from array import array
from collections import deque
from typing import Any

import torch
import transformers.image_utils  # noqa: F401  # it asks for torchvision, so it goes before the empty one

ROWS, TOKENS = 16, 256


class _NoPictures(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torchvision, all of it empty: its builds for CPUs are not in every package index."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = self._anything
        return module

    def exec_module(self, module):
        pass

    @staticmethod
    def _anything(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


sys.meta_path.insert(0, _NoPictures())

from sglang.srt.disaggregation.base import KVPoll  # noqa: E402
from sglang.srt.disaggregation.prefill import SchedulerDisaggregationPrefillMixin  # noqa: E402
from sglang.srt.disaggregation.utils import (  # noqa: E402
    DisaggregationMode,
    ReqToMetadataIdxAllocator,
)
from sglang.srt.managers.io_struct import AbortReq  # noqa: E402
from sglang.srt.managers.schedule_batch import Req  # noqa: E402
from sglang.srt.managers.scheduler import Scheduler  # noqa: E402
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixCache  # noqa: E402
from sglang.srt.runtime_context import get_context, get_parallel  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402

assert issubclass(Scheduler, SchedulerDisaggregationPrefillMixin)


@contextlib.contextmanager
def published():
    """SGLang's process-wide settings for a prefill worker of one rank, and a group of one for its collectives."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    override = get_context().override_server_args(disaggregation_mode="prefill")
    override.install()
    get_parallel().override_permanently(tp_rank=0, pp_rank=0)
    try:
        yield
    finally:
        override.restore()


class Sender:
    """A transfer that the test concludes: `verdict` is what a poll says.

    `writing` says that the hardware still reads the pages, whatever the verdict is. Like SGLang's own senders it
    polls Failed once it was told of an abort.
    """

    def __init__(self) -> None:
        self.verdict = KVPoll.Transferring
        self.aborts = 0
        self.cleared = 0
        self.sent: list[list[int]] = []
        self.writing = False
        self.abort_raises = False
        self.poll_raises = False

    def poll(self):
        if self.poll_raises:
            msg = "the transfer engine is gone"
            raise RuntimeError(msg)
        return self.verdict

    def abort(self):
        self.aborts += 1
        if self.abort_raises:
            msg = "cannot reach the peer"
            raise RuntimeError(msg)
        self.verdict = KVPoll.Failed

    def failure_exception(self):
        msg = "the wire broke"
        raise RuntimeError(msg)

    def clear(self):
        self.cleared += 1

    def get_max_transfer_tokens(self):
        return None

    def should_send_kv_chunk(self, num_pages, last_chunk):
        return num_pages > 0 or last_chunk

    def send(self, kv_indices, state_indices=None, num_kv_tokens=None):
        self.sent.append([int(page) for page in kv_indices])
        self.writing = True

    def get_transfer_metric(self):
        return None

    def drained(self):
        """Proof that it will not touch the pages again; nothing in SGLang asks for it."""
        return not self.writing


class _Quiet:
    """Clocks and counters of SGLang that tests have no use for: any method, doing nothing."""

    enable_metrics = False

    @property
    def trace_ctx(self):
        return self

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


class Streamer:
    """What clients were told: one (rid, finish reason as SGLang writes it) a report."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []

    def stream_output(self, reqs, return_logprob=False, skip_req=None):
        self.told += [
            (req.rid, req.finished_reason.to_json()) for req in reqs if req.finished_reason
        ]

    def of(self, rid):
        return [reason for told, reason in self.told if told == rid]


class Grammar:
    """A compiled grammar that accepts the tokens it is given."""

    finished = False

    def __init__(self, *accepted: int) -> None:
        self.accepted = accepted

    def accept_token(self, token):
        if token not in self.accepted:
            msg = f"token {token} is refused"
            raise ValueError(msg)


class Engine:
    """One prefill scheduler, and what a test does to it."""

    def __init__(self) -> None:
        self.pool = ReqToTokenPool(ROWS, 128, "cpu", enable_memory_saver=False)
        self.allocator = TokenToKVPoolAllocator(TOKENS, torch.float16, "cpu", None, need_sort=False)
        self.tree = RadixCache(CacheInitParams(
            disable=False, req_to_token_pool=self.pool,
            token_to_kv_pool_allocator=self.allocator, page_size=1,
        ))  # fmt: skip
        self.streamer = Streamer()
        self.scheduler = self._scheduler()
        self.requests = 0

    def _scheduler(self) -> Scheduler:
        import torch.distributed as dist

        scheduler = Scheduler.__new__(Scheduler)
        group = dist.group.WORLD
        facts = {
            "attn_cp_cpu_group": group, "attn_tp_cpu_group": group, "tree_cache": self.tree,
            "req_to_token_pool": self.pool, "token_to_kv_pool_allocator": self.allocator,
            "req_to_metadata_buffer_idx_allocator": ReqToMetadataIdxAllocator(ROWS),
            "disagg_metadata_buffers": _Quiet(), "output_streamer": self.streamer,
            "metrics_reporter": _Quiet(), "metrics_collector": _Quiet(),
            "batch_result_processor": _Quiet(), "beam_coordinator": _Quiet(),
            "grammar_manager": types.SimpleNamespace(grammar_queue=[], abort_requests=lambda r: None),
            "disagg_prefill_bootstrap_queue": types.SimpleNamespace(
                queue=[], kv_manager=types.SimpleNamespace(kv_args=types.SimpleNamespace(state_types=[]))
            ),
            "disagg_prefill_inflight_queue": [], "disagg_prefill_pending_chunk_rids": set(),
            "waiting_queue": [], "running_batch": None, "last_batch": None, "chunked_req": None,
            "_pending_chunked_abort_req": None, "result_queue": deque(), "mm_receiver": None,
            "dllm_config": None, "disaggregation_mode": DisaggregationMode.PREFILL,
            "enable_overlap": False, "enable_staging": False, "kv_checksum_computer": None,
            "enable_continuous_input_polling": False, "scheduler_stage_metrics": None,
            "enable_hicache_storage": False,
        }  # fmt: skip
        for name, value in facts.items():
            setattr(scheduler, name, value)
        return scheduler

    # What happens in an engine.

    def request(self, rid: str, tokens: int = 8) -> Req:
        """A request whose hand-shake is done; its prompt shares no prefix with another's."""
        self.requests += 1
        first = 1000 * self.requests
        req = Req(
            rid, "", array("q", range(first, first + tokens)), SamplingParams(max_new_tokens=1),
            bootstrap_host="peer", bootstrap_room=self.requests, disagg_mode=DisaggregationMode.PREFILL,
        )  # fmt: skip
        req.disagg_kv_sender = Sender()
        req.time_stats = _Quiet()
        req.metadata_buffer_index = self.scheduler.req_to_metadata_buffer_idx_allocator.alloc()
        req.pending_bootstrap = False
        return req

    def compute(self, req: Req, upto: int | None = None) -> None:
        """Allocate pages for the prompt up to token `upto` (all of it), as if a pass had filled them."""
        end = len(req.origin_input_ids) if upto is None else upto
        if not req.kv.holds_kv:
            req.init_next_round_input(self.tree)
            req.lock = self.tree.lock(req.last_node)
            self.pool.alloc([req])
        start = req.kv.kv_allocated_len
        pages = self.allocator.alloc(end - start)
        self.pool.write((req.kv.req_pool_idx, slice(start, end)), pages.to(torch.int32))
        req.extend_end = end
        req.kv.kv_allocated_len = req.kv.kv_committed_len = end

    def finish_pass(self, req: Req, token: int = 7) -> None:
        """The result of the pass with the prompt's last token reaches the scheduler's own handler."""
        batch = types.SimpleNamespace(reqs=[req], spec_info=None, prefill_stats=None)
        result = types.SimpleNamespace(
            logits_output=None, next_token_ids=torch.tensor([token]), extend_input_len_per_req=None,
            extend_logprob_start_len_per_req=None, copy_done=None, auxiliary_host_output=None,
            routed_experts_output=None, indexer_topk_output=None, next_draft_input=None,
            can_run_cuda_graph=False, dp_cooperation_info=None,
        )  # fmt: skip
        batch.dp_cooperation_info = None
        self.scheduler.spec_algorithm = types.SimpleNamespace(is_eagle=lambda: False)
        self.scheduler.maybe_send_health_check_signal = lambda: None
        self.scheduler.process_batch_result_disagg_prefill(batch, result)

    def in_flight(self, rid: str, tokens: int = 8) -> Req:
        """A request whose whole prompt was handed over."""
        req = self.request(rid, tokens)
        self.compute(req)
        self.finish_pass(req)
        assert req in self.scheduler.disagg_prefill_inflight_queue
        return req

    def poll(self) -> list[Req]:
        return self.scheduler.process_disagg_prefill_inflight_queue()

    def abort(self, rid: str, message: str | None = None) -> None:
        self.scheduler.running_batch = types.SimpleNamespace(reqs=[])
        self.scheduler.abort_request(AbortReq(rid=rid, abort_message=message))

    # What is looked at.

    def pages(self, req: Req) -> set[int]:
        row = self.pool.req_to_token[req.kv.req_pool_idx, : req.kv.kv_allocated_len]
        return {int(page) for page in row}

    def free(self) -> list[int]:
        return [int(page) for page in self.allocator.free_pages]
