"""Reads of Cloud Storage over TLS and through a proxy, as the environment configures them."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import gcs_server
import pytest
from gcs_server import GcsServer
from google.auth.credentials import AnonymousCredentials

from imageshards.transforms import storage
from imageshards.transforms.storage import gcs_auth, retry
from imageshards.transforms.storage.retry import RetryPolicy


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the certificate of localhost, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = (
        builder.not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2120, 1, 1, tzinfo=UTC))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "localhost.pem"
    encoding, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, no_password)
    path.write_bytes(private + made.public_bytes(encoding))
    return path


@pytest.fixture
def server(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    """A server with the object gs://bucket/a, which reads reach over TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"https://localhost:{listener.getsockname()[1]}"
    for name in ("STORAGE_EMULATOR_HOST", "NO_PROXY", "no_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(gcs_auth, "_find_account", AnonymousCredentials)
    monkeypatch.setattr(gcs_auth, "_found", None)
    monkeypatch.setattr(gcs_auth, "endpoint", lambda: url)
    monkeypatch.setattr(retry, "POLICY", RetryPolicy(total=0.3, first_wait=0.01))
    with gcs_server.running() as running, closing(listener):
        running.put("a", b"data" * 100_000)
        plain = int(running.url.rpartition(":")[2])
        serve = partial(forward, port=plain, wrap=partial(context.wrap_socket, server_side=True))
        threading.Thread(target=accept, args=(listener, serve), daemon=True).start()
        yield running


def accept(listener: socket.socket, serve: partial[None]) -> None:
    while True:
        try:
            accepted, _ = listener.accept()
        except OSError:  # the end of the test
            return
        threading.Thread(target=serve, args=(accepted,), daemon=True).start()


def forward(accepted: socket.socket, port: int, wrap: partial[socket.socket]) -> None:
    """Forwards what a client of TLS sends to a port, and the responses to the client."""
    try:
        client = wrap(accepted)
    except ssl.SSLError:  # the client refuses the certificate
        accepted.close()
        return
    relay(client, socket.create_connection(("127.0.0.1", port)))


def relay(client: socket.socket, server: socket.socket) -> None:
    def copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
        except OSError:  # the client disconnects
            pass
        target.close()

    threading.Thread(target=copy, args=(client, server), daemon=True).start()
    copy(server, client)


def test_an_unknown_certificate_is_refused(server: GcsServer):
    with pytest.raises(storage.StoreError, match="CERTIFICATE_VERIFY_FAILED"):
        storage.read("gs://bucket/a")


def test_reads_share_a_connection_of_tls(
    server: GcsServer, certificate: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    for _ in range(3):
        assert storage.read("gs://bucket/a")[0] == b"data" * 100_000
    assert storage.stat("gs://bucket/a")[0] == 400_000


def test_reads_go_through_the_proxy_of_the_environment(
    server: GcsServer, certificate: Path, monkeypatch: pytest.MonkeyPatch
):
    heads: list[bytes] = []

    def tunnel(client: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        heads.append(head)
        host, _, port = head.split()[1].decode().partition(":")
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        relay(client, socket.create_connection((host, int(port))))

    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with closing(socket.create_server(("127.0.0.1", 0))) as proxy:
        address = f"127.0.0.1:{proxy.getsockname()[1]}"
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:p%40ss@{address}")
        threading.Thread(target=accept, args=(proxy, partial(tunnel)), daemon=True).start()
        assert storage.read("gs://bucket/a")[0] == b"data" * 100_000
    (head,) = heads
    assert head.startswith(b"CONNECT localhost:")
    assert b"proxy-authorization: Basic dXNlcjpwQHNz\r\n" in head  # user:p@ss
