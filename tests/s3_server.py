"""A local S3 server for tests, moto, behind a proxy that counts requests and injects faults."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fault_proxy
from fault_proxy import FaultProxy

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "user", "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}  # fmt: skip


class S3Server:
    """A running server with the bucket `bucket`.

    Attributes:
      proxy: what its clients talk to.
      environment: environment variables of its clients.
    """

    def __init__(self, proxy: FaultProxy, backend: Any) -> None:
        self.proxy = proxy
        self.environment = {**ENVIRONMENT, "AWS_ENDPOINT_URL": proxy.url}
        self._backend = backend
        backend.create_bucket("bucket", "us-east-1")

    def put(self, name: str, data: bytes) -> None:
        """Creates an object, without a request."""
        self._backend.put_object("bucket", name, data)

    def put_folder(self, folder: Path, prefix: str) -> None:
        """Creates an object for each file below a folder."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())

    def contents(self, folder: str) -> dict[str, bytes]:
        """Returns name below a folder -> content."""
        keys = self._backend.buckets["bucket"].keys
        return {
            name.removeprefix(f"{folder}/"): key.value
            for name, key in sorted(keys.items())
            if name.startswith(f"{folder}/")
        }

    def uploads(self) -> int:
        """Number of uploads that have begun, and are neither complete nor aborted."""
        return len(self._backend.buckets["bucket"].multiparts)

    def clear(self, folder: str) -> None:
        """Deletes the objects of a folder."""
        for name in self.contents(folder):
            self._backend.delete_object("bucket", f"{folder}/{name}")


@contextmanager
def running() -> Iterator[S3Server]:
    """Runs a server."""
    from moto.s3.models import s3_backends
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        with fault_proxy.running(*server.get_host_and_port()) as proxy:
            backend = s3_backends["123456789012"]["aws"]
            backend.reset()
            yield S3Server(proxy, backend)
    finally:
        server.stop()
