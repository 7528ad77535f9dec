"""A GCS server for the tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest


@pytest.fixture(scope="module")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A GCS server with the bucket `bucket`; the environment that leads clients to it."""
    from gcp_storage_emulator.handlers import objects
    from gcp_storage_emulator.server import create_server

    made = objects._make_object_resource

    def with_quoted_links(*arguments: object, **named: object) -> dict[str, object]:
        # The emulator does not quote names in mediaLink, as the real server does.
        resource: dict[str, object] = made(*arguments, **named)
        name = str(resource["name"])
        head, _, tail = str(resource["mediaLink"]).partition("/o/")
        resource["mediaLink"] = f"{head}/o/{quote(name, safe='')}{tail[len(name) :]}"
        return resource

    objects._make_object_resource = with_quoted_links
    folder = tmp_path_factory.mktemp("gcs")
    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
    server.start()
    port = server._api._httpd.server_port
    # Without credentials the clients look for a metadata server for 20 s.
    credentials = folder / "credentials.json"
    credentials.write_text(
        json.dumps(
            {
                "type": "authorized_user", "token": "t", "refresh_token": "r", "client_id": "c",
                "client_secret": "s", "expiry": "2999-01-01T00:00:00Z",
            }
        )
    )  # fmt: skip
    yield {
        "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
        "GOOGLE_APPLICATION_CREDENTIALS": str(credentials),
        "GOOGLE_CLOUD_PROJECT": "project",
        "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA": "true",
    }
    server.stop()
    objects._make_object_resource = made
