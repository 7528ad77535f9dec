"""Fixtures: a Cloud Storage server, and the environment of its clients."""

from __future__ import annotations

import json
from collections.abc import Iterator

import gcs_server
import pytest
from gcs_server import GcsServer


@pytest.fixture(scope="module")
def server() -> Iterator[GcsServer]:
    """A Cloud Storage server with the bucket `bucket`."""
    with gcs_server.running() as running:
        yield running


@pytest.fixture(scope="module")
def gcs(server: GcsServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables that make clients use the server."""
    # Without credentials, Beam's client searches for a metadata server for 20 s.
    credentials = tmp_path_factory.mktemp("gcs") / "credentials.json"
    credentials.write_text(
        json.dumps(
            {
                "type": "authorized_user", "token": "t", "refresh_token": "r", "client_id": "c",
                "client_secret": "s", "expiry": "2999-01-01T00:00:00Z",
            }
        )
    )  # fmt: skip
    return {**server.environment, "GOOGLE_APPLICATION_CREDENTIALS": str(credentials)}
