"""From nothing but a wheel and `deploy/`: the whole product on loopback, as the image runs it, with a host killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
import yaml
from standardwebhooks.webhooks import Webhook

import emq_servers as servers
from emq.database import urls
from support.http_receiver import HttpReceiver
from support.waiting import until

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())["services"]
COMMANDS = {name: tuple(COMPOSE[name]["command"]) for name in ("tables", "host", "api")}
"""Those of compose, which are those of the chart and of the units."""
STRANGER = 10001
"""The user of the image, to whom no file in it belongs."""
TENANTS = 12
MESSAGES = 5


class Installed:
    """EMQ in a directory of its own, by the steps of the image; its processes run as those of a container do.

    Each has an environment with nothing in it but its settings, and a working directory in which it may not write. If
    this test is root, each is the image's user instead, and can write nowhere but where the trail is.

    Attributes:
        as_stranger: what runs a command as that user; empty if this test is not root.
        data: where the processes may write.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / "opt/emq"
        self.data = directory / "var/lib/emq"
        self.data.mkdir(parents=True)
        self.as_stranger: tuple[str, ...] = ()
        self._running: list[subprocess.Popen[bytes]] = []
        if os.geteuid() == 0 and (drop := shutil.which("setpriv")) is not None:
            self.as_stranger = (drop, f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", "--no-new-privs")
            shutil.chown(self.data, STRANGER, STRANGER)

    def install(self) -> None:
        """Follow the steps of the image, from the package cache alone if it has everything."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        given = {**os.environ, "PYTHON": self._interpreter(), "PATH": path}
        command = [str(ROOT / "deploy/image/install"), str(ROOT), str(self.home)]
        done = subprocess.run(command, env={**given, "UV_OFFLINE": "1"}, capture_output=True, text=True, check=False)
        if done.returncode:
            done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def _interpreter(self) -> str:
        """Return a Python that the processes can run, rather one of the system than the one of this test."""
        question = ("-c", "import sys; sys.exit(sys.version_info < (3, 11))")
        own = str(getattr(sys, "_base_executable", sys.executable))
        for found in ("/usr/bin/python3", own):
            with contextlib.suppress(OSError):
                asked = subprocess.run([*self.as_stranger, found, *question], capture_output=True, check=False)
                if asked.returncode == 0:
                    return found
        self.as_stranger = ()  # no Python is of use to a stranger here
        return own

    def start(self, command: tuple[str, ...], settings: Mapping[str, str], log: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{log}.log").open("wb") as file:
            process = subprocess.Popen(
                [*self.as_stranger, str(self.home / "bin/emq"), *command],
                env={**settings, "PYTHONDONTWRITEBYTECODE": "1"},
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self._running.append(process)
        return process

    def run(self, command: str, settings: Mapping[str, str], code: int = 0) -> str:
        """Run a command to its end; return what it printed."""
        process = self.start(tuple(command.split()), settings, "command")
        assert process.wait(60) == code, self.log("command")
        return self.log("command")

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def files(self) -> dict[str, int]:
        """Return the files of the installation with the times of their last changes."""
        return {str(path): path.lstat().st_mtime_ns for path in self.home.rglob("*")}

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


@pytest.fixture
def installed() -> Iterator[Installed]:
    directory = Path(tempfile.mkdtemp(prefix="emq-from-nothing-"))
    directory.chmod(0o755)
    made = Installed(directory)
    try:
        made.install()
        yield made
    finally:
        made.close()
        shutil.rmtree(directory)


@pytest.fixture
def settings(
    installed: Installed, zookeeper_server: servers.ZooKeeperServer, postgres_url: str
) -> Iterator[dict[str, str]]:
    """The settings of all processes, for a store and a database without anything in them."""
    name = f"nothing_{uuid.uuid4().hex[:8]}"
    admin = sa.create_engine(urls.parse(postgres_url), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    with servers.start_redis() as store:
        yield {
            "EMQ_STORE": store.url,
            "EMQ_DATABASE": admin.url.set(drivername="postgresql", database=name).render_as_string(hide_password=False),
            "EMQ_CLUSTER": f"{zookeeper_server.url}/{name}",
            "EMQ_SECRET_KEY": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
            "EMQ_PUSH_ALLOW": "127.0.0.1",
            "EMQ_SESSION_TIMEOUT_S": "6",
            "EMQ_TRAIL": str(installed.data / "trail"),
        }
    with admin.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


class Product:
    """The processes of the chart: tables first, then two hosts and the API.

    Attributes:
        hosts: by name.
        api: its address.
    """

    def __init__(self, installed: Installed, settings: Mapping[str, str]) -> None:
        self.installed, self.settings = installed, settings
        self.hosts: dict[str, subprocess.Popen[bytes]] = {}
        self._pages: dict[str, str] = {}
        assert "are those of this version" in installed.run(" ".join(COMMANDS["tables"]), settings)
        for name in ("emq-host-0", "emq-host-1"):
            self.start_host(name)
        port = servers.free_port()
        self.api = self._pages["api"] = f"http://127.0.0.1:{port}"
        self.process = installed.start(COMMANDS["api"], {**settings, "EMQ_API": f"127.0.0.1:{port}"}, "api")

    def start_host(self, name: str) -> None:
        port = servers.free_port()
        given = {**self.settings, "EMQ_HOST_NAME": name, "EMQ_METRICS": f"127.0.0.1:{port}"}
        self.hosts[name] = self.installed.start(COMMANDS["host"], given, name)
        self._pages[name] = f"http://127.0.0.1:{port}"

    async def stop(self, name: str) -> None:
        """End a process as a supervisor does, and check that it ended well."""
        process = self.process if name == "api" else self.hosts[name]
        process.terminate()
        assert await asyncio.to_thread(process.wait, 60) == 0, self.installed.log(name)
        assert "Traceback" not in self.installed.log(name)

    def status(self, name: str, path: str) -> int:
        try:
            return httpx.get(self._pages[name] + path, timeout=5).status_code
        except httpx.TransportError:
            return 0

    @property
    def user(self) -> int:
        """The user that the API is."""
        return Path(f"/proc/{self.process.pid}").stat().st_uid

    def is_ready(self) -> bool:
        return all(self.status(name, "/readyz") == 200 for name in self._pages)


async def test_the_whole_product_runs_from_a_wheel_and_delivers_while_hosts_die_and_restart(
    installed: Installed, settings: dict[str, str]
) -> None:
    before = installed.files()
    product = Product(installed, settings)
    await until(product.is_ready, 60)
    assert not installed.as_stranger or product.user == STRANGER
    assert all(product.status(name, "/livez") == 200 for name in (*product.hosts, "api"))
    key = installed.run("api key create --name ops", settings).strip()
    receiver = HttpReceiver(lambda _: 204)
    async with (
        receiver.running(),
        httpx.AsyncClient(base_url=product.api, headers={"Authorization": f"Bearer {key}"}, timeout=20) as api,
    ):
        secrets = await tenants(api, receiver)
        await delivered(api, receiver, 1)
        told = await asyncio.to_thread(installed.run, "push deliveries tenant-0", settings)
        assert told.count("delivered") >= MESSAGES
        assert (await api.get("/ui/sign-in")).status_code == 200

        product.hosts["emq-host-0"].kill()
        await delivered(api, receiver, 2)

        # A new process for the dead one, then a restart of the other one, as an upgrade does it.
        product.start_host("emq-host-0")
        await until(product.is_ready, 60)
        await product.stop("emq-host-1")
        await delivered(api, receiver, 3)
        product.start_host("emq-host-1")
        await until(product.is_ready, 60)
        await delivered(api, receiver, 4)
        for request in receiver.requests:
            Webhook(secrets[request.path]).verify(request.body, request.headers)
    for name in ("emq-host-0", "emq-host-1", "api"):
        await product.stop(name)
    # The proof runs from the same directory, and says that the killed host did not close its part of the trail.
    proof = installed.run(f"trail verify {settings['EMQ_TRAIL']} --duplicates {TENANTS * MESSAGES}", settings, code=3)
    assert re.search(rf"published\W+{4 * TENANTS * MESSAGES}\b", proof), proof
    assert len(re.findall(r"void: emq-host-0-\d+: not closed", proof)) == 1, proof
    assert "emq-host-1" not in proof, proof
    assert installed.files() == before, "a process wrote into the image"


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


async def delivered(api: httpx.AsyncClient, receiver: HttpReceiver, round_: int) -> None:
    """Publish messages to all tenants, and wait until all messages of all rounds are delivered."""
    for number in range(TENANTS):
        messages = [{"event_type": "order.paid", "payload": {"order": n, "round": round_}} for n in range(MESSAGES)]
        answer = await api.post(f"/v1/tenants/tenant-{number}/messages", json={"messages": messages})
        assert answer.status_code == 202, answer.text
        assert all(len(receipt["deliveries"]) == 1 for receipt in answer.json()["data"])
    wanted = round_ * TENANTS * MESSAGES
    await until(lambda: len({request.headers["webhook-id"] for request in receiver.requests}) == wanted, 60)
