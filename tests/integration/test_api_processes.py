"""`emq up --api`, and `emq api` beside hosts on PostgreSQL, as processes of their own."""

from __future__ import annotations

import http.server
import re
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from standardwebhooks.webhooks import Webhook

from support import push_judge
from support.emq_processes import Shell, line_with, until

MOST_ATTEMPTS = 3


class Endpoint(http.server.ThreadingHTTPServer):
    """Keeps the requests that it gets.

    Attributes:
        answers: by message, the statuses to answer, of which the last repeats; 204 for others.
        answered: each message with the status that it got, in the order of the requests.
    """

    request_queue_size = 128

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.answers: dict[str, list[int]] = {}
        self.answered: list[tuple[str, int]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    def by_message(self) -> dict[str, list[int]]:
        """Return the statuses that each message got."""
        found: dict[str, list[int]] = {}
        for id_, status in self.answered:
            found.setdefault(id_, []).append(status)
        return found

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Endpoint)
        body, id_ = self.rfile.read(int(self.headers["Content-Length"])), self.headers["webhook-id"]
        self.server.requests.append(({k.lower(): v for k, v in self.headers.items()}, body))
        status, *later = self.server.answers.get(id_, [204])
        if later:
            self.server.answers[id_] = later
        self.server.answered.append((id_, status))
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def emq(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("EMQ_PUSH_ALLOW", "127.0.0.1")
    return emq


def client(process: Any, key: str) -> httpx.Client:
    found = re.search(r"http://\S+:\d+", line_with(process, "serving the API"))
    assert found is not None
    return httpx.Client(base_url=found.group(), headers={"Authorization": f"Bearer {key}"}, timeout=20)


def set_up(api: httpx.Client, tenant: str, url: str, qps: int = 50, **more: Any) -> str:
    assert api.put(f"/v1/tenants/{tenant}", json={"qps": 500}).status_code == 201
    made = api.post(f"/v1/tenants/{tenant}/endpoints", json={"url": url, "qps": qps, **more})
    assert made.status_code == 201, made.text
    secret: str = made.json()["secret"]
    return secret


def test_the_api_alone_needs_a_store_for_several_processes(emq: Shell) -> None:
    _, error = emq("api --at 127.0.0.1:0", code=2)
    assert "emq up --api" in error


def test_two_apis_and_a_host_share_postgresql_and_survive_a_kill(
    emq: Shell, endpoint: Endpoint, postgres_url: str
) -> None:
    where = f"--store {postgres_url} --database {postgres_url} --env sandbox"
    tenant = f"t{uuid.uuid4().hex[:8]}"
    key = emq(f"api key create {where}")[0].strip()
    first, second = emq.start(f"api --at 127.0.0.1:0 {where}"), emq.start(f"api --at 127.0.0.1:0 {where}")
    host = emq.start(f"host {where}")
    with client(first, key) as one, client(second, key) as other:
        secret = set_up(one, tenant, endpoint.url)
        path, sent = f"/v1/tenants/{tenant}/messages", 0
        for api in (one, other) * 5:
            messages = [{"event_type": "a", "payload": n, "id": f"m{sent + n}"} for n in range(20)]
            answer = api.post(path, json={"messages": messages})
            assert answer.status_code == 202, answer.text
            assert all(len(receipt["deliveries"]) == 1 for receipt in answer.json()["data"])
            sent += 20
        # A repeat on the other one is the same message, and sends nothing.
        again = {"event_type": "a", "payload": 0, "id": "m0"}
        assert one.post(path, json=again).json() == other.post(path, json=again).json()
        headers = {"Idempotency-Key": "k1"}
        answers = [api.post(path, json={"event_type": "b", "payload": 1}, headers=headers) for api in (one, other)]
        assert answers[0].json() == answers[1].json()
        stop = threading.Event()
        accepted: list[str] = []
        thread = threading.Thread(target=_flood, args=(one, path, stop, accepted))
        thread.start()
        until(lambda: len(accepted) > 20)
        first.kill()
        stop.set()
        thread.join()
        for id_ in accepted:
            assert other.get(f"{path}/{id_}").json()["deliveries"]
        _until_none_is_missing({*accepted, *(f"m{n}" for n in range(200))}, endpoint)
        assert push_judge.lies(_ended(other, tenant), endpoint.by_message(), MOST_ATTEMPTS) == []
    for headers, body in endpoint.requests:
        Webhook(secret).verify(body, headers)
    for process in (second, host):
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def _ids(endpoint: Endpoint) -> set[str]:
    return {headers["webhook-id"] for headers, _ in endpoint.requests}


def _until_none_is_missing(wanted: set[str], endpoint: Endpoint, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while missing := wanted - _ids(endpoint):
        assert time.monotonic() < deadline, f"{len(missing)} of {len(wanted)} were not delivered: {sorted(missing)[:5]}"
        time.sleep(0.1)


def _flood(api: httpx.Client, path: str, stop: threading.Event, accepted: list[str]) -> None:
    while not stop.is_set():
        try:
            answer = api.post(path, json={"event_type": "a", "payload": 0})
        except httpx.TransportError:
            return
        if answer.status_code == 202:
            accepted.append(answer.json()["id"])


@pytest.mark.parametrize("on", ["sqlite", "postgresql"])
def test_the_log_of_deliveries_is_true_after_hosts_were_killed(
    on: str, emq: Shell, endpoint: Endpoint, request: pytest.FixtureRequest
) -> None:
    """Each state and number of attempts is what the receiver saw: of messages taken, taken at last, and refused."""
    tenant, count = f"t{uuid.uuid4().hex[:8]}", 300
    kinds = {f"m{n}": ([400] if n % 60 == 7 else [503, 204] if n % 20 == 3 else [204]) for n in range(count)}
    endpoint.answers.update(kinds)
    path, where = f"/v1/tenants/{tenant}", ""
    if on == "postgresql":
        url = request.getfixturevalue("postgres_url")
        where = f"--store {url} --database {url} --env sandbox"
    key, command = emq(f"api key create {where}")[0].strip(), f"up --api 127.0.0.1:0 {where}"
    process = emq.start(command)
    with client(process, key) as api:
        set_up(api, tenant, endpoint.url, 100, retry_schedule_s=[1] * (MOST_ATTEMPTS - 1))
        for start in range(0, count, 100):
            messages = [{"event_type": "a", "payload": n, "id": f"m{start + n}"} for n in range(100)]
            assert api.post(f"{path}/messages", json={"messages": messages}).status_code == 202
    for kill in range(3):
        until(lambda kill=kill: len(_ids(endpoint)) > min(count - 1, 20 + kill * 90))  # type: ignore[misc]
        process.kill()
        process = emq.start(command)
    with client(process, key) as api:
        _until_none_is_missing({*kinds}, endpoint)
        found = _ended(api, tenant)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert len(endpoint.answered) > sum(MOST_ATTEMPTS if kind == [400] else len(kind) for kind in kinds.values()), (
        "no kill repeated a delivery"
    )
    assert push_judge.lies(found, endpoint.by_message(), MOST_ATTEMPTS) == []
    states = Counter(each["state"] for each in found)
    assert states == {"delivered": count - states["dead"], "dead": sum(kind == [400] for kind in kinds.values())}


def _ended(api: httpx.Client, tenant: str) -> list[dict[str, Any]]:
    """Return the deliveries once all of them have ended; retries, also of requests with lost answers, take a while."""
    deadline = time.monotonic() + 60
    while True:
        found = list(_deliveries(api, tenant))
        if all(each["state"] in ("delivered", "dead") for each in found) or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def _deliveries(api: httpx.Client, tenant: str) -> Iterator[dict[str, Any]]:
    cursor = ""
    while True:
        answer = api.get(
            f"/v1/tenants/{tenant}/deliveries", params={"limit": 100, **({"cursor": cursor} if cursor else {})}
        )
        assert answer.status_code == 200, answer.text
        yield from answer.json()["data"]
        if not (cursor := answer.json()["next"]):
            return
