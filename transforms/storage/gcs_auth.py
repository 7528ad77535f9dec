"""Credentials for Google Cloud Storage, and the errors of requests that are refused."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from imageshards.transforms.storage.protocol import StoreError
from imageshards.transforms.storage.retry import Action, Cause, Failure

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

IMPERSONATE = "IMAGESHARDS_IMPERSONATE"
"""Environment variable: [DELEGATE,...]ACCOUNT, the service account to impersonate."""

_HOST = "storage.googleapis.com"
_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_EMULATOR = "STORAGE_EMULATOR_HOST"
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_NEEDED: dict[Action, tuple[str, str]] = {
    "read": ("storage.objects.get", "roles/storage.objectViewer"),
    "list": ("storage.objects.list", "roles/storage.objectViewer"),
    "write": ("storage.objects.create", "roles/storage.objectUser"),
    "delete": ("storage.objects.delete", "roles/storage.objectUser"),
}
"""Action -> the permission that it requires, and a role that has it."""

_RETRY_SECONDS = 60.0
_found: tuple[Credentials, float, tuple[str, ...]] | None = None
_finding = threading.Lock()
_refreshing = threading.Lock()
_no_token = ""
"""Why the credentials that were found have no access token."""
_refreshed = float("-inf")
"""When the access token was refreshed, by `time.monotonic`."""


def emulator() -> str:
    """Returns the URL of a server that emulates Cloud Storage; empty if none is configured."""
    url = os.environ.get(_EMULATOR, "")
    return url if "://" in url or not url else f"http://{url}"


def server() -> str:
    """Returns the URL of the server that requests are sent to."""
    return emulator() or f"https://{_HOST}"


def credentials() -> Credentials:
    """Returns the application default credentials; anonymous ones if there are none with a token.

    They come from a key file, from gcloud, or from a metadata server, which may have no service
    account. If there are none, the next search is after a minute: a metadata server may start later
    than this process, and users may log in.

    Raises:
      StoreError: GOOGLE_APPLICATION_CREDENTIALS is set to a file that cannot be used.
    """
    global _found
    environment = tuple(os.environ.get(name, "") for name in (_EMULATOR, _KEY_FILE, IMPERSONATE))
    with _finding:
        if _found is None or _found[2] != environment or time.monotonic() > _found[1]:
            found = _with_token(_find_credentials())
            final = emulator() or not are_anonymous(found)
            until = float("inf") if final else time.monotonic() + _RETRY_SECONDS
            _found = found, until, environment
        return _found[0]


def _find_credentials() -> Credentials:
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    if emulator():
        return _anonymous()
    try:
        found, _ = google.auth.default(scopes=[_SCOPE])
    except DefaultCredentialsError as error:
        if os.environ.get(_KEY_FILE):
            raise StoreError(f"{_KEY_FILE}: {reason_of(error)}") from error
        return _anonymous()
    if account := os.environ.get(IMPERSONATE):
        from google.auth import impersonated_credentials

        *delegates, target = account.split(",")
        return impersonated_credentials.Credentials(found, target, [_SCOPE], delegates=delegates)  # type: ignore[no-untyped-call]
    return found


def _with_token(found: Credentials) -> Credentials:
    """Returns anonymous credentials instead of ones that have no access token, and logs it once.

    What is public can be read without a token. An account that is to be impersonated is required.
    """
    import multiprocessing

    global _no_token
    if are_anonymous(found) or found.valid or os.environ.get(IMPERSONATE):
        return found
    try:
        _refresh(found)
    except Failure as failure:
        if failure.retry:
            return found
        if _no_token != str(failure):
            is_worker = multiprocessing.parent_process() is not None
            logging.getLogger("imageshards").log(
                logging.INFO if is_worker else logging.WARNING,
                "no access token for the Google Cloud credentials: %s; only public objects are "
                "read; 'gcloud auth application-default login' renews the credentials", failure,
            )  # fmt: skip
        _no_token = str(failure)
        return _anonymous()
    _no_token = ""
    return found


def _anonymous() -> Credentials:
    from google.auth.credentials import AnonymousCredentials

    return AnonymousCredentials()  # type: ignore[no-untyped-call]


def are_anonymous(found: Credentials) -> bool:
    """Returns whether credentials are anonymous: requests are sent without a token."""
    from google.auth.credentials import AnonymousCredentials

    return isinstance(found, AnonymousCredentials)


def authorize(headers: dict[str, str]) -> None:
    """Adds the access token to the headers of a request; refreshes it if it has expired.

    Raises:
      Failure: there is no token.
    """
    found = credentials()
    if not found.valid:
        with _refreshing:
            if not found.valid:
                _refresh(found)
    found.apply(headers)  # type: ignore[no-untyped-call]


def renew(headers: dict[str, str]) -> bool:
    """Refreshes the access token that was refused; returns whether there is another one."""
    global _refreshed
    found = credentials()
    if are_anonymous(found):
        return False
    with _refreshing:
        current: dict[str, str] = {}
        found.apply(current)  # type: ignore[no-untyped-call]
        if current.get("authorization") == headers.get("authorization"):
            if time.monotonic() < _refreshed + _RETRY_SECONDS:
                return False
            _refresh(found)
    return True


def _refresh(found: Credentials) -> None:
    from google.auth.exceptions import GoogleAuthError, TransportError
    from google.auth.transport.requests import Request

    global _refreshed
    try:
        found.refresh(Request())  # type: ignore[no-untyped-call]
    except GoogleAuthError as error:
        reason = reason_of(error)
        # The error of a metadata server that does not respond has no type of its own.
        again = error.retryable or isinstance(error, TransportError) or "unavailable" in reason
        cause: Cause = "offline" if "Failed to resolve" in reason else "credentials"
        raise Failure(reason, retry=again, cause=cause) from error
    _refreshed = time.monotonic()


def reason_of(error: BaseException) -> str:
    """Returns the reason of an error in one line."""
    while error.__cause__ is not None and not str(error):
        error = error.__cause__
    text = str(error).partition("\n")[0].strip()
    return text or type(error).__name__


def refusal(uri: str, action: Action, failure: Failure) -> StoreError:
    """Returns the error of a refused request. It names the account and the missing permission."""
    if failure.cause == "credentials":
        return StoreError(
            f"{uri}: no access token for the Google Cloud credentials: "
            f"{failure}; 'gcloud auth application-default login' renews them"
        )
    account = "the emulator's client"
    if not emulator():
        found = credentials()
        if are_anonymous(found):
            what = "no Google Cloud credentials were found"
            if _no_token:
                what = f"there is no access token for the Google Cloud credentials: {_no_token}"
            return StoreError(
                f"{uri}: not public, and {what}: run 'gcloud auth application-default login', or "
                f"set {_KEY_FILE} to a key file"
            )
        account = getattr(found, "service_account_email", "") or getattr(found, "account", "")
        account = account if account and account != "default" else "this account"
    permission, role = _NEEDED[action]
    bucket = uri.split("/")[2]
    return StoreError(
        f"{uri}: {account} has no permission {permission}: grant {role} on the bucket {bucket}"
    )
