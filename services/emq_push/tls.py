"""TLS of one endpoint: a certificate by which EMQ shows who it is, and an authority that the endpoint's is from."""

from __future__ import annotations

import os
import ssl


def context(ca: str, certificate: str, key: str) -> ssl.SSLContext | None:
    """Return the settings of TLS for an endpoint; None if it has none of its own.

    Args:
        ca: PEM of the authorities that sign the endpoint's certificate; empty for those of the system.
        certificate: PEM of the client certificate, with its chain; empty for none.
        key: PEM of its key, without a password.

    Raises:
        ValueError: a part is missing or is not PEM, or the key does not fit; the text does not show the key.
    """
    if not (ca or certificate or key):
        return None
    if bool(certificate) != bool(key):
        raise ValueError("push.tls.cert and push.tls.key go together; give both")
    try:
        found = ssl.create_default_context(cadata=ca or None)
    except (ssl.SSLError, ValueError):
        raise ValueError("push.tls.ca is not a certificate in PEM") from None
    if certificate:
        _load(found, certificate, key)
    return found


def _load(found: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load certificate and key, which `ssl` takes from files only, without writing the key to a disk."""
    file = os.memfd_create("emq-client-certificate", os.MFD_CLOEXEC)
    try:
        with open(file, "wb", closefd=False) as memory:
            memory.write(f"{certificate.strip()}\n{key.strip()}\n".encode())
        # A password is given, or OpenSSL would ask for one at the terminal.
        found.load_cert_chain(f"/proc/self/fd/{file}", password="")
    except (ssl.SSLError, OSError, ValueError):
        raise ValueError(
            "push.tls.cert and push.tls.key must be a certificate and its key in PEM, the key without a password"
        ) from None
    finally:
        os.close(file)
