"""From nothing but a wheel and `deploy/`: the whole product on loopback, as the image runs it.

The push tutorial is done, one host killed, one upgraded, then all, and a backup restored.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from standardwebhooks.webhooks import Webhook

import emq_servers as servers
from support.http_receiver import HttpReceiver
from support.kept import PostgresDatabase, Valkey
from support.releasing import release
from support.waiting import until
from support.whole_product import NEXT, ROOT, STRANGER, Installed, Product, follow_push_tutorial, next_release

pytestmark = pytest.mark.xdist_group("from_nothing")  # who has installed it uses it for all

VERSION = release.version_of(ROOT)
TENANTS = 12
MESSAGES = 5
OF_ROUND = TENANTS * MESSAGES


class Versions(NamedTuple):
    """This version, and a next one."""

    this: Installed
    next: Installed


@pytest.fixture(scope="module")
def versions() -> Iterator[Versions]:
    directory = Path(tempfile.mkdtemp(prefix="emq-from-nothing-"))
    directory.chmod(0o755)
    made = Versions(Installed(directory / "this"), Installed(directory / "next"))
    try:
        wheel = release.packages(ROOT, directory / "dist")
        [sdist] = (directory / "dist").glob("*.tar.gz")
        wheels = wheel, next_release(sdist, directory / "next-source")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(Installed.install, made, wheels))
        yield made
    finally:
        for installed in made:
            installed.close()
        shutil.rmtree(directory)


class Kept(NamedTuple):
    """What the servers keep, and the settings of all processes for them."""

    store: Valkey
    database: PostgresDatabase
    settings: dict[str, str]


@pytest.fixture
def kept(
    versions: Versions,
    redis_server: servers.RedisServer,
    zookeeper_server: servers.ZooKeeperServer,
    postgres_server: servers.PostgresServer,
    tmp_path: Path,
) -> Iterator[Kept]:
    """A store and a database without anything in them."""
    name = f"nothing_{uuid.uuid4().hex[:8]}"
    with contextlib.ExitStack() as stack:
        store = Valkey(tmp_path / "store", stack)
        database = PostgresDatabase(tmp_path / "database", postgres_server, name)
        yield Kept(
            store,
            database,
            {
                "EMQ_STORE": store.url,
                "EMQ_DATABASE": database.url,
                "EMQ_CLUSTER": f"{zookeeper_server.url}/{name}",
                "EMQ_SECRET_KEY": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
                "EMQ_PUSH_ALLOW": "127.0.0.1",
                "EMQ_SESSION_TIMEOUT_S": "6",
                "EMQ_TRAIL": str(versions.this.data / "trail"),
            },
        )


async def test_the_whole_product_runs_from_a_wheel_through_deaths_upgrades_and_a_restored_backup(
    versions: Versions, kept: Kept
) -> None:
    old, new, settings = versions.this, versions.next, kept.settings
    before = old.files(), new.files()
    assert "are those of this version" in old.run("upgrade --tables", settings)
    product = Product(settings)
    product.start(old, "emq-host-0", "emq-host-1", "api")
    await until(product.is_ready, 60)
    assert not old.as_stranger or product.user == STRANGER
    assert all(product.status(name, "/livez") == 200 for name in ("emq-host-0", "emq-host-1", "api"))
    await asyncio.to_thread(follow_push_tutorial, old, settings, product.api)

    key = old.run("api key create --name fleet", settings).strip()
    receiver = HttpReceiver(lambda _: 204)
    async with (
        receiver.running(),
        httpx.AsyncClient(base_url=product.api, headers={"Authorization": f"Bearer {key}"}, timeout=20) as api,
    ):
        secrets = await tenants(api, receiver)
        await delivered(api, receiver, 1)
        assert (await api.get("/ui/sign-in")).status_code == 200

        product.kill("emq-host-0")
        await delivered(api, receiver, 2)
        product.start(old, "emq-host-0")
        await until(product.is_ready, 60)

        await upgrade(product, versions, delivered(api, receiver, 3))
        await delivered(api, receiver, 4)

        # What waits in the store when the copies are taken is there after they were restored.
        await product.stop("emq-host-0", "emq-host-1")
        await published(api, 5)
        await asyncio.to_thread(kept.database.copy)
        await asyncio.to_thread(kept.store.copy)
        await product.stop("api")
        await asyncio.to_thread(kept.store.restore)
        await asyncio.to_thread(kept.database.restore)
        assert "the copies fit together" in new.run("backup check", settings)
        product.start(new, "emq-host-0", "emq-host-1", "api")
        await arrived(receiver, 5)
        await until(product.is_ready, 60)
        await delivered(api, receiver, 6)
        for request in receiver.requests:
            Webhook(secrets[request.path]).verify(request.body, request.headers)
    await product.stop("emq-host-0", "emq-host-1", "api")
    # The proof runs from the same directory, and says that the killed host did not close its part of the trail.
    proof = new.run(f"trail verify {settings['EMQ_TRAIL']} --duplicates {OF_ROUND}", settings, code=3)
    assert re.search(rf"published\W+{6 * OF_ROUND + 2}\b", proof), proof  # 2: of the tutorial
    assert len(re.findall(r"void: emq-host-0-\d+: not closed", proof)) == 1, proof
    assert "emq-host-1" not in proof, proof
    assert (old.files(), new.files()) == before, "a process wrote into the image"


async def upgrade(product: Product, versions: Versions, meanwhile: Any) -> None:
    """Follow docs/upgrades.md from one version to the next; await `meanwhile` while the hosts are of both."""
    old, new, settings = versions.this, versions.next, product.settings
    assert "are those of this version" in new.run("upgrade --tables", settings)
    await product.stop("emq-host-1")
    product.start(new, "emq-host-1")
    await until(product.is_ready, 60)
    assert product.versions() == {"emq-host-0": VERSION, "emq-host-1": NEXT}
    await meanwhile
    refused = new.run("upgrade --level 2", settings, code=1)
    assert "hosts that cannot read feature level 2: emq-host-0 (up to 1); upgrade them first" in refused
    assert "the database is at revision 'second', which this version of EMQ" in old.run("topic list", settings, code=2)
    await product.stop("emq-host-0")
    product.start(new, "emq-host-0")
    await product.stop("api")
    product.start(new, "api")
    await until(product.is_ready, 60)
    assert product.versions() == {"emq-host-0": NEXT, "emq-host-1": NEXT}
    assert "is at feature level 2, before 1" in new.run("upgrade --level 2", settings)


def test_the_list_of_parts_has_what_the_image_has(versions: Versions, tmp_path: Path) -> None:
    release.sbom(versions.this.home, tmp_path / "emq.cdx.json")  # its tool checks it by the schema of CycloneDX
    told = json.loads((tmp_path / "emq.cdx.json").read_text())
    assert (told["bomFormat"], told["metadata"]["component"]["version"]) == ("CycloneDX", VERSION)
    parts = {canonicalize_name(part["name"]): part["version"] for part in told["components"]}
    [packages] = versions.this.home.glob("lib/python3*/site-packages")
    there = {canonicalize_name(path.name.rsplit("-", 2)[0]) for path in packages.glob("*.dist-info")}
    assert parts.keys() == there - {"emq"}
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = {(found := Requirement(line)).name: str(found.specifier) for line in lines}
    assert {name: f"=={version}" for name, version in parts.items()}.items() <= pinned.items()


async def tenants(api: httpx.AsyncClient, receiver: HttpReceiver) -> dict[str, str]:
    """Make tenants with an endpoint each; return the secrets by the path of the endpoint."""
    secrets = {}
    for number in range(TENANTS):
        path = f"/v1/tenants/tenant-{number}"
        assert (await api.put(path, json={"qps": 50, "name": f"Tenant {number}"})).status_code == 201
        made = await api.post(
            f"{path}/endpoints", json={"url": receiver.url(f"/hook-{number}"), "event_types": ["order.*"]}
        )
        assert made.status_code == 201, made.text
        secrets[f"/hook-{number}"] = made.json()["secret"]
    return secrets


async def published(api: httpx.AsyncClient, round_: int) -> None:
    """Publish messages to all tenants."""
    for number in range(TENANTS):
        messages = [{"event_type": "order.paid", "payload": {"order": n, "round": round_}} for n in range(MESSAGES)]
        answer = await api.post(f"/v1/tenants/tenant-{number}/messages", json={"messages": messages})
        assert answer.status_code == 202, answer.text
        assert all(len(receipt["deliveries"]) == 1 for receipt in answer.json()["data"])


async def arrived(receiver: HttpReceiver, rounds: int) -> None:
    """Wait until all messages of so many rounds are delivered."""
    await until(lambda: len({request.headers["webhook-id"] for request in receiver.requests}) == rounds * OF_ROUND, 60)


async def delivered(api: httpx.AsyncClient, receiver: HttpReceiver, round_: int) -> None:
    """Publish a round, and wait until all messages of all rounds are delivered."""
    await published(api, round_)
    await arrived(receiver, round_)
