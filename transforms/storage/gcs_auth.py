"""Credentials for Google Cloud Storage, and the errors of requests that are refused."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC
from typing import TYPE_CHECKING

from imageshards.transforms.storage import retry
from imageshards.transforms.storage.protocol import StoreError
from imageshards.transforms.storage.retry import Action, Failure

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from obstore.store import GCSCredential

IMPERSONATE = "IMAGESHARDS_IMPERSONATE"
"""Environment variable: [DELEGATE,...]ACCOUNT, the service account to impersonate."""

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
_token_error = ""


def emulator() -> str:
    """Returns the URL of a server that emulates Cloud Storage; empty if none is configured."""
    url = os.environ.get(_EMULATOR, "")
    return url if "://" in url or not url else f"http://{url}"


def credentials() -> Credentials:
    """Returns the application default credentials; anonymous ones if there are none.

    They come from a key file, from gcloud, or from a metadata server. If there are none, the next
    search is after a minute: a metadata server may start later than this process.

    Raises:
      StoreError: GOOGLE_APPLICATION_CREDENTIALS is set to a file that cannot be used.
    """
    global _found
    environment = tuple(os.environ.get(name, "") for name in (_EMULATOR, _KEY_FILE, IMPERSONATE))
    with _finding:
        if _found is None or _found[2] != environment or time.monotonic() > _found[1]:
            found = _find_credentials()
            final = emulator() or not are_anonymous(found)
            until = float("inf") if final else time.monotonic() + _RETRY_SECONDS
            _found = found, until, environment
        return _found[0]


def _find_credentials() -> Credentials:
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError

    if emulator():
        return AnonymousCredentials()  # type: ignore[no-untyped-call]
    try:
        found, _ = google.auth.default(scopes=[_SCOPE])
    except DefaultCredentialsError as error:
        if os.environ.get(_KEY_FILE):
            raise StoreError(f"{_KEY_FILE}: {reason_of(error)}") from error
        return AnonymousCredentials()  # type: ignore[no-untyped-call]
    if account := os.environ.get(IMPERSONATE):
        from google.auth import impersonated_credentials

        *delegates, target = account.split(",")
        return impersonated_credentials.Credentials(found, target, [_SCOPE], delegates=delegates)  # type: ignore[no-untyped-call]
    return found


def are_anonymous(found: Credentials) -> bool:
    """Returns whether credentials are anonymous: requests are sent without a token."""
    from google.auth.credentials import AnonymousCredentials

    return isinstance(found, AnonymousCredentials)


def token() -> GCSCredential:
    """Returns an access token for obstore, which does not support all kinds of credentials.

    obstore does not report why this function failed, so it stores the reason for `refusal`.
    """
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    found = credentials()

    def refresh() -> None:
        try:
            found.refresh(Request())  # type: ignore[no-untyped-call]
        except GoogleAuthError as error:
            again = bool(getattr(error, "retryable", False))
            raise Failure(reason_of(error), retry=again, cause="credentials") from error

    global _token_error
    with _refreshing:
        if not found.valid:
            try:
                retry.POLICY.call(refresh)
            except Exception as error:
                _token_error = reason_of(error)
                raise
    expiry = found.expiry.replace(tzinfo=UTC) if found.expiry else None
    return {"token": found.token or "", "expires_at": expiry}


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
            f"{str(failure) or _token_error}; 'gcloud auth application-default login' renews them"
        )
    account = "the emulator's client"
    if not emulator():
        found = credentials()
        if are_anonymous(found):
            return StoreError(
                f"{uri}: not public, and no Google Cloud credentials were found: run 'gcloud auth "
                f"application-default login', or set {_KEY_FILE} to a key file"
            )
        account = getattr(found, "service_account_email", "") or getattr(found, "account", "")
        account = account if account and account != "default" else "this account"
    permission, role = _NEEDED[action]
    bucket = uri.split("/")[2]
    return StoreError(
        f"{uri}: {account} has no permission {permission}: grant {role} on the bucket {bucket}"
    )
