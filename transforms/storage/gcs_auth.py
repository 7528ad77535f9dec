"""Credentials for Google Cloud Storage, and the errors of requests that are refused."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from imageshards.transforms.storage.messages import missing_permission
from imageshards.transforms.storage.protocol import Refused, StoreError
from imageshards.transforms.storage.retry import Action, Cause, Failure, cannot

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

IMPERSONATE = "IMAGESHARDS_IMPERSONATE"
"""Environment variable: [DELEGATE,...]ACCOUNT, the service account to impersonate."""
BILLING_PROJECT = "IMAGESHARDS_BILLING_PROJECT"
"""Environment variable: the project that pays for requests."""
_QUOTA_PROJECT = "GOOGLE_CLOUD_QUOTA_PROJECT"
"""The variable that sets it for all Google clients."""
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
_no_token = ""
"""Why the credentials that were found have no access token."""
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
    # The service refuses a project in a request without a token, which can read what is public.
    if not project or (are_anonymous(credentials()) and not emulator()):
        return {}
    return {"x-goog-user-project": project}


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
    """Returns the application default credentials; anonymous ones if there are none with a token.

    They come from a key file, from gcloud, or from a metadata server, which may have no service
    account. If there are none, the next search is after a minute: a metadata server may start later
    than this process, and users may log in.

    Raises:
      StoreError: GOOGLE_APPLICATION_CREDENTIALS is set to a file that cannot be used.
    """
    global _found
    environment = (billing_project(), *(os.environ.get(name, "") for name in _VARIABLES))
    with _finding:
        if _found is None or _found[2] != environment or time.monotonic() > _found[1]:
            found = _with_token(_find_credentials())
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
    """Replaces the access token of a request that the service refuses, though it has not expired.

    Returns:
      Whether there is another one now: the credentials are not anonymous.

    Raises:
      Failure: there is no new token.
    """
    found = credentials()
    if are_anonymous(found):
        return False
    before = headers.get("authorization")  # none, if the credentials were found in the meantime
    with _refreshing:
        # Many threads are refused at the same time, and the first one renews the token.
        if found.valid:
            found.apply(headers)  # type: ignore[no-untyped-call]
        if headers.get("authorization") == before:
            _refresh(found)
            found.apply(headers)  # type: ignore[no-untyped-call]
    return True


def _refresh(found: Credentials) -> None:
    from google.auth.exceptions import GoogleAuthError, TransportError
    from google.auth.transport.requests import Request

    try:
        found.refresh(Request())  # type: ignore[no-untyped-call]
    except GoogleAuthError as error:
        reason = reason_of(error)
        # The error of a metadata server that does not respond has no type of its own.
        again = error.retryable or isinstance(error, TransportError) or "unavailable" in reason
        cause: Cause = "offline" if "Failed to resolve" in reason else "credentials"
        raise Failure(reason, retry=again, cause=cause) from error


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
            f"{failure}; {_LOGIN} renews them"
        )
    if "requester pays" in message.lower():
        advice = "specify --billing_project, the project that pays for the requests"
        if billing_project():
            advice = f"run {_LOGIN}: a project pays only for requests with credentials"
        return Refused(f"{cannot(uri, action)}: {message}; {advice}")
    account, permission = missing_permission(message)
    if failure.status not in (401, 403) or (message and not permission):
        advice = f"; {_LOGIN} renews the credentials" if failure.status == 401 else ""
        return Refused(f"{cannot(uri, action)}: {failure}{advice}")
    if not emulator() and are_anonymous(credentials()):
        what = "no Google Cloud credentials were found"
        if _no_token:
            what = f"there is no access token for the Google Cloud credentials: {_no_token}"
        return Refused(
            f"{uri}: not public, and {what}: run {_LOGIN}, or set {_KEY_FILE} to a key file"
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
