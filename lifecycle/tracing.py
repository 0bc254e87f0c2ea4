"""One OpenTelemetry span for each request, with an event for each of its events (extra ``[tracing]``).

    table = ObservedTable([Tracing()])        # or Shadow(observers=(Tracing(),))

The span is called ``lifecycle.request``. It ends when nothing of the request can happen any more. Its attributes
are OpenTelemetry's for generative AI where these have a word (``gen_ai.response.id``, the rid, and
``gen_ai.response.finish_reasons``, the word on the wire), else ``lifecycle.reason``, ``lifecycle.late`` and
``lifecycle.attempts``. A request that ends by a fault has the status *error*.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.trace import Span, Status, StatusCode, Tracer, get_tracer

from .compile import Effect
from .observe import Observer
from .reasons import WIRE
from .request import RequestLifecycle
from .vocabulary import Event


class Tracing(Observer):
    """An observer that makes spans. `tracer` is the one of the global provider where none is given."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self.tracer = get_tracer("lifecycle") if tracer is None else tracer
        self._spans: dict[tuple[str, int], Span] = {}

    def saw(
        self,
        request: RequestLifecycle,
        event: str,
        details: Mapping[str, Any],
        effects: tuple[Effect, ...],
    ) -> None:
        """Note an event in the request's span; begin the span, or end it."""
        key = (request.rid, request.incarnation)
        if event == Event.SUBMIT:
            attributes = {"gen_ai.response.id": request.rid}
            self._spans[key] = self.tracer.start_span("lifecycle.request", attributes=attributes)
        span = self._spans.get(key)
        if span is None:
            return
        plain = {k: v for k, v in details.items() if isinstance(v, (str, int, float))}
        state = {"lifecycle.state": str(request.state), "lifecycle.effects": [*map(str, effects)]}
        span.add_event(str(event), {**plain, **state})
        if request.over:
            del self._spans[key]
            self._end(span, request)

    def _end(self, span: Span, request: RequestLifecycle) -> None:
        assert request.reason is not None
        outcome = request.outcome(WIRE)
        span.set_attribute("gen_ai.response.finish_reasons", [str(outcome.wire)])
        span.set_attribute("lifecycle.reason", str(request.reason))
        span.set_attribute("lifecycle.late", request.late)
        span.set_attribute("lifecycle.attempts", request.attempt + 1)
        if outcome.wire == "error":
            span.set_status(Status(StatusCode.ERROR, str(request.reason)))
        span.end()
