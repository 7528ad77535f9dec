"""Credentials for Google Cloud Storage, and the errors of requests that are refused."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC
from typing import TYPE_CHECKING

from imageshards.transforms.storage import retry
from imageshards.transforms.storage.messages import missing_permission
from imageshards.transforms.storage.protocol import Refused, StoreError
from imageshards.transforms.storage.retry import Action, Failure, cannot

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from obstore.store import GCSCredential

IMPERSONATE = "IMAGESHARDS_IMPERSONATE"
"""Environment variable: [DELEGATE,...]ACCOUNT, the service account to impersonate."""
BILLING_PROJECT = "IMAGESHARDS_BILLING_PROJECT"
"""Environment variable: the project that pays for requests."""
_QUOTA_PROJECT = "GOOGLE_CLOUD_QUOTA_PROJECT"
"""The variable with which all Google clients are told the same."""
_UNIVERSE = "GOOGLE_CLOUD_UNIVERSE_DOMAIN"
_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_EMULATOR = "STORAGE_EMULATOR_HOST"
_VARIABLES = (_EMULATOR, _KEY_FILE, IMPERSONATE, _UNIVERSE)

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_NEEDED: dict[Action, str] = {
    "read": "storage.objects.get",
    "list": "storage.objects.list",
    "write": "storage.objects.create",
    "delete": "storage.objects.delete",
}
"""Action -> the permission that it requires."""
_VIEWER, _USER = "roles/storage.objectViewer", "roles/storage.objectUser"
_ROLES = {"storage.objects.get": _VIEWER, "storage.objects.list": _VIEWER}
"""Permission -> a role that has it. `_USER` has all permissions on objects that a build needs."""
_BILLING_PERMISSION = "serviceusage.services.use"
_BILLING_ROLE = "roles/serviceusage.serviceUsageConsumer"

_LOGIN = "'gcloud auth application-default login'"
_RETRY_SECONDS = 60.0
_found: tuple[Credentials, float, tuple[str, ...]] | None = None
_finding = threading.Lock()
_refreshing = threading.Lock()
_token_error = ""
_before_bill: str | None = None


def emulator() -> str:
    """Returns the URL of a server that emulates Cloud Storage; empty if none is configured."""
    url = os.environ.get(_EMULATOR, "")
    return url if "://" in url or not url else f"http://{url}"


def billing_project() -> str:
    """Returns the project that pays for requests; empty: the owner of the bucket pays."""
    return os.environ.get(BILLING_PROJECT) or os.environ.get(_QUOTA_PROJECT, "")


def bill(project: str) -> None:
    """Sets the project that pays for the requests of this process; see `storage.bill`."""
    global _before_bill
    if project:
        if _before_bill is None:
            _before_bill = os.environ.get(BILLING_PROJECT, "")
        os.environ[BILLING_PROJECT] = project
    elif _before_bill is not None:
        os.environ[BILLING_PROJECT] = _before_bill
        _before_bill = None


def headers() -> dict[str, str]:
    """Returns the headers that all requests have."""
    project = billing_project()
    return {"x-goog-user-project": project} if project else {}


def host() -> str:
    """Returns the name of the service's host, in the universe domain of the credentials.

    Raises:
      Failure: the metadata server does not report the domain.
    """
    from google.auth.exceptions import GoogleAuthError

    try:
        universe = os.environ.get(_UNIVERSE) or credentials().universe_domain
    except GoogleAuthError as error:
        raise Failure(reason_of(error), retry=True, cause="credentials") from error
    return f"storage.{universe}"


def endpoint() -> str:
    """Returns the URL of the service, or of the server that emulates it."""
    return emulator() or f"https://{host()}"


def credentials() -> Credentials:
    """Returns the application default credentials; anonymous ones if there are none.

    They come from a key file, from gcloud, or from a metadata server. If there are none, the next
    search is after a minute: a metadata server may start later than this process.

    Raises:
      StoreError: GOOGLE_APPLICATION_CREDENTIALS is set to a file that cannot be used.
    """
    global _found
    environment = (billing_project(), *(os.environ.get(name, "") for name in _VARIABLES))
    with _finding:
        if _found is None or _found[2] != environment or time.monotonic() > _found[1]:
            found = _find_credentials()
            final = emulator() or not are_anonymous(found)
            until = float("inf") if final else time.monotonic() + _RETRY_SECONDS
            _found = found, until, environment
        return _found[0]


def _find_credentials() -> Credentials:
    from google.auth.credentials import CredentialsWithQuotaProject

    found, project = _find_account(), billing_project()
    # They may have a project of their own, which would replace the header of a request.
    if project and isinstance(found, CredentialsWithQuotaProject):
        return found.with_quota_project(project)  # type: ignore[no-untyped-call, no-any-return]
    return found


def _find_account() -> Credentials:
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
    found = credentials()
    with _refreshing:
        if not found.valid:
            _refresh(found)
    expiry = found.expiry.replace(tzinfo=UTC) if found.expiry else None
    return {"token": found.token or "", "expires_at": expiry}


def _refresh(found: Credentials) -> None:
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    def attempt() -> None:
        try:
            found.refresh(Request())  # type: ignore[no-untyped-call]
        except GoogleAuthError as error:
            again = bool(getattr(error, "retryable", False))
            raise Failure(reason_of(error), retry=again, cause="credentials") from error

    global _token_error
    try:
        retry.POLICY.call(attempt)
    except Exception as error:
        _token_error = reason_of(error)
        raise


def renew_token() -> None:
    """Replaces an access token that the service refuses, though it has not expired.

    Raises:
      Failure: there is no new token; `refusal` has the reason.
    """
    with _refreshing:
        _refresh(credentials())


def reason_of(error: BaseException) -> str:
    """Returns the reason of an error in one line."""
    while error.__cause__ is not None and not str(error):
        error = error.__cause__
    text = str(error).partition("\n")[0].strip()
    return text or type(error).__name__


def refusal(uri: str, action: Action, failure: Failure) -> StoreError:
    """Returns the error of a refused request: what the service says, and what to do.

    Only a message about a permission, or none at all, leads to the advice to grant a role.
    """
    message = failure.message
    if failure.cause == "credentials":
        return StoreError(
            f"{uri}: no access token for the Google Cloud credentials: "
            f"{str(failure) or _token_error}; {_LOGIN} renews them"
        )
    if "requester pays" in message.lower() and not billing_project():
        advice = "specify --billing_project, the project that pays for the requests"
        return Refused(f"{cannot(uri, action)}: {message}; {advice}")
    account, permission = missing_permission(message)
    if failure.status not in (401, 403) or (message and not permission):
        advice = f"; {_LOGIN} renews the credentials" if failure.status == 401 else ""
        return Refused(f"{cannot(uri, action)}: {failure}{advice}")
    if not emulator() and are_anonymous(credentials()):
        return Refused(
            f"{uri}: not public, and no Google Cloud credentials were found: run 'gcloud auth "
            f"application-default login', or set {_KEY_FILE} to a key file"
        )
    permission = permission or _NEEDED[action]
    problem = f"{uri}: {account or _account()} has no permission {permission}: grant"
    if permission == _BILLING_PERMISSION:
        return Refused(f"{problem} {_BILLING_ROLE} on the project {billing_project()}")
    bucket = uri.split("/")[2]
    role = _ROLES.get(permission, _USER)
    return Refused(
        f"{problem} {role} on the bucket {bucket}", f"{problem} {_USER} on the bucket {bucket}"
    )


def _account() -> str:
    """Returns the name of the account of the credentials."""
    if emulator():
        return "the emulator's client"
    found = credentials()
    name = getattr(found, "service_account_email", "") or getattr(found, "account", "")
    return name if name and name != "default" else "this account"
