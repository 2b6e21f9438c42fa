"""/v1: many messages at once, queues, a message's document, search, redrive, cancel, purge, jobs, figures."""

from __future__ import annotations

import base64
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.http.brokers import BrokerInThread
from waypost.policy import DEFAULT, policy_json


def lines(*messages: dict[str, Any]) -> str:
    return "\n".join(json.dumps(message) for message in messages) + "\n"


def finished(broker: BrokerInThread, job: str) -> dict[str, Any]:
    """The job, once it has ended. Each look at it goes through the loop that does its work."""
    while True:
        form: dict[str, Any] = broker.get(f"/v1/jobs/{job}")
        if form["ended"] is not None:
            return form


# ── many at once ────────────────────────────────────────────────────────────────────────────────


def test_many_messages_enter_in_their_order(broker: BrokerInThread) -> None:
    answer = broker.ask(
        "POST",
        "/v1/messages",
        lines(
            {"topics": ["fruit.apple"], "key": "k1", "body": "grün", "mimeType": "text/plain"},
            {"queue": "fruit", "bodyBase64": base64.b64encode(b"\xff\x00").decode()},
            {"object": "fruit", "topics": ["meat.beef"], "body": "", "priority": 0, "id": "own-1"},
        ),
        content_type="application/x-ndjson",
    )
    assert answer.status == 201
    results = answer.json()["results"]
    assert [result["state"] for result in results] == ["Q", "Q", "Q"]
    assert results[2]["id"] == "own-1"
    messages = broker.get("/queue/fruit?n=10")["messages"]
    assert [message["id"] for message in messages] == [results[i]["id"] for i in (2, 0, 1)]
    assert [found["queue"] for found in broker.found("id=own-1")] == ["fruit", "meat"]


def test_every_field_of_a_line_is_kept(broker: BrokerInThread) -> None:
    (result,) = broker.ask(
        "POST",
        "/v1/messages",
        lines(
            {
                "topics": ["fruit.apple", "meat.beef"],
                "object": "food",
                "key": "k\n1".replace("\n", " "),
                "mimeType": "application/json",
                "timestamp": "2026-01-31T10:00:00Z",
                "sent": "2026-01-31T10:00:01+00:00",
                "ttl": "1h",
                "priority": 3,
                "body": "{}",
                "producer": "erp",
                "force": True,
                "idempotencyKey": "i1",
                "meta": {"Color": "red"},
                "encoding": "identity",
            }
        ),
    ).json()["results"]
    document = broker.get(f"/v1/messages/{result['id']}?payload=1")
    assert document["topics"] == ["fruit.apple", "meat.beef"]
    assert (document["object"], document["key"], document["producer"]) == ("food", "k 1", "erp")
    assert document["timestamp"] == "2026-01-31T10:00:00.000000Z"
    assert (document["meta"], document["encoding"]) == ({"color": "red"}, "identity")
    assert document["expires"] > document["created"]
    assert (document["priority"], document["body"]) == (3, "{}")


def test_a_line_with_a_fault_keeps_all_the_others_out(broker: BrokerInThread) -> None:
    for wrong, named in [
        ('{"topics":["Fruit"],"body":""}', "message 3"),
        ('{"topic":["fruit"],"body":""}', "line 3"),
        ("not json", "line 3"),
        ('{"body":"x","bodyBase64":"eA=="}', "message 3"),
        ("{}", "message 3"),
        ('{"bodyBase64":"?"}', "message 3"),
        ('{"body":"","priority":10}', "message 3"),
        ('{"body":"","meta":{"' + "x" * 101 + '":""}}', "message 3"),
    ]:
        good = '{"topics":["fruit"],"body":""}\n'
        answer = broker.ask("POST", "/v1/messages", good + good + wrong + "\n" + good)
        assert answer.status == 400
        assert answer.json()["detail"].startswith(named)
        assert answer.json()["hint"]
    assert broker.events() == []


def test_a_conflict_in_the_middle_keeps_all_the_others_out(broker: BrokerInThread) -> None:
    broker.publish("/in/fruit", "first", x_message_id="own-1")
    answer = broker.ask(
        "POST",
        "/v1/messages",
        lines({"topics": ["fruit"], "body": "a"}, {"topics": ["fruit"], "body": "b", "id": "own-1"}),
    )
    assert (answer.status, answer.code) == (409, "ID_TAKEN")
    assert len(broker.events()) == 2


def test_no_more_than_ten_thousand_messages_are_taken_at_once(broker: BrokerInThread) -> None:
    line = '{"queue":"q","body":""}\n'
    assert len(broker.ask("POST", "/v1/messages", line * 500).json()["results"]) == 500
    answer = broker.ask("POST", "/v1/messages", line * 10_001)
    assert (answer.status, answer.code) == (413, "TOO_MANY_MESSAGES")


def test_what_is_neither_newline_json_nor_arrow_is_refused_with_a_hint(memory_broker: BrokerInThread) -> None:
    arrow = memory_broker.ask("POST", "/v1/messages", "x", content_type="application/vnd.apache.arrow.stream")
    assert (arrow.status, arrow.code) == (400, "ARROW_INVALID")
    assert "columns: value" in arrow.json()["hint"]
    packed = memory_broker.ask("POST", "/v1/messages", "x", content_encoding="gzip")
    assert (packed.status, packed.code) == (400, "ENCODING_NOT_TAKEN")
    assert memory_broker.ask("POST", "/v1/messages", "").status == 400


# ── queues ──────────────────────────────────────────────────────────────────────────────────────


def test_a_policy_is_given_back_with_figures(broker: BrokerInThread) -> None:
    policy = {
        "lease": 30,
        "retries": 5,
        "complete": "per_topic",
        "order": "key",
        "latestOnly": False,
        "kick": False,
        "ttl": "2h",
        "backoff": {"base": 0.5, "cap": "5m"},
        "maxMessages": 10,
        "maxBytes": 1000,
        "keep": "14d",
        "dead": "graveyard",
        "paused": False,
    }
    made = broker.ask("PUT", "/v1/queues/fruit", json.dumps(policy))
    assert made.status == 201
    broker.publish("/in/fruit", "12345")
    form = broker.get("/v1/queues/fruit")
    assert {name: form[name] for name in policy} == policy
    assert form["name"] == "fruit"
    assert form["figures"]["states"]["Q"] == 1
    assert (form["figures"]["ready"], form["figures"]["bytes"]) == (1, 5)
    assert broker.get("/v1/queues") == {"queues": [form]}


def test_a_put_replaces_and_what_is_left_out_takes_its_default(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/queues/fruit", '{"lease": 30, "retries": 5}')
    replaced = broker.ask("PUT", "/v1/queues/fruit", '{"retries": 7}')
    assert (replaced.status, replaced.json()["retries"]) == (200, 7)
    assert replaced.json()["lease"] == policy_json(DEFAULT)["lease"]
    assert broker.ask("PUT", "/v1/queues/fruit").json()["retries"] == DEFAULT.retries


def test_a_paused_queue_hands_out_nothing_until_it_goes_on(broker: BrokerInThread) -> None:
    broker.publish("/in/fruit", "x")
    broker.ask("PUT", "/v1/queues/fruit", '{"paused": true}')
    assert broker.ask("GET", "/queue/fruit").status == 204
    broker.ask("PUT", "/v1/queues/fruit", "{}")
    assert broker.ask("GET", "/queue/fruit?wait=5").body == b"x"


def test_a_deleted_queue_is_gone_and_its_job_cancels_what_waited(broker: BrokerInThread) -> None:
    id = broker.publish("/in/fruit")
    answer = broker.ask("DELETE", "/v1/queues/fruit")
    assert (answer.status, answer.json()["matched"]) == (202, 1)
    assert broker.ask("GET", "/v1/queues/fruit").status == 404
    assert broker.ask("DELETE", "/v1/queues/fruit").code == "QUEUE_NOT_FOUND"
    assert finished(broker, answer.json()["job"])["kind"] == "delete"
    assert broker.journey(id) == "LQC"


def test_a_purge_cancels_what_waits_and_leaves_what_is_out(broker: BrokerInThread) -> None:
    out, waiting = broker.publish("/in/fruit"), broker.publish("/in/fruit")
    broker.ask("GET", "/queue/fruit")
    answer = broker.ask("POST", "/v1/queues/fruit/purge")
    assert (answer.status, answer.json()["matched"]) == (202, 1)
    assert finished(broker, answer.json()["job"])["done"] == 1
    assert (broker.journey(out), broker.journey(waiting)) == ("LQF", "LQC")
    assert broker.ask("POST", "/v1/queues/nobody/purge").code == "QUEUE_NOT_FOUND"
    assert broker.ask("POST", "/v1/queues/fruit/purge", '{"filter":"x"}').status == 400


# ── one message ─────────────────────────────────────────────────────────────────────────────────


def test_a_completed_message_shows_the_seeds_document(broker: BrokerInThread) -> None:
    id = broker.publish("/in/customer/customer.create?topics=audit.log&key=XYZ123", "{}")
    for queue, consumer in [("customer", "c1"), ("audit", "c2")]:
        receipt = broker.ask("GET", f"/queue/{queue}?consumer={consumer}").headers["waypost-receipt"]
        broker.confirm(queue, receipt)
    document = broker.get(f"/v1/messages/{id}")
    expected = {
        "id": id,
        "topics": ["customer.create", "audit.log"],
        "object": "customer",
        "key": "XYZ123",
        "state": "X",
        "queued": False,
        "archived": True,
        "delivered": True,
        "confirmed": True,
        "success": True,
        "topicCount": 2,
        "confirmedCount": 2,
        "missing": [],
        "failed": None,
        "sameAs": None,
    }
    assert {name: document[name] for name in expected} == expected
    assert [entry["consumerId"] for entry in document["consumed"]] == ["c1", "c2"]
    for entry in document["consumed"]:
        assert set(entry) == {"consumerId", "fetchedTS", "confirmedTS", "durationMS"}
        assert entry["fetchedTS"] <= entry["confirmedTS"]
    order = [document[name] for name in ("created", "firstFetched", "processed", "completed", "modified")]
    assert order == sorted(order)
    assert [event["toState"] for event in document["journey"]] == list("LQQFSFSX")
    assert document["wait"] >= 0
    assert document["processing"] >= 0


def test_a_waiting_message_says_who_is_missing(broker: BrokerInThread) -> None:
    id = broker.publish("/in/customer/customer.create?topics=audit.log")
    document = broker.get(f"/v1/messages/{id}")
    assert (document["state"], document["queued"], document["archived"]) == ("Q", True, False)
    assert document["missing"] == [
        {"queue": "customer", "slot": 0, "consumer": None},
        {"queue": "audit", "slot": 0, "consumer": None},
    ]
    unknown = ("firstFetched", "processed", "completed", "failed", "wait", "processing")
    assert [document[name] for name in unknown] == [None] * len(unknown)
    assert document["consumed"] == []


def test_a_fetch_that_was_not_confirmed_has_its_entry_with_nulls(broker: BrokerInThread) -> None:
    id = broker.publish("/in/fruit")
    broker.ask("GET", "/queue/fruit?consumer=c1")
    (entry,) = broker.get(f"/v1/messages/{id}")["consumed"]
    assert (entry["consumerId"], entry["confirmedTS"], entry["durationMS"]) == ("c1", None, None)


def test_a_confirm_after_the_lease_counts_until_the_next_fetch(broker: BrokerInThread) -> None:
    id = broker.publish("/in/fruit")
    receipt = broker.ask("GET", "/queue/fruit?lease=20ms").headers["waypost-receipt"]
    assert [event["toState"] for event in broker.events("/log?follow=1&n=4")] == ["L", "Q", "F", "R"]
    assert broker.confirm("fruit", receipt).json()["results"][0]["state"] == "S"
    document = broker.get(f"/v1/messages/{id}")
    (entry,) = document["consumed"]
    assert (document["state"], document["confirmed"]) == ("X", True)
    assert entry["durationMS"] >= 20
    assert document["processing"] == entry["durationMS"] / 1_000


def test_a_body_is_shown_on_request_and_raw(broker: BrokerInThread) -> None:
    id = broker.publish("/in/fruit", b"\xff", content_type="image/png", content_encoding="br")
    assert "bodyBase64" not in broker.get(f"/v1/messages/{id}")
    assert broker.get(f"/v1/messages/{id}?payload=1")["bodyBase64"] == "/w=="
    raw = broker.ask("GET", f"/v1/messages/{id}/payload")
    assert (raw.body, raw.headers["content-type"], raw.headers["content-encoding"]) == (
        b"\xff",
        "image/png",
        "br",
    )
    assert broker.ask("HEAD", f"/v1/messages/{id}/payload").headers["content-length"] == "1"


def test_a_message_that_is_not_there_is_404(broker: BrokerInThread) -> None:
    known = broker.publish("/in/fruit")
    guessed = known[:-1] + ("0" if known[-1] != "0" else "1")
    for id in (guessed, "never-seen", "0190e4b2-7c1a-7000-8000-ffffffffffff"):
        for target in (f"/v1/messages/{id}", f"/v1/messages/{id}/payload"):
            answer = broker.ask("GET", target)
            assert (answer.status, answer.code) == (404, "MESSAGE_NOT_FOUND")
    wrong = broker.ask("GET", "/v1/messages/NO")
    assert (wrong.code, wrong.json()["title"]) == ("ID_INVALID", "ID invalid")


# ── search, redrive, cancel ─────────────────────────────────────────────────────────────────────


def dead_letters(broker: BrokerInThread, count: int) -> list[str]:
    ids = [broker.publish("/in/fruit", str(number)) for number in range(count)]
    for message in broker.get(f"/queue/fruit?n={count}")["messages"]:
        broker.confirm("fruit", message["receipt"], outcome="invalid", reason="broken")
    return ids


def test_search_pages_through_what_a_filter_selects(broker: BrokerInThread) -> None:
    dead = dead_letters(broker, 5)
    broker.publish("/in/fruit", "alive")
    found, after = [], 0
    while True:
        page = broker.get(f"/v1/messages?filter=queue%3Dfruit+state%3DI&limit=2&after={after}")
        found += [delivery["messageId"] for delivery in page["deliveries"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == dead
    assert len(broker.get("/v1/messages")["deliveries"]) == 6
    (one,) = broker.found(f"id={dead[0]}")
    assert (one["state"], one["reason"], one["attempt"], one["consumer"]) == ("I", "broken", 1, "anonymous")


def test_a_redrive_counts_first_and_then_brings_back_exactly_those(broker: BrokerInThread) -> None:
    dead = dead_letters(broker, 3)
    filter = f"id={dead[1]}"
    dry = broker.ask("POST", "/v1/redrive", json.dumps({"filter": filter, "dryRun": True}))
    assert (dry.status, dry.json()) == (200, {"matched": 1, "states": {"I": 1}})
    assert len(broker.found("state=I")) == 3
    started = broker.ask("POST", "/v1/redrive", json.dumps({"filter": filter}))
    assert (started.status, started.json()["matched"]) == (202, 1)
    job = finished(broker, started.json()["job"])
    assert (job["kind"], job["done"], job["matched"]) == ("redrive", 1, 1)
    assert broker.ask("GET", "/queue/fruit").headers["x-message-id"] == dead[1]
    assert broker.journey(dead[1]) == "LQFIQF"


def test_a_redrive_of_what_one_consumer_broke_goes_to_that_consumer_alone(broker: BrokerInThread) -> None:
    """The on-call engineer's morning: exactly those messages, to exactly that consumer, dry run first."""
    ids = [broker.publish("/in/fruit.apple", str(number)) for number in range(6)]
    for number, id in enumerate(ids):
        consumer = "billing" if number % 2 else "shipping"
        receipt = broker.ask("GET", f"/queue/fruit?consumer={consumer}").headers["waypost-receipt"]
        broker.confirm("fruit", receipt, outcome="invalid", reason="broken")
        assert broker.get(f"/v1/messages/{id}")["state"] == "E"
    since = broker.events()[0]["at"]
    selection = {"filter": f"consumer=billing state=IE since={since} topic=fruit.*", "consumer": "billing"}
    dry = broker.ask("POST", "/v1/redrive", json.dumps({**selection, "dryRun": True}))
    assert dry.json() == {"matched": 3, "states": {"I": 3}}
    started = broker.ask("POST", "/v1/redrive", json.dumps(selection))
    job = finished(broker, started.json()["job"])
    assert (job["matched"], job["done"], job["consumer"], job["rate"]) == (3, 3, "billing", None)
    assert broker.get(f"/v1/messages/{ids[1]}")["missing"] == [
        {"queue": "fruit", "slot": 0, "consumer": "billing"}
    ]
    assert broker.ask("GET", "/queue/fruit?consumer=shipping").status == 204
    messages = broker.get("/queue/fruit?consumer=billing&n=9")["messages"]
    assert [message["id"] for message in messages] == [ids[1], ids[3], ids[5]]


def test_a_filter_selects_by_object_key_topic_and_time(broker: BrokerInThread) -> None:
    apple = broker.publish("/in/customer/fruit.sweet.apple?key=A%20B", "1")
    pear = broker.publish("/in/customer/fruit.sweet.pear?key=B", "2")
    between = broker.get(f"/v1/messages/{pear}")["created"]
    for filter, expected in [
        ('object=customer key="A B"', [apple]),
        ("topic=fruit.sweet.*", [apple, pear]),
        ("topic=fruit.sweet.pear", [pear]),
        (f"until={between}", [apple]),
        (f"since={between}", [pear]),
        ("object=customer state=S", []),
        ("consumer=nobody", []),
    ]:
        assert [one["messageId"] for one in broker.found(f"{filter} queue=customer")] == expected, filter


def test_a_replay_takes_what_succeeded_too_and_keeps_its_order(broker: BrokerInThread) -> None:
    ids = [broker.publish("/in/fruit", str(number)) for number in range(5)]
    for message in broker.get("/queue/fruit?n=5")["messages"]:
        broker.confirm("fruit", message["receipt"])
    assert broker.ask("POST", "/v1/redrive", '{"filter":"queue=fruit","dryRun":true}').json()["matched"] == 0
    asked = json.dumps({"filter": "queue=fruit", "dryRun": True})
    assert broker.ask("POST", "/v1/replay", asked).json() == {"matched": 5, "states": {"S": 5}}
    started = broker.ask("POST", "/v1/replay", '{"filter":"queue=fruit"}')
    assert (started.status, started.json()["matched"]) == (202, 5)
    assert finished(broker, started.json()["job"])["kind"] == "replay"
    assert [m["id"] for m in broker.get("/queue/fruit?n=9")["messages"]] == ids
    assert broker.get(f"/v1/messages/{ids[0]}")["journey"][-2]["reason"] == "replayed"


def test_a_rate_stretches_a_job(broker: BrokerInThread) -> None:
    dead_letters(broker, 4)
    began = time.monotonic()
    started = broker.ask("POST", "/v1/redrive", '{"filter":"queue=fruit state=I","rate":20}').json()
    job = finished(broker, started["job"])
    assert (job["done"], job["rate"]) == (4, 20)
    assert time.monotonic() - began >= 3 / 20


def test_nobody_is_named_for_what_is_cancelled(memory_broker: BrokerInThread) -> None:
    answer = memory_broker.ask("POST", "/v1/cancel", '{"filter":"state=Q","consumer":"billing"}')
    assert (answer.status, answer.code) == (400, "REQUEST_INVALID")
    wrong = memory_broker.ask("POST", "/v1/redrive", '{"filter":"state=E","consumer":"UPPER"}')
    assert (wrong.status, wrong.code) == (400, "NAME_INVALID")


def test_what_wins_is_one_when_two_confirm_the_same_delivery(broker: BrokerInThread) -> None:
    id = broker.publish("/in/fruit")
    first = broker.ask("GET", "/queue/fruit?consumer=c1&lease=20ms").headers["waypost-receipt"]
    second = broker.ask("GET", "/queue/fruit?consumer=c2&wait=5&lease=10").headers["waypost-receipt"]
    with ThreadPoolExecutor(2) as pool:
        results = [
            answer.json()["results"][0]
            for answer in pool.map(lambda receipt: broker.confirm("fruit", receipt), (first, second))
        ]
    assert results == [{"receipt": first, "stale": True}, {"receipt": second, "id": id, "state": "S"}]
    assert [one["confirmedTS"] is not None for one in broker.get(f"/v1/messages/{id}")["consumed"]] == [
        False,
        True,
    ]


def test_a_cancel_takes_out_what_waits(broker: BrokerInThread) -> None:
    ids = [broker.publish("/in/fruit"), broker.publish("/in/meat")]
    answer = broker.ask("POST", "/v1/cancel", '{"filter":"queue=fruit"}')
    finished(broker, answer.json()["job"])
    assert [broker.journey(id) for id in ids] == ["LQC", "LQ"]


@pytest.mark.parametrize("path", ["/v1/redrive", "/v1/replay", "/v1/cancel"])
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("", "JSON_INVALID"),
        ("{}", "JSON_INVALID"),
        ('{"filter":1}', "JSON_INVALID"),
        ('{"filter":""}', "FILTER_INVALID"),
        ('{"filter":"color=red"}', "FILTER_INVALID"),
        ('{"filter":"state=Z"}', "FILTER_INVALID"),
        ('{"filter":"queue=UPPER"}', "NAME_INVALID"),
        ('{"filter":"since=never"}', "INSTANT_INVALID"),
        ('{"filter":"state=E","dryRun":"yes"}', "JSON_INVALID"),
        ('{"filter":"state=E","dry_run":true}', "JSON_INVALID"),
        ('{"filter":"state=E","rate":0}', "RATE_INVALID"),
        ('{"filter":"state=E","rate":1e9}', "RATE_INVALID"),
        ('{"filter":"state=E","rate":"5"}', "JSON_INVALID"),
        ('{"filter":"state=E","rate":true}', "JSON_INVALID"),
        ('{"filter":"state=E","consumer":1}', "JSON_INVALID"),
    ],
)
def test_a_selection_that_cannot_be_read_starts_nothing(
    memory_broker: BrokerInThread, path: str, body: str, code: str
) -> None:
    answer = memory_broker.ask("POST", path, body)
    assert (answer.status, answer.code) == (400, code)
    assert answer.json()["hint"]


@pytest.mark.parametrize("path", ["/v1/redrive", "/v1/replay", "/v1/cancel"])
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_selection_of_a_queue_that_does_not_exist_is_404(
    broker: BrokerInThread, path: str, dry_run: bool
) -> None:
    answer = broker.ask("POST", path, json.dumps({"filter": "queue=nowhere", "dryRun": dry_run}))
    assert (answer.status, answer.code) == (404, "QUEUE_NOT_FOUND")


def test_an_empty_selection_hears_what_is_expected(memory_broker: BrokerInThread) -> None:
    problem = memory_broker.ask("POST", "/v1/redrive").json()
    assert (problem["title"], problem["detail"]) == (
        "JSON invalid",
        "an empty body, where a filter is expected",
    )
    assert '"filter"' in problem["hint"]


def test_a_job_that_was_never_started_is_404(broker: BrokerInThread) -> None:
    for id in ("1", "nothing", "-1", "9" * 30, "%00"):
        assert broker.ask("GET", f"/v1/jobs/{id}").code == "JOB_NOT_FOUND"


# ── figures ─────────────────────────────────────────────────────────────────────────────────────


def test_stats_count_what_happened(broker: BrokerInThread) -> None:
    broker.publish("/in/fruit", "12345")
    broker.ask("GET", "/queue/fruit")
    stats = broker.get("/v1/stats")
    assert stats["log"] == {"oldest": 1, "head": 3}
    assert stats["queues"]["count"] == 1
    assert (stats["queues"]["states"]["F"], stats["queues"]["bytes"]) == (1, 5)
    assert stats["commits"]["groups"] >= 2
    assert stats["http"]["answers"]["2xx"] == 2


def test_channels_and_spectators_show_in_stats_and_metrics(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/channels/audit", '{"topics":["fruit.*"]}')
    broker.publish("/in/fruit.apple", "12345")
    broker.ask("PUT", "/v1/spectators/auditor", '{"offset":1}')
    stats = broker.get("/v1/stats")
    channels = stats["channels"]
    assert (channels["count"], channels["depth"], channels["ready"], channels["bytes"]) == (1, 1, 1, 5)
    assert stats["queues"]["depth"] == 1
    assert stats["spectators"] == {"auditor": {"offset": 1, "lag": 2}}
    samples = metrics(broker)
    assert samples["waypost_channel_deliveries", "audit", "Q"] == 1
    assert samples["waypost_channel_ready", "audit"] == 1
    assert samples["waypost_channel_bytes", "audit"] == 5
    assert samples["waypost_spectator_lag", "auditor"] == 2


def metrics(broker: BrokerInThread) -> dict[tuple[str, ...], float]:
    """By name and labels."""
    text = broker.ask("GET", "/metrics").body.decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_are_readable_by_prometheus(broker: BrokerInThread) -> None:
    broker.publish("/in/fruit", "12345")
    broker.ask("GET", "/nobody")
    answer = broker.ask("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }
    deliveries = {
        names[2]: count for names, count in samples.items() if names[0] == "waypost_queue_deliveries"
    }
    assert deliveries == {**dict.fromkeys("QFRSKEINOTC", 0), "Q": 1}
    assert samples["waypost_queue_ready", "fruit"] == 1
    assert samples["waypost_queue_bytes", "fruit"] == 5
    assert samples["waypost_log_head",] == 2
    assert samples["waypost_commit_groups_total",] >= 1
    assert samples["waypost_http_answers_total", "4xx"] == 1


def test_health_says_whether_it_serves(broker: BrokerInThread, monkeypatch: pytest.MonkeyPatch) -> None:
    assert broker.get("/health/live") == {"status": "live"}
    assert broker.get("/health/ready") == {
        "status": "ready",
        "publishes": "taken",
        "lake": None,
        "routing": {"oldestSeconds": 0.0, "warning": None},
    }
    monkeypatch.setattr(broker.serving.broker, "_stopping", True)
    answer = broker.ask("GET", "/health/ready")
    assert (answer.status, answer.json()) == (503, {"status": "stopping"})
    assert broker.get("/health/live") == {"status": "live"}
    busy = broker.ask("POST", "/in/fruit", "x")
    assert (busy.status, busy.code, busy.headers["retry-after"]) == (503, "BUSY", "1")
