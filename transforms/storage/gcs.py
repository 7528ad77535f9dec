"""The configuration of `ObjectStore` for Google Cloud Storage. A stamp is a generation."""

from __future__ import annotations

import socket
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


def _connect(bucket: str) -> GCSStore:
    return _client(bucket, gcs_auth.emulator(), gcs_auth.credentials(), retry.POLICY)


@lru_cache(maxsize=256)
def _client(bucket: str, emulator: str, found: Credentials, policy: RetryPolicy) -> GCSStore:
    from obstore.store import GCSStore

    anonymous = gcs_auth.are_anonymous(found)
    if not emulator:
        policy.call(_resolve_host)
    return GCSStore(
        bucket,
        config={
            **({"base_url": emulator} if emulator else {}),
            **({"skip_signature": True} if anonymous else {}),
        },
        client_options={
            "allow_http": bool(emulator),
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
    try:
        socket.getaddrinfo(gcs_json.HOST, 443)
    except OSError as error:
        reason = f"no address of {gcs_json.HOST}: {error.strerror}"
        raise Failure(reason, cause="offline") from error


CLOUD_STORAGE = Service(
    scheme="gs",
    connect=_connect,
    stamp_of=lambda meta: int(meta["version"] or 0),
    conditions=lambda stamp: {"version": str(stamp)},
    refusal=gcs_auth.refusal,
    api=gcs_json,
)
