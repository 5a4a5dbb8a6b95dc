"""A ZooKeeper server with more lines of zoo.cfg, options of Java, and a port for TLS."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from emq_servers.server import LOOPBACK, PROBE_TIMEOUT_S, free_port
from emq_servers.zookeeper import Java, ZooKeeperServer

_NO_CONFIG: Mapping[str, str] = MappingProxyType({})
_KEYSTORE_PASSWORD = "changeit"


class SecuredZooKeeper(ZooKeeperServer):
    """One server that is alone.

    Access lists by digest need nothing on the server. SASL needs a JAAS file with a section `Server` (`java_options`:
    `-Djava.security.auth.login.config=FILE`) and `config` with `authProvider.1` set to
    `org.apache.zookeeper.server.auth.SASLAuthenticationProvider`.

    Args:
        directory: for data and log. None: a temporary one, removed at the end.
        config: more lines of zoo.cfg; they override all others.
        java_options: options of the Java machine.
        tls: open a second port, for TLS, with a new certificate. To require certificates of clients, set
            `ssl.clientAuth` to `need` and `ssl.trustStore.location` to a PEM file in `config`.

    Attributes:
        secure_url: `zookeepers://127.0.0.1:<port>`, for a server with `tls`.
        certificate: file of the server's certificate (PEM), for clients to trust.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        config: Mapping[str, str] = _NO_CONFIG,
        java_options: Sequence[str] = (),
        tls: bool = False,
    ) -> None:
        super().__init__(Java(), directory, None)
        self._java_options = java_options
        self._secure_port = free_port() if tls else 0
        self.secure_url = f"zookeepers://{LOOPBACK}:{self._secure_port}"
        self.certificate = self.directory / "certificate.pem"
        if tls:
            self._config.update(self._tls_config())
        self._config.update(config)

    def _command(self) -> list[str]:
        command = super()._command()
        at = command.index("-cp")
        return [*command[:at], *self._java_options, *command[at:]]

    def _tls_config(self) -> dict[str, str]:
        keystore = self.directory / "keystore.p12"
        self._make_keystore(keystore)
        return {
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": str(self._secure_port),
            "secureClientPortAddress": LOOPBACK,
            "ssl.keyStore.location": str(keystore),
            "ssl.keyStore.password": _KEYSTORE_PASSWORD,
            "ssl.clientAuth": "none",
        }

    def _make_keystore(self, keystore: Path) -> None:
        """Write a new key with a self-signed certificate for 127.0.0.1 and localhost, and the certificate as PEM."""
        keytool = shutil.which("keytool", path=str(Path(self._java.program).parent)) or shutil.which("keytool")
        assert keytool is not None, "TLS of ZooKeeper needs keytool; install it: apt install default-jre"
        common = ["-alias", "server", "-keystore", str(keystore), "-storepass", _KEYSTORE_PASSWORD]
        names = ["-dname", "CN=localhost", "-ext", "san=ip:127.0.0.1,dns:localhost"]
        make = ["-genkeypair", "-keyalg", "EC", "-storetype", "PKCS12", "-validity", "3650", *names]
        for action in (make, ["-exportcert", "-rfc", "-file", str(self.certificate)]):
            done = subprocess.run([keytool, *action, *common], capture_output=True, text=True, check=False)
            assert not done.returncode, done.stdout + done.stderr

    def _greets(self, connection: socket.socket) -> bool:
        serves = super()._greets(connection)
        if self._secure_port:  # the server opens this port last; a refused one raises `OSError`, and the caller waits
            socket.create_connection((LOOPBACK, self._secure_port), PROBE_TIMEOUT_S).close()
        return serves
