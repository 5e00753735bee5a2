"""TLS with a pinned certificate: the run is recognised, any other peer is refused before a byte is sent."""

import asyncio
import datetime
import socket
import ssl
import threading
from pathlib import Path

import pytest

from spotlight.core.errors import InputError
from spotlight.core.tls import IDENTITY, Identity, WrongFingerprint, open_pinned

HOST = "127.0.0.1"
PATIENCE_S = 20.0


class Listener:
    """Accepts one connection in a thread, and keeps what it received."""

    def __init__(self, identity: Identity | None) -> None:
        self._identity = identity
        self._socket = socket.create_server((HOST, 0))
        self._socket.settimeout(PATIENCE_S)
        self.port = self._socket.getsockname()[1]
        self.received = b""
        self.version: str | None = None
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> "Listener":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._thread.join(PATIENCE_S)
        self._socket.close()

    def _serve(self) -> None:
        plain, _ = self._socket.accept()
        with plain:
            try:
                tls = plain
                if self._identity is not None:
                    tls = self._identity.server_context().wrap_socket(plain, server_side=True)
                    self.version = tls.version()
                else:
                    plain.sendall(b"220 a mail server\r\n")
                while part := tls.recv(1 << 16):
                    self.received += part
            except OSError:
                pass


async def sent(port: int, fingerprint: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        _, writer = await open_pinned(HOST, port, fingerprint)
        writer.write(b"secret")
        writer.close()
        await writer.wait_closed()


def sent_in_loop(port: int, fingerprint: str) -> None:
    asyncio.run(sent(port, fingerprint))


def test_peer_with_the_pinned_certificate_receives_what_is_sent_over_tls_13(tmp_path):
    identity = Identity.make(tmp_path)
    with Listener(identity) as listener:
        sent_in_loop(listener.port, identity.fingerprint)
    assert (listener.received, listener.version) == (b"secret", "TLSv1.3")


def test_peer_with_another_certificate_is_refused_before_a_byte_is_sent(tmp_path):
    ours, other = Identity.make(tmp_path / "ours"), Identity.make(tmp_path / "other")
    with Listener(other) as listener, pytest.raises(WrongFingerprint) as caught:
        sent_in_loop(listener.port, ours.fingerprint)
    assert listener.received == b""
    assert ours.fingerprint in str(caught.value)
    assert other.fingerprint in str(caught.value)


def test_peer_that_does_not_speak_tls_is_an_os_error_and_receives_nothing_of_ours(tmp_path):
    with Listener(None) as listener, pytest.raises(OSError):
        sent_in_loop(listener.port, Identity.make(tmp_path).fingerprint)
    assert b"secret" not in listener.received


def test_client_of_an_older_tls_is_refused_by_the_run(tmp_path):
    identity = Identity.make(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with Listener(identity) as listener:
        plain = socket.create_connection((HOST, listener.port))
        with plain, pytest.raises(OSError):
            context.wrap_socket(plain)


def test_loaded_identity_is_the_one_that_was_made(tmp_path):
    made = Identity.make(tmp_path)
    assert Identity.load(tmp_path).fingerprint == made.fingerprint


def test_machine_whose_clock_is_a_day_behind_the_runs_certificate_still_recognises_it(tmp_path, monkeypatch):
    tomorrow = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    monkeypatch.setattr("spotlight.core.tls.VALID_FROM", tomorrow)
    identity = Identity.make(tmp_path)
    with Listener(identity) as listener:
        sent_in_loop(listener.port, identity.fingerprint)
    assert listener.received == b"secret"


def test_two_identities_differ(tmp_path):
    assert Identity.make(tmp_path).fingerprint != Identity.make(tmp_path).fingerprint


def test_key_is_readable_by_its_owner_alone(tmp_path):
    Identity.make(tmp_path / "private")
    assert (tmp_path / "private" / IDENTITY).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700


def test_key_that_others_can_read_is_refused(tmp_path):
    Identity.make(tmp_path)
    (tmp_path / IDENTITY).chmod(0o644)
    with pytest.raises(InputError, match="644"):
        Identity.load(tmp_path)


def test_damaged_identity_is_one_sentence(tmp_path: Path):
    Identity.make(tmp_path)
    path = tmp_path / IDENTITY
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="holds no certificate"):
        Identity.load(tmp_path)
