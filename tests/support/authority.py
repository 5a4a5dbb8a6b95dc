"""An authority that signs certificates for tests."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates; each file holds PEM."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._signed("an authority", self.key.public_key(), is_authority=True)

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def issue(self, name: str) -> tuple[str, str]:
        """Return a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        text = key.private_bytes(pem, form, serialization.NoEncryption()).decode()
        return self._signed(name, key.public_key()).public_bytes(pem).decode(), text

    def _signed(self, name: str, key: ec.EllipticCurvePublicKey, *, is_authority: bool = False) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")])
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(_names(name)), False)
        )
        return builder.sign(self.key, hashes.SHA256())

    def server_context(self, name: str, directory: Path) -> ssl.SSLContext:
        """Return the TLS settings of a server of this name; its certificate lies in a directory."""
        (directory / f"{name}.pem").write_text("".join(self.issue(name)))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(directory / f"{name}.pem")
        return context


def _names(name: str) -> list[x509.GeneralName]:
    here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    return [here, x509.DNSName(name)] if name.replace(".", "").replace("-", "").isalpha() else [here]
