"""Metrics of the requests of a table, or of a shadow, for Prometheus (extra ``[metrics]``).

    metrics = Metrics()
    table = ObservedTable([metrics])          # or Shadow(observers=(metrics,))
    prometheus_client.REGISTRY.register(metrics)

Names are made as vLLM and SGLang make theirs: a prefix and a colon, base units, ``_total`` for what only grows.

==============================================  =========  ==========  ==========================================
name                                            kind       label       what
==============================================  =========  ==========  ==========================================
``lifecycle:num_requests``                      gauge      state       requests that have not ended
``lifecycle:num_claims``                        gauge      kind        claims on their pages
``lifecycle:request_finished_total``            counter    reason      requests that are done
``lifecycle:request_drain_time_seconds``        histogram              from the decision to done
``lifecycle:kv_quarantined_pages_total``        counter                pages taken out of circulation
``lifecycle:late_events_total``                 counter    event       absorbed: nothing they speak of was open
``lifecycle:illegal_events_total``              counter    event       refused
``lifecycle:unknown_events_total``              counter    event       for a request that nobody knows
``lifecycle:divergences_total``                 counter    kind        what a shadow found
==============================================  =========  ==========  ==========================================
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from .compile import Effect
from .errors import EventError, LateEvent
from .observe import Observer
from .request import RequestLifecycle
from .vocabulary import EffectKind, Event

if TYPE_CHECKING:
    from .shadow import Divergence

BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the drain time histogram, in seconds; infinity follows."""


class Metrics(Observer):
    """An observer that counts, and a collector that a Prometheus registry can scrape, from any thread.

    Args:
        prefix: what names begin with.
        buckets: upper bounds of the drain time, in seconds, ascending.
        clock: seconds, never running backwards.
    """

    def __init__(
        self,
        prefix: str = "lifecycle",
        *,
        buckets: Sequence[float] = BUCKETS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.prefix, self.buckets, self.clock = prefix, tuple(buckets), clock
        self._live: dict[tuple[str, int], RequestLifecycle] = {}
        self._late_seen: dict[tuple[str, int], int] = {}
        self._decided: dict[tuple[str, int], float] = {}
        self._pages: dict[tuple[str, int, int], int] = {}
        self._finished: Counter[str] = Counter()
        self._late: Counter[str] = Counter()
        self._illegal: Counter[str] = Counter()
        self._unknown: Counter[str] = Counter()
        self._divergences: Counter[str] = Counter()
        self._drains = [0] * (len(self.buckets) + 1)
        self._drained_seconds = 0.0
        self._quarantined = 0

    def saw(
        self,
        request: RequestLifecycle,
        event: str,
        details: Mapping[str, Any],
        effects: tuple[Effect, ...],
    ) -> None:
        """Count an event."""
        key = (request.rid, request.incarnation)
        if event == Event.SUBMIT:
            self._live[key] = request
        elif event == Event.ADMIT:
            pages = details.get("pages")
            sized: Any = pages
            count = pages if isinstance(pages, int) else 0
            if hasattr(pages, "__len__"):
                count = len(sized)
            attempt = (request.rid, request.incarnation, request.attempt)
            self._pages[attempt] = count
        if key not in self._live:  # it had ended before: whatever comes now is late
            self._late[str(event)] += 1
            return
        if request.late > self._late_seen.get(key, 0):
            self._late_seen[key] = request.late
            self._late[str(event)] += 1
        for effect in effects:
            if effect.kind in (EffectKind.RELEASE_KV, EffectKind.QUARANTINE_KV):
                freed = self._pages.pop((*key, effect.attempt), 0)
                if effect.kind is EffectKind.QUARANTINE_KV:
                    self._quarantined += freed
        if request.decided and key not in self._decided:
            self._decided[key] = self.clock()
            if request.done:
                self._end(key, request)
        elif effects and request.done and self._decided[key] >= 0:
            self._end(key, request)
        if request.over:
            del self._live[key]
            del self._decided[key]
            self._late_seen.pop(key, None)

    def _end(self, key: tuple[str, int], request: RequestLifecycle) -> None:
        seconds = self.clock() - self._decided[key]
        self._decided[key] = -1.0  # counted; an older attempt may still drain
        self._drains[bisect_left(self.buckets, seconds)] += 1
        self._drained_seconds += seconds
        self._finished[str(request.reason)] += 1

    def refused(
        self,
        rid: str,  # noqa: ARG002  # no label bears a rid: there are too many
        event: str,
        details: Mapping[str, Any],  # noqa: ARG002  # as above
        error: EventError,
    ) -> None:
        """Count an event that was refused."""
        (self._late if isinstance(error, LateEvent) else self._illegal)[str(event)] += 1

    def unknown(self, rid: str, event: str, details: Mapping[str, Any]) -> None:  # noqa: ARG002  # as above
        """Count an event for nobody who is known."""
        self._unknown[str(event)] += 1

    def diverged(self, divergence: Divergence) -> None:
        """Count what a shadow found."""
        self._divergences[str(divergence.kind)] += 1

    def collect(self) -> Iterator[Metric]:
        """The metrics as they stand, for a registry."""
        live = list(self._live.values())
        states = Counter(str(request.state) for request in live)
        claims: Counter[str] = Counter()
        for request in live:
            held = [*request.claims, *(claim for old in request.draining for claim in old.claims)]
            claims.update(claim.partition(":")[0] for claim in held)
        yield self._family(
            GaugeMetricFamily, "num_requests", "state", states, "that have not ended"
        )
        yield self._family(GaugeMetricFamily, "num_claims", "kind", claims, "claims on KV pages")
        for name, label, counts, text in (
            ("request_finished", "reason", self._finished, "requests that are done"),
            ("late_events", "event", self._late, "events that were absorbed as late"),
            ("illegal_events", "event", self._illegal, "events that were refused"),
            ("unknown_events", "event", self._unknown, "events for unknown requests"),
            ("divergences", "kind", self._divergences, "what a shadow found"),
        ):
            yield self._family(CounterMetricFamily, name, label, counts, text)
        yield CounterMetricFamily(
            f"{self.prefix}:kv_quarantined_pages", "pages in quarantine", value=self._quarantined
        )
        bounds = [*map(str, self.buckets), "+Inf"]
        running = [sum(self._drains[: place + 1]) for place in range(len(bounds))]
        yield HistogramMetricFamily(
            f"{self.prefix}:request_drain_time_seconds",
            "from the decision to done",
            buckets=list(zip(bounds, running, strict=True)),
            sum_value=self._drained_seconds,
        )

    def _family(self, kind: Any, name: str, label: str, counts: Counter[str], text: str) -> Metric:
        family: Metric = kind(f"{self.prefix}:{name}", text, labels=[label])
        for value, count in sorted(counts.copy().items()):
            family.add_metric([value], count)  # type: ignore[attr-defined]  # every family with labels has it
        return family
