"""The configuration of `ObjectStore` for Google Cloud Storage. A stamp is a generation."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from imageshards.transforms.storage import gcs_auth, gcs_json, retry
from imageshards.transforms.storage.objects import Service
from imageshards.transforms.storage.retry import Failure, RetryPolicy

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from obstore.store import GCSStore

_RETRIES = 1000  # so many that RetryPolicy.total is the limit


_renewing = threading.Lock()


def _connect(bucket: str) -> GCSStore:
    # The credentials are others when the environment changes.
    return _client(bucket, gcs_auth.credentials(), retry.POLICY)


def _renew(bucket: str, refused: GCSStore) -> GCSStore:
    """Returns a client with a new access token, or the same one if there are no credentials."""
    with _renewing:
        # Many threads are refused at the same time, and the first one renews the token.
        if not gcs_auth.are_anonymous(gcs_auth.credentials()) and _connect(bucket) is refused:
            gcs_auth.renew_token()
            _client.cache_clear()
    return _connect(bucket)


@lru_cache(maxsize=256)
def _client(bucket: str, found: Credentials, policy: RetryPolicy) -> GCSStore:
    from obstore.store import GCSStore

    anonymous = gcs_auth.are_anonymous(found)
    if not gcs_auth.emulator():
        policy.call(_resolve_host)
    endpoint = gcs_auth.endpoint()
    return GCSStore(
        bucket,
        config={
            "base_url": endpoint,
            **({"skip_signature": True} if anonymous else {}),
        },
        client_options={
            "allow_http": endpoint.startswith("http:"),
            "default_headers": gcs_auth.headers(),
            "connect_timeout": timedelta(seconds=policy.connect),
            "read_timeout": timedelta(seconds=policy.silence),
            "timeout": timedelta(seconds=policy.total),
        },
        retry_config={
            "max_retries": _RETRIES,
            "retry_timeout": timedelta(seconds=policy.total),
            "backoff": {
                "init_backoff": timedelta(seconds=policy.first_wait),
                "max_backoff": timedelta(seconds=policy.longest_wait),
                "base": 2,
            },
        },
        credential_provider=None if anonymous else gcs_auth.token,
    )


def _resolve_host() -> None:
    # Without this check, obstore would retry for minutes when there is no network.
    host = gcs_auth.host()
    try:
        socket.getaddrinfo(host, 443)
    except OSError as error:
        reason = f"no address of {host}: {error.strerror}"
        raise Failure(reason, cause="offline") from error


CLOUD_STORAGE = Service(
    scheme="gs",
    connect=_connect,
    renew=_renew,
    stamp_of=lambda meta: int(meta["version"] or 0),
    conditions=lambda stamp: {"version": str(stamp)},
    refusal=gcs_auth.refusal,
    api=gcs_json,
)
