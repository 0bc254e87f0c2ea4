"""A scheduler that is governed: what vLLM's scheduler does not tell its connector.

It is a subclass of vLLM's ``Scheduler`` or ``AsyncScheduler`` (:func:`governing`, called by
:func:`adapters.vllm.governed`). It names later lives of an id apart, passes on aborts that come after the finish,
lets the blocks of a preempted request drain, and has the governor look at the clock at every turn.
"""

from __future__ import annotations

import copy
from typing import Any

from .governor import Governor


def governing(base: Any) -> type:
    """A governed subclass of the scheduler class `base`."""

    class GoverningScheduler(base):  # type: ignore[misc]  # known when it is called
        """What stands before the scheduler.

        Attributes:
            governor: the table of requests, which the connector shares.
        """

        connector: Any
        requests: dict[str, Any]
        kv_cache_manager: Any

        # On the class, for schedulers that become governed after they were made.
        governor: Governor | None = None
        _answering: bool = False

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            from .install import govern

            govern(self)

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            """Ends what is past its deadline first."""
            if self.governor is not None:
                self.governor.tick()
            return super().schedule(*args, **kwargs)

        def add_request(self, request: Any) -> None:
            """A later life of an id gets an id of its own.

            Raises:
                DuplicateRequest: a request of that id lives. Nothing changes.
            """
            if self.governor is not None:
                existing = self.requests.get(self.governor.engine_id(request.request_id))
                if existing is not None and existing.streaming_queue is not None:
                    request.request_id = existing.request_id  # the next part of a session
                else:
                    request.request_id = self.governor.name(request.request_id)
            super().add_request(request)

        def finish_requests(self, request_ids: Any, finished_status: Any) -> list[Any]:
            """Also tells the governor of aborts of requests that have finished, while their blocks are lent."""
            governor = self.governor
            if governor is None:
                return list(super().finish_requests(request_ids, finished_status))
            if isinstance(request_ids, str):
                request_ids = (request_ids,)
            if request_ids is not None:
                as_is = self._answering
                request_ids = [each if as_is else governor.engine_id(each) for each in request_ids]
            for each in list(self.requests) if request_ids is None else request_ids:
                if (request := self.requests.get(each)) is not None:
                    governor.held_for_load(request)  # before its status says that it is over
            if finished_status.name == "FINISHED_ABORTED" and not self._answering:
                for each in list(self.requests) if request_ids is None else request_ids:
                    request = self.requests.get(each)
                    if request is not None and request.is_finished():
                        governor.aborted(each)
            finished = super().finish_requests(request_ids, finished_status)
            return (
                finished if self._answering else [self._as_known(request) for request in finished]
            )

        def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
            """Clients get the ids that they know."""
            self._answering = True
            try:
                outputs = super().update_from_output(*args, **kwargs)
            finally:
                self._answering = False
            governor = self.governor
            if governor is not None and governor.renames:
                for each in outputs.values():
                    for output in each.outputs:
                        output.request_id = governor.rid(output.request_id)
                    if each.finished_requests:
                        each.finished_requests = {
                            governor.rid(rid) for rid in each.finished_requests
                        }
            return outputs

        def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
            if self.governor is not None:
                self.governor.preempted(request)
            super()._preempt_request(request, *args, **kwargs)

        def _free_blocks(self, request: Any) -> None:
            if self.governor is not None:
                self.governor.freed(request)
            super()._free_blocks(request)

        def _as_known(self, request: Any) -> Any:
            """A finished request under the id that its client knows."""
            assert self.governor is not None
            rid = self.governor.rid(request.request_id)
            if rid == request.request_id:
                return request
            request = copy.copy(request)
            request.request_id = rid
            return request

    return GoverningScheduler
