"""Runs the examples of the OpenAPI document as one story; `python -m support.api_examples` writes their answers anew.

What differs from run to run is learned on the way: where an answer has another id, secret, cursor or time than the
example, the next requests use that of the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import re
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from emq_clients.push import answers
from emq_web import documenting
from support import push_api
from support.http_receiver import HttpReceiver
from support.push_api import Api
from support.push_api_calls import hosting
from support.waiting import until

_ID = re.compile(r"[\w-]+#[\w-]+|(msg|ep|key|rpl|aud)_\w+|whsec_\S+|whpk_\S+|emqk_\S+|\S+#emql_\S+")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
_CLOCK = re.compile(r"\d\d:\d\d:\d\d(\.\d+)?")
_CURSOR = re.compile(r"W[\w-]{20,}")
"""The begin of a JSON list in base64."""
_LIVE = ("/hosts", "/plan", "/trace", "/lag", "rate-limit-status", "/attempts", "/deliveries", "what-if", "audit-log")
"""Parts of paths whose answers have numbers that are measured."""
_MOVING = {"state", "status", "settled", "next_attempt", "hold", "reason"}
"""Fields that a host changes at once, perhaps before the answer."""
HOST = "host-1"
ADMIN = "key_0660f396f0a1b2c30000aTHA3ho0C"


class Differs(AssertionError):
    """An answer is another one than that of the example."""


class Story:
    """The examples, and what they are called in this run.

    Args:
        names: what requests have, by what the examples have in its place.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = dict(names)

    def said(self, value: Any, names: Mapping[str, str] | None = None) -> Any:
        """Return a value of an example as this run has it."""
        text = json.dumps(value)
        for known, actual in (self._names if names is None else names).items():
            text = text.replace(known, actual)
        return json.loads(text)

    def plain(self, value: Any) -> Any:
        """Return a value of this run as an example may show it."""
        return self.said(value, {actual: known for known, actual in self._names.items()})

    def request(self, example: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the example's request."""
        method, path = example["operation"].split(" ")
        given = {name: urllib.parse.quote(value, safe="") for name, value in self.said(example.get("path", {})).items()}
        query = self.said(example.get("query", {}))
        more = {"params": query, "headers": example.get("headers", {})}
        return {"method": method, "path": path.format(**given), "body": self.said(example.get("body")), **more}

    def check(self, example: Mapping[str, Any], response: httpx.Response) -> None:
        """Raise `Differs` unless the answer is that of the example."""
        if response.status_code != example["status"]:
            raise Differs(f"{example['operation']}: {response.status_code} {response.text}")
        if response.content or "answer" in example:
            is_live = any(part in example["operation"] for part in _LIVE)
            self._compare(example["answer"], response.json(), example["operation"], is_live=is_live)

    def _compare(self, wanted: Any, found: Any, at: str, *, is_live: bool) -> None:
        if isinstance(wanted, dict) and isinstance(found, dict):
            if wanted.keys() != found.keys():
                raise Differs(f"{at}: {sorted(wanted)} and {sorted(found)}")
            moving = _MOVING if at.endswith(":resend") else ()
            for name in [name for name in wanted if name not in moving]:
                self._compare(wanted[name], found[name], f"{at} {name}", is_live=is_live)
        elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
            for number, (one, other) in enumerate(zip(wanted, found, strict=True)):
                self._compare(one, other, f"{at} {number}", is_live=is_live)
        elif at.endswith(" last_seconds") and isinstance(found, list):
            return
        elif not self._is_same(wanted, found, is_live=is_live):
            raise Differs(f"{at}: {wanted!r} and {found!r}")

    def learn(self, wanted: Any, found: Any) -> None:
        """Learn ids and secrets from an answer that may differ from the example in anything else."""
        if isinstance(wanted, dict) and isinstance(found, dict):
            for name in wanted.keys() & found.keys():
                self.learn(wanted[name], found[name])
        elif isinstance(wanted, str) and isinstance(found, str):
            self._is_same(wanted, found, is_live=True)

    def _is_same(self, wanted: Any, found: Any, *, is_live: bool) -> bool:
        if isinstance(wanted, str) and isinstance(found, str):
            if (_ID.fullmatch(wanted) or _CURSOR.fullmatch(wanted)) and wanted not in self._names:
                self._names[wanted] = found
            alike = any(kind.fullmatch(wanted) and kind.fullmatch(found) for kind in (_TIME, _CURSOR))
            return alike or _CLOCK.sub("", self.said(wanted)) == _CLOCK.sub("", found)
        numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (wanted, found))
        return wanted == found or (is_live and numbers)


def examples() -> list[dict[str, Any]]:
    """Return all examples in order."""
    found: list[dict[str, Any]] = json.loads(documenting.EXAMPLES.read_text())
    return found


async def _plan() -> answers.Plan:
    planned = datetime.datetime(2026, 11, 26, 7, 30, tzinfo=datetime.UTC)
    hosts = [answers.PlannedHost(HOST, 2, True, buckets=512), answers.PlannedHost("host-2", 1, True, buckets=512)]
    return answers.Plan(7, planned, HOST, HOST, 3, {"held": 3}, hosts, 1_024, {"held": 1_024})


@contextlib.asynccontextmanager
async def stage() -> AsyncIterator[tuple[Api, Story]]:
    """Run a host and the API, and endpoints that the examples reach: one that takes all, and one that refuses all."""
    receiver = HttpReceiver(lambda request: 500 if request.path == "/broken" else 204)
    async with receiver.running(), push_api.opened(push_allow="127.0.0.1", host_name=HOST) as api, hosting(api):
        names = {f"https://shop.example{path}": receiver.url(path) for path in ("/hook", "/other", "/broken")}
        admin = await api.service.keys.owner(api.admin)
        assert admin is not None
        names[ADMIN] = admin.id
        api.service.cluster.plan = _plan  # one host alone has none
        yield api, Story(names)


async def run(api: Api, story: Story, example: Mapping[str, Any]) -> None:
    """Send the request of an example; raise `Differs` unless the answer is that of the example, in time."""
    asked, failure = story.request(example), Differs("nothing was asked")

    async def is_so() -> bool:
        nonlocal failure
        try:
            story.check(example, await api.raw(**asked))
        except Differs as exc:
            failure = exc
        else:
            return True
        return False

    if asked["method"] != "GET":
        assert await is_so(), failure
        return
    try:  # hosts tell of themselves, and of what they have done, each second
        await until(is_so, 20)
    except AssertionError:
        raise failure from None


async def record() -> None:
    """Write the answers of all examples anew."""
    found = examples()
    async with stage() as (api, story):
        for example in found:
            if example["operation"].startswith("GET "):
                await asyncio.sleep(2)  # hosts tell of themselves, and of what they have done, each second
            response = await api.raw(**story.request(example))
            assert response.status_code < 300, (example, response.text)
            example["status"] = response.status_code
            before = example.pop("answer", None)
            if response.content:
                story.learn(before, response.json())
                example["answer"] = story.plain(response.json())
    documenting.EXAMPLES.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    asyncio.run(record())
