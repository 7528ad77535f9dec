"""Requests to Cloud Storage's JSON API: who we are, patience, and what refusals mean.

The API: https://cloud.google.com/storage/docs/json_api/v1
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from imageshards.transforms.elements import BuildError
from imageshards.transforms.storage.protocol import StoreError

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from google.auth.transport.requests import AuthorizedSession
    from obstore.store import GCSCredential

SCHEME = "gs://"

_HOST = "storage.googleapis.com"
CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 20.0
PATIENCE_SECONDS = 120.0
"""After so long no further attempt is made."""
OFFLINE_SECONDS = 10.0
"""So long at most, where the host has no address: most likely there is no network."""
FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 20.0
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})

IMPERSONATE = "IMAGESHARDS_IMPERSONATE"
"""Environment variable: the service account to act as, after those through which, if any."""
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"

FINISH_LATER = "the same command again does the rest"


def split(uri: str) -> tuple[str, str]:
    """gs://BUCKET/NAME -> (bucket, name).

    Raises:
      BuildError: it names no bucket.
    """
    bucket, _, name = uri.removeprefix(SCHEME).partition("/")
    if not bucket:
        raise BuildError(f"{uri}: no bucket is named: write gs://BUCKET/...")
    return bucket, name


_ROLES = {
    "storage.objects.get": "roles/storage.objectViewer",
    "storage.objects.list": "roles/storage.objectViewer",
    "storage.objects.create": "roles/storage.objectUser",
    "storage.objects.delete": "roles/storage.objectUser",
}


_VERBS = {
    "storage.objects.get": "read",
    "storage.objects.list": "listed",
    "storage.objects.delete": "deleted",
}


def refused(uri: str, permission: str) -> StoreError:
    """What a refusal means, and what to do."""
    bucket, _ = split(uri)
    who = _who()
    if not who:
        return StoreError(
            f"{uri}: not public, and no Google Cloud credentials were found: run 'gcloud auth "
            "application-default login', or set GOOGLE_APPLICATION_CREDENTIALS to a key file"
        )
    return StoreError(
        f"{uri}: {who} has no permission {permission} there: grant {_ROLES[permission]} on the "
        f"bucket {bucket}"
    )


_LOOK_AGAIN_SECONDS = 60.0
_found: tuple[Credentials, float] | None = None
_finding = threading.Lock()


def credentials() -> Credentials:
    """Application default credentials: a key file, those of gcloud, a metadata server; else none.

    Without any, what is public can be read; they are looked for again after a while, since a
    metadata server may be there later than we are.
    """
    global _found
    with _finding:
        if _found is None or time.monotonic() > _found[1]:
            ours = _find_credentials()
            sure = emulator() or not _are_anonymous(ours)
            _found = ours, float("inf") if sure else time.monotonic() + _LOOK_AGAIN_SECONDS
        return _found[0]


def forget_credentials() -> None:
    """Looks for them anew when they are needed."""
    global _found
    _found = None


def _find_credentials() -> Credentials:
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError

    if emulator():
        return AnonymousCredentials()  # type: ignore[no-untyped-call]
    try:
        found, _ = google.auth.default(scopes=[_SCOPE])
    except DefaultCredentialsError as error:
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            raise StoreError(f"GOOGLE_APPLICATION_CREDENTIALS: {cause(error)}") from error
        return AnonymousCredentials()  # type: ignore[no-untyped-call]
    if account := os.environ.get(IMPERSONATE):
        from google.auth import impersonated_credentials

        *through, target = account.split(",")
        return impersonated_credentials.Credentials(found, target, [_SCOPE], delegates=through)  # type: ignore[no-untyped-call]
    return found


def _are_anonymous(ours: Credentials) -> bool:
    from google.auth.credentials import AnonymousCredentials

    return isinstance(ours, AnonymousCredentials)


def is_anonymous() -> bool:
    """Whether we are nobody."""
    return _are_anonymous(credentials())


def _who() -> str:
    """Whom Cloud Storage takes us for; empty for nobody."""
    if is_anonymous():
        return "the emulator" if emulator() else ""
    ours = credentials()
    account: str = getattr(ours, "service_account_email", "") or getattr(ours, "account", "")
    return account if account and account != "default" else "this account"


def emulator() -> str:
    """URL of a server that stands for Cloud Storage, as all of its clients understand it."""
    url = os.environ.get("STORAGE_EMULATOR_HOST", "")
    return url if "://" in url or not url else f"http://{url}"


_refreshing = threading.Lock()


def token() -> GCSCredential:
    """A token for obstore, which does not know all kinds of credentials itself."""
    from google.api_core.retry import Retry
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    ours = credentials()
    retry = Retry(
        predicate=lambda error: getattr(error, "retryable", False),
        initial=FIRST_WAIT_SECONDS, maximum=LONGEST_WAIT_SECONDS, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    global _refusal
    try:
        with _refreshing:
            if not ours.valid:
                retry(ours.refresh)(Request())
    except Exception as error:
        is_known = isinstance(error, GoogleAuthError)
        _refusal = cause(error if is_known else error.__cause__ or error)
        raise
    expiry = ours.expiry.replace(tzinfo=UTC) if ours.expiry else None
    return {"token": ours.token or "", "expires_at": expiry}


_refusal = ""


def no_token(uri: str, why: str = "") -> StoreError:
    """What it means that there are credentials, and no token for them."""
    return StoreError(
        f"{uri}: Google Cloud credentials give no token: {why or _refusal}; gcloud auth "
        "application-default login gets new ones"
    )


def cause(error: BaseException) -> str:
    """What went wrong, in one line."""
    while error.__cause__ is not None and not str(error):
        error = error.__cause__
    text = str(error).partition("\n")[0].strip()
    return text or type(error).__name__


_threads = threading.local()


def _session() -> AuthorizedSession:
    ours = credentials()  # which are others when they were found late
    if getattr(_threads, "of", None) is not ours:
        from google.auth.transport.requests import AuthorizedSession

        _threads.of, _threads.session = ours, AuthorizedSession(ours)  # type: ignore[no-untyped-call]
    session: AuthorizedSession = _threads.session
    return session


class _MayPass(Exception):
    """A failure that may be gone on another attempt."""


def request(
    method: str,
    uri: str,
    permission: str,
    params: Mapping[str, str] = {},
    headers: Mapping[str, str] = {},
) -> Any:
    """Asks for the object, or for those of the bucket where a URI names none.

    Returns:
      The response; None where the range that was asked for is behind the end.

    Raises:
      FileNotFoundError: there is no such object or bucket.
      StoreError: no permission, or no answer.
    """
    from google.api_core.exceptions import RetryError
    from google.api_core.retry import Retry
    from google.auth.exceptions import RefreshError, TransportError
    from requests.exceptions import RequestException

    bucket, name = split(uri)
    host = emulator() or f"https://{_HOST}"
    url = f"{host}/storage/v1/b/{quote(bucket, safe='')}/o"
    if name:
        url += f"/{quote(name, safe='')}"

    begin = time.monotonic()

    def attempt() -> Any:
        timeout = (CONNECT_SECONDS, SILENCE_SECONDS)
        try:
            response = _session().request(  # type: ignore[no-untyped-call]
                method, url, params=params, headers=headers, timeout=timeout
            )
        except RefreshError as error:
            if getattr(error, "retryable", False):
                raise _MayPass(cause(error)) from error
            raise no_token(uri, cause(error)) from error
        except (RequestException, TransportError) as error:
            reason = connection_cause(error)
            if "Failed to resolve" in reason and time.monotonic() > begin + OFFLINE_SECONDS:
                raise StoreError(f"{uri}: cannot be {_VERBS[permission]}: {reason}") from error
            raise _MayPass(reason) from error
        if response.status_code in _AGAIN:
            raise _MayPass(f"status {response.status_code} {response.reason}")
        return response

    retry = Retry(
        predicate=lambda error: isinstance(error, _MayPass),
        initial=FIRST_WAIT_SECONDS, maximum=LONGEST_WAIT_SECONDS, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    try:
        response = retry(attempt)()
    except RetryError as error:
        verb = _VERBS[permission]
        raise StoreError(
            f"{uri}: cannot be {verb}: {cause(error.cause)}; {FINISH_LATER}"
        ) from error
    code = response.status_code
    if code == 404:
        raise FileNotFoundError(2, "no such object" if name else "no such bucket", uri)
    if code in (401, 403):
        raise refused(uri, permission)
    if code == 416:
        return None
    if code >= 300:
        verb = _VERBS[permission]
        raise StoreError(f"{uri}: cannot be {verb}: status {code} {response.reason}")
    return response


def check_network(uri: str) -> None:
    """Tells in seconds that there is no network, where a client would try for minutes.

    Raises:
      StoreError: the host of Cloud Storage has no address.
    """
    begin = time.monotonic()
    while True:
        try:
            socket.getaddrinfo(_HOST, 443)
            return
        except OSError as error:
            if time.monotonic() > begin + OFFLINE_SECONDS:
                raise StoreError(f"{uri}: no address of {_HOST}: {error.strerror}") from error
        time.sleep(1)


def connection_cause(error: Exception) -> str:
    """The innermost reason, without the addresses of objects that urllib3 puts before it."""
    reason: object = error
    while isinstance(reason, Exception):
        error = reason
        inner = (arg for arg in error.args if isinstance(arg, Exception))
        reason = getattr(error, "reason", None) or next(inner, None)
    text = getattr(error, "strerror", None) or str(error).rpartition("): ")[2]
    return text.rstrip(".") or type(error).__name__
