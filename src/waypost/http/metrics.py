"""Figures for Prometheus, read when they are asked for from numbers that are counted anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from waypost.broker import Broker
from waypost.delivery import ENDED, LETTERS, OPEN
from waypost.errors import NotOffered
from waypost.http.consumers import Pushing
from waypost.http.lake import Lake
from waypost.http.wire import Stats
from waypost.version import __version__
from waypost.waiting import RESULTS

CONTENT_TYPE = CONTENT_TYPE_LATEST
#: the states that a delivery can be in
OF_A_DELIVERY = sorted(OPEN | ENDED)


T = TypeVar("T")


def offered(read: Callable[[], Sequence[T]]) -> Sequence[T]:
    """What a store shows, or nothing where it does not have such things."""
    try:
        return read()
    except NotOffered:
        return ()


class Metrics(Collector):
    def __init__(self, broker: Broker, http: Stats, push: Pushing | None, lake: Lake | None) -> None:
        self._broker, self._http, self._push, self._lake = broker, http, push, lake
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing in advance: without this the registry would collect everything once, to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("waypost", "this broker", {"version": __version__})
        yield from self._queues()
        yield from self._channels()
        yield from self._objects_and_spectators()
        yield from self._pushes()
        yield from self._store()
        yield from self._batches()
        yield from self._races()
        yield from self._sealing()
        yield from self._commits()
        yield from self._wire()

    def _queues(self) -> Iterator[Metric]:
        states = GaugeMetricFamily(
            "waypost_queue_deliveries", "deliveries in each state", labels=["queue", "state"]
        )
        ready = GaugeMetricFamily(
            "waypost_queue_ready", "deliveries that a fetch would find", labels=["queue"]
        )
        held = GaugeMetricFamily("waypost_queue_bytes", "bytes of what has not ended", labels=["queue"])
        for queue in self._broker.store.queues():
            # Every state, so that a rate over one does not start with its first delivery.
            for state in OF_A_DELIVERY:
                states.add_metric([queue.name, LETTERS[state]], queue.states.get(state, 0))
            ready.add_metric([queue.name], queue.ready)
            held.add_metric([queue.name], queue.bytes)
        yield from (states, ready, held)

    def _channels(self) -> Iterator[Metric]:
        """There may be thousands: only the states that something is in."""
        states = GaugeMetricFamily(
            "waypost_channel_deliveries", "deliveries in each state", labels=["channel", "state"]
        )
        ready = GaugeMetricFamily(
            "waypost_channel_ready", "deliveries that a fetch would find", labels=["channel"]
        )
        held = GaugeMetricFamily("waypost_channel_bytes", "bytes of what has not ended", labels=["channel"])
        for channel in offered(self._broker.store.channels):
            for state, count in channel.states.items():
                if count:
                    states.add_metric([channel.name, LETTERS[state]], count)
            ready.add_metric([channel.name], channel.ready)
            held.add_metric([channel.name], channel.bytes)
        yield from (states, ready, held)

    def _objects_and_spectators(self) -> Iterator[Metric]:
        unchanged = CounterMetricFamily(
            "waypost_unchanged", "messages that repeated the last one", labels=["object", "producer"]
        )
        waiting = GaugeMetricFamily(
            "waypost_object_waiting", "messages in L, for which nobody has decided yet", labels=["object"]
        )
        for object in offered(self._broker.store.objects):
            for producer, count in object.unchanged.items():
                unchanged.add_metric([object.name, producer], count)
            waiting.add_metric([object.name], object.logged)
        lag = GaugeMetricFamily("waypost_spectator_lag", "events that it has not read", labels=["spectator"])
        for spectator in offered(self._broker.store.spectators):
            lag.add_metric([spectator.name], spectator.lag)
        yield from (unchanged, waiting, lag)

    def _pushes(self) -> Iterator[Metric]:
        sent = CounterMetricFamily("waypost_push_requests", "requests sent", labels=["consumer", "result"])
        flying = GaugeMetricFamily("waypost_push_in_flight", "requests under way", labels=["consumer"])
        opened = GaugeMetricFamily(
            "waypost_push_breaker_open", "1 while nothing is sent because it failed", labels=["consumer"]
        )
        for name, figures in () if self._push is None else self._push.all_figures().items():
            sent.add_metric([name, "success"], figures.succeeded)
            sent.add_metric([name, "failure"], figures.failed)
            flying.add_metric([name], figures.in_flight)
            opened.add_metric([name], figures.breaker != "closed")
        yield from (sent, flying, opened)

    def _store(self) -> Iterator[Metric]:
        stats = self._broker.store.stats()
        yield GaugeMetricFamily("waypost_log_head", "the event log's last offset", stats.head)
        yield GaugeMetricFamily(
            "waypost_log_oldest", "the event log's first offset that is kept", stats.oldest
        )
        yield GaugeMetricFamily("waypost_store_bytes", "what the store takes on disk", stats.disk_bytes)
        yield GaugeMetricFamily("waypost_undecided", "messages in L, not routed yet", stats.undecided)
        yield from self._waiting()
        refused = self._broker.store.refusal() is not None
        yield GaugeMetricFamily(
            "waypost_store_refusing", "1 while publishes are refused for lack of space", refused
        )

    def _batches(self) -> Iterator[Metric]:
        store = self._broker.store
        uploads, batches = store.uploads(None), store.open_batches()
        yield GaugeMetricFamily("waypost_uploads", "uploads that wait for a batch", len(uploads))
        size = sum(upload.size for upload in uploads)
        yield GaugeMetricFamily("waypost_upload_bytes", "bytes of uploads that wait for a batch", size)
        yield GaugeMetricFamily(
            "waypost_batches_open", "accepted batches, not all of whose rows are in", len(batches)
        )
        waiting = sum(batch.rows - batch.entered for batch in batches)
        yield GaugeMetricFamily("waypost_batch_rows_waiting", "rows of theirs that are not in yet", waiting)
        yield CounterMetricFamily(
            "waypost_batch_rows", "rows that this broker let enter", self._broker.entering.rows
        )

    def _waiting(self) -> Iterator[Metric]:
        waiting = self._broker.waiting
        yield GaugeMetricFamily(
            "waypost_undecided_age_seconds", "for how long the oldest in L has waited", waiting.age_seconds
        )
        decisions = CounterMetricFamily(
            "waypost_decisions",
            "decisions on messages in L, by who and what came of it",
            labels=["by", "result"],
        )
        for by in ("inline", "spark"):
            for result in RESULTS:
                decisions.add_metric([by, result], waiting.decisions[by, result])
        yield decisions

    def _races(self) -> Iterator[Metric]:
        """Of a store that others fetch from; the names are there in any case."""
        lost = CounterMetricFamily(
            "waypost_folder_races_lost", "messages that somebody else took first, by step", labels=["step"]
        )
        naps = CounterMetricFamily(
            "waypost_folder_naps", "waits before a fetch because there was little to choose from", labels=[]
        )
        races = self._broker.store.races
        if races is not None:
            lost.add_metric(["open"], races.lost_opens)
            lost.add_metric(["rename"], races.lost_renames)
            naps.add_metric([], races.naps)
        yield from (lost, naps)

    def _sealing(self) -> Iterator[Metric]:
        """Without a lake the names are there, and no figures."""
        sealed = GaugeMetricFamily("waypost_lake_sealed_offset", "the last offset in the lake", labels=[])
        lag = GaugeMetricFamily("waypost_lake_lag_events", "events that are not in the lake yet", labels=[])
        failing = GaugeMetricFamily("waypost_lake_failing", "1 while sealing fails", labels=[])
        took = GaugeMetricFamily("waypost_lake_seal_seconds", "how long the last seal took", labels=[])
        events = CounterMetricFamily("waypost_lake_sealed_events", "events sealed", labels=[])
        failures = CounterMetricFamily(
            "waypost_lake_failures", "failures of the lake's process and its work", labels=[]
        )
        reads = CounterMetricFamily("waypost_lake_reads", "reads by the lake's process", labels=[])
        lake = self._lake
        if lake is not None:
            reads.add_metric([], lake.reads)
            failures.add_metric([], lake.failures)
            if lake.folder is not None:
                sealed.add_metric([], lake.sealed)
                lag.add_metric([], lake.lag)
                failing.add_metric([], lake.failure is not None)
                took.add_metric([], lake.seal_seconds)
                events.add_metric([], lake.sealed_events)
        yield from (sealed, lag, failing, took, events, failures, reads)

    def _commits(self) -> Iterator[Metric]:
        committer = self._broker.committer
        yield CounterMetricFamily(
            "waypost_commit_groups", "groups committed, each with one sync", committer.groups
        )
        yield CounterMetricFamily("waypost_commit_commands", "commands committed", committer.commands)
        yield CounterMetricFamily(
            "waypost_commit_refused", "commands refused because too many waited", committer.refused
        )
        yield GaugeMetricFamily("waypost_commit_waiting", "commands that wait", committer.depth)
        yield GaugeMetricFamily("waypost_sync_seconds", "the last sync", self._broker.store.sync_seconds)

    def _wire(self) -> Iterator[Metric]:
        http = self._http
        answers = CounterMetricFamily("waypost_http_answers", "answers by class of status", labels=["status"])
        for digit in range(1, 6):
            answers.add_metric([f"{digit}xx"], http.answers[digit])
        yield answers
        yield CounterMetricFamily("waypost_http_received_bytes", "bytes received", http.bytes_in)
        yield CounterMetricFamily("waypost_http_sent_bytes", "bytes sent", http.bytes_out)
        yield CounterMetricFamily("waypost_http_connections", "connections taken", http.connections)
        yield GaugeMetricFamily("waypost_http_open_connections", "connections open now", http.open)
        yield CounterMetricFamily("waypost_http_refused_connections", "connections turned away", http.refused)
        yield CounterMetricFamily(
            "waypost_http_timeouts", "connections closed for being slow or idle", http.timeouts
        )
