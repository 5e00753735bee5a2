"""TLS between the machines of a run: a self-signed certificate, which clients recognise by its fingerprint.

A run has no domain name, and no authority that would vouch for one. The fingerprint reaches the other machines in the
token file; a peer with another certificate is refused before any byte of ours is sent
(tests/unit/test_tls.py). Free of torch.
"""

import asyncio
import datetime
import hashlib
import hmac
import os
import ssl
from pathlib import Path

from spotlight.core.errors import InputError

IDENTITY = "identity.pem"
"""The private key and the certificate, in one file that only its owner can read."""
VALID_FROM = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
VALID_UNTIL = datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)
"""Fixed: the fingerprint alone is compared, and a run must not end with its certificate."""
HANDSHAKE_S = 10.0


class WrongFingerprint(InputError):
    """The peer has another certificate than the run."""


class Identity:
    """Certificate and key of a run that listens."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.fingerprint = _fingerprint(_certificate(path))

    @classmethod
    def make(cls, folder: Path) -> "Identity":
        """Write a new certificate and key into the folder, over any earlier ones."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(folder / IDENTITY, _new_pem())
        return cls(folder / IDENTITY)

    @classmethod
    def load(cls, folder: Path) -> "Identity":
        return cls(folder / IDENTITY)

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # No session is resumed; tickets that a client does not read would reset its connection.
        context.num_tickets = 0
        context.load_cert_chain(self._path)
        return context


def client_context() -> ssl.SSLContext:
    """Context of a client, which must call `check_fingerprint` before it writes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def check_fingerprint(tls: ssl.SSLObject | ssl.SSLSocket, fingerprint: str) -> None:
    """Refuse a peer whose certificate has another fingerprint."""
    found = _fingerprint(tls.getpeercert(binary_form=True) or b"")
    if not hmac.compare_digest(found, fingerprint.lower()):
        raise WrongFingerprint(
            f"the certificate at the other end has the fingerprint {found}, but the token file names "
            f"{fingerprint.lower()}, so it is another run or another machine in between; fetch the run's present token "
            "file."
        )


async def open_pinned(
    host: str, port: int, fingerprint: str, limit: int = 1 << 16
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect; raises WrongFingerprint, or OSError if nothing listens there or it does not speak TLS."""
    reader, writer = await asyncio.open_connection(
        host, port, ssl=client_context(), ssl_handshake_timeout=HANDSHAKE_S, limit=limit
    )
    try:
        check_fingerprint(writer.get_extra_info("ssl_object"), fingerprint)
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


def split_address(address: str) -> tuple[str, int]:
    """Host and port of host:port; an IPv6 host is in brackets."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise InputError(f"the address '{address}' is not HOST:PORT; write it like 10.0.0.5:7700, or [fd00::5]:7700.")
    return host.strip("[]"), int(port)


def write_private(path: Path, content: bytes) -> None:
    """Replace a file that only its owner can read; it is never readable by others, and never half written."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    with open(part, "wb", opener=_private) as file:
        file.write(content)
    os.replace(part, path)


def read_private(path: Path) -> bytes:
    """Read a file that only its owner may read; refuses one that others can."""
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise InputError(
            f"{path} has the mode {mode:o}, so other users may have read its secret; make a new one, and keep it with "
            "the mode 600."
        )
    return path.read_bytes()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL, 0o600)


def _fingerprint(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()


def _certificate(path: Path) -> bytes:
    """The certificate in DER."""
    text = read_private(path).decode("ascii", errors="replace")
    try:
        return ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERTIFICATE") :])
    except ValueError as error:
        raise InputError(
            f"{path} holds no certificate ({error}), so the run cannot prove itself to other machines; delete it, and "
            "a new one is made."
        ) from error


def _new_pem() -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "spotlight run")])
    unsigned = x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=VALID_FROM,
        not_valid_after=VALID_UNTIL,
    )
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    certificate = unsigned.sign(key, hashes.SHA256()).public_bytes(pem)
    return key.private_bytes(pem, pkcs8, serialization.NoEncryption()) + certificate
