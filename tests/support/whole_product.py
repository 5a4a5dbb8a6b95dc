"""The whole product as the image runs it: installed by the steps of the image, its processes on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import yaml

import emq_servers as servers
from support import page_blocks
from support.page_session import READING
from support.releasing import release

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())["services"]
COMMANDS = {name: tuple(COMPOSE[name]["command"]) for name in ("tables", "host", "api")}
"""Those of compose, which are those of the chart and of the units."""
STRANGER = 10001
"""The user of the image, to whom no file in it belongs."""

NEXT = "99.0.0"
"""The version of `next_release`."""
_SECOND = """\
import sqlalchemy as sa
from alembic import op

revision = "second"
down_revision = "first"


def upgrade() -> None:
    op.create_table("emq_of_the_next_release", sa.Column("id", sa.BigInteger, primary_key=True))
"""


def unpack(sdist: Path, directory: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4 has none
        archive.extractall(directory)


def next_release(sdist: Path, directory: Path) -> Path:
    """Build the wheel of a next version from an sdist; return it.

    It is what a next release may be at most: it has a revision of the tables, and reads one feature level more.
    """
    unpack(sdist, directory)
    [root] = [path for path in directory.iterdir() if path.is_dir()]
    (root / "PKG-INFO").unlink()  # it has the version, too, and would go before the file
    (root / "VERSION").write_text(f"{NEXT}\n")
    (root / "emq/database/migrations/versions/second.py").write_text(_SECOND)
    for file, before, after in (
        ("schema.py", '"emq_catalog_revision", "first"', '"emq_catalog_revision", "second"'),
        ("levels.py", "LEVEL = 1\n", "LEVEL = 2\n"),
    ):
        text = (root / "emq/database" / file).read_text()
        assert text.count(before) == 1, f"{file} of the next release: what comes after {before!r}?"
        (root / "emq/database" / file).write_text(text.replace(before, after))
    wheel: Path = release.packages(root, directory / "dist")
    return wheel


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

    def install(self, wheel: Path) -> None:
        """Follow the steps of the image, from the package cache alone if it has everything."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        given = {**os.environ, "PYTHON": self._interpreter(), "PATH": path}
        command = [str(ROOT / "deploy/image/install"), str(wheel), str(self.home)]
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


class Product:
    """The processes of the chart, each of a version: hosts and the API.

    Attributes:
        hosts: by name.
        api: the address of the API.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = settings
        self._processes: dict[str, tuple[Installed, subprocess.Popen[bytes]]] = {}
        self._pages: dict[str, str] = {}
        self._api_port = servers.free_port()
        self.api = f"http://127.0.0.1:{self._api_port}"

    def start(self, version: Installed, *names: str) -> None:
        """Start hosts, or the process `api`, of a version."""
        for name in names:
            port = self._api_port if name == "api" else servers.free_port()
            given = {"EMQ_API" if name == "api" else "EMQ_METRICS": f"127.0.0.1:{port}"}
            if name != "api":
                given["EMQ_HOST_NAME"] = name
            command = COMMANDS["api" if name == "api" else "host"]
            self._processes[name] = version, version.start(command, {**self.settings, **given}, name)
            self._pages[name] = f"http://127.0.0.1:{port}"

    async def stop(self, *names: str) -> None:
        """End processes as a supervisor does, and check that they ended well."""
        for name in names:
            version, process = self._processes[name]
            process.terminate()
            assert await asyncio.to_thread(process.wait, 60) == 0, version.log(name)
            assert "Traceback" not in version.log(name)

    def kill(self, name: str) -> None:
        self._processes[name][1].kill()

    def status(self, name: str, path: str) -> int:
        try:
            return httpx.get(self._pages[name] + path, timeout=5).status_code
        except httpx.TransportError:
            return 0

    def versions(self) -> dict[str, str]:
        """Return the version of each host, as it tells it itself."""
        told = {name: httpx.get(f"{page}/metrics").text for name, page in self._pages.items() if name != "api"}
        found = {name: re.search(r'emq_info\{.*version="([\d.]+)"', text) for name, text in told.items()}
        return {name: match[1] for name, match in found.items() if match}

    @property
    def user(self) -> int:
        """The user that the API is."""
        return Path(f"/proc/{self._processes['api'][1].pid}").stat().st_uid

    def is_ready(self) -> bool:
        return all(self.status(name, "/readyz") == 200 for name in self._pages)


def follow_push_tutorial(installed: Installed, settings: Mapping[str, str], api: str) -> None:
    """Do what docs/push-service.md says below "Start", over the API of a running product in place of `emq up`."""
    directory = installed.directory / "tutorial"
    programs = directory / "bin"
    programs.mkdir(parents=True)
    (programs / "emq").symlink_to(installed.home / "bin/emq")
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {name: text for name, text in settings.items() if name != "EMQ_TRAIL"} | {"PATH": path}
    ports = {"8080": api.rpartition(":")[2], "8042": str(servers.free_port())}
    page = ROOT / "docs/push-service.md"
    lines = page.read_text().splitlines()
    first, last = lines.index("## Start"), lines.index("## From Python and from a terminal")
    known: dict[str, str] = {}

    def run(line: str, printed: list[str]) -> None:
        for shown, real in known.items():
            line = line.replace(shown, real)
        for _ in range(100):
            done = subprocess.run(["bash", "-c", line], cwd=directory, env=environment, capture_output=True, text=True)
            with contextlib.suppress(page_blocks.Missing):
                known.update(page_blocks.compared(printed, done.stdout))
                return
            if not any(line.startswith(f"emq {words}") for words in READING):
                break
        raise AssertionError(f"$ {line}\n{done.stdout}{done.stderr}\nlacks a line of {printed}")

    with contextlib.ExitStack() as stack:
        for block in page_blocks.blocks(page):
            text = re.sub(r"\b(8080|8042)\b", lambda found: ports[found[1]], block.text)
            if not first < block.line < last or block.skipped:
                continue
            if block.title:
                (directory / block.title).write_text(text)
                continue
            for command in page_blocks.Block("console", text, block.line, "", block.mark).commands():
                if block.mark != "background":
                    run(command.line, command.printed)
                elif not command.line.startswith("emq up"):
                    stack.enter_context(_background(command.line, directory, environment))


@contextlib.contextmanager
def _background(line: str, directory: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Run a command beside, from its first line on."""
    command = ["bash", "-c", f"exec {line}"]
    with subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()
