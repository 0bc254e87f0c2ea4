"""A KV connector that is governed: it tells the governor what vLLM tells it, and corrects what the workers report.

It is a subclass of the connector's own class (:func:`governing`, called by :func:`adapters.vllm.governed`), so
everything that it does not mention is the connector's own, class methods included. In a worker it does nothing.

Where only the connector is governed and not the scheduler, three things are out of its sight:

- an abort that comes after a request has finished (vLLM does not pass it on);
- a second request of an id whose blocks still drain (vLLM asserts before the connector hears of it), and with it
  the telling apart of completions of two lives of one id;
- an idle engine: what a deadline has ended is freed at the next report of the workers.
"""

from __future__ import annotations

from typing import Any

from .blocks import GuardedBlockPool, ManagerView
from .governor import Governor


def governing(base: Any, *, hybrid: bool) -> type:
    """A governed subclass of the connector class `base`; `hybrid` if it knows several groups of KV blocks."""

    class GoverningConnector(base):  # type: ignore[misc]  # known when it is called
        """What stands before the connector.

        Attributes:
            governor: the table of requests; made when the scheduler's side is made. None in a worker.
            guarded_pool: what the connector got for vLLM's block pool.
        """

        # On the class, for instances that become governed after they were made.
        governor: Governor | None = None
        guarded_pool: GuardedBlockPool | None = None

        def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
            super().__init__(vllm_config, role, kv_cache_config)
            if role.name == "SCHEDULER":
                self.governor = Governor()

        def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
            """The connector gets a guarded view of vLLM's block pool."""
            governor = self.governor
            if governor is not None:
                governor.bind(kv_cache_manager)
            self.guarded_pool = GuardedBlockPool(
                kv_cache_manager.block_pool,
                on_late=None if governor is None else governor.mispinned,
                passive=governor is not None and governor.passive,
            )
            view = ManagerView(kv_cache_manager, self.guarded_pool)
            super().bind_kv_cache_manager(view)

        def on_new_request(self, request: Any) -> None:
            """A life begins."""
            if self.governor is not None:
                self.governor.arrived(request)
            super().on_new_request(request)

        def get_num_new_matched_tokens(
            self, request: Any, num_computed_tokens: int
        ) -> tuple[int | None, bool]:
            """How much is loaded, and whether that goes on while the request waits."""
            tokens, later = super().get_num_new_matched_tokens(request, num_computed_tokens)
            if self.governor is not None and (life := self.governor.life(request.request_id)):
                life.loads = bool(later)
            return tokens, later

        def update_state_after_alloc(
            self, request: Any, blocks: Any, num_external_tokens: int
        ) -> None:
            """Blocks were allocated, and a load may be posted."""
            if self.governor is not None:
                self.governor.allocated(request, num_external_tokens)
            super().update_state_after_alloc(request, blocks, num_external_tokens)

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            """Called whenever vLLM schedules: the clock is looked at, unless the scheduler sees to that."""
            if self.governor is not None and self.governor.scheduler is None:
                self.governor.tick()
            return super().build_connector_meta(scheduler_output)

        def register_finished_partial_tail(
            self, request: Any, block_ids: Any, partial_tail_offloads: Any
        ) -> bool:
            """The connector may keep the last, partial block of a request that finishes."""
            keeps: bool = super().register_finished_partial_tail(
                request, block_ids, partial_tail_offloads
            )
            if keeps and self.governor is not None:
                self.governor.keeps_tail(request)
            return keeps

        def request_finished(
            self, request: Any, block_ids: Any
        ) -> tuple[bool, dict[str, Any] | None]:
            """Whether vLLM keeps the blocks: as long as any op is out, not only this connector's last."""
            reads_on, params = super().request_finished(request, block_ids)
            return self._finished(request, reads_on), params

        def update_connector_output(self, connector_output: Any) -> None:
            """The workers' report: the connector sees what concerns it, the scheduler what it has to do."""
            if self.governor is None:
                super().update_connector_output(connector_output)
                return
            for_the_scheduler = self.governor.reported(connector_output)
            try:
                super().update_connector_output(connector_output)
            finally:
                for_the_scheduler()

        def has_pending_push_work(self) -> bool:
            """Whether the engine has to keep stepping although it has no request left."""
            drains = self.governor is not None and self.governor.drains
            return drains or bool(super().has_pending_push_work())

        def _finished(self, request: Any, reads_on: bool) -> bool:
            return reads_on if self.governor is None else self.governor.finished(request, reads_on)

    if not hybrid:
        return GoverningConnector

    class GoverningHybridConnector(GoverningConnector):
        """The same for vLLM's ``SupportsHMA``."""

        def request_finished_all_groups(
            self, request: Any, block_ids: Any
        ) -> tuple[bool, dict[str, Any] | None]:
            """As :meth:`request_finished`."""
            reads_on, params = super().request_finished_all_groups(request, block_ids)
            return self._finished(request, reads_on), params

    return GoverningHybridConnector
