"""The client of Azure Blob Storage, with the usual credentials, and the errors of its requests.

The variables are those of the Azure CLI. Its own retries are off: `retry.POLICY` decides. Without
credentials, requests are not signed, which is enough for public containers.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from imageshards.transforms import extras
from imageshards.transforms.storage import retry
from imageshards.transforms.storage.protocol import NoFilesystem, Refused, StoreError
from imageshards.transforms.storage.retry import Action, Failure, cannot, connection_error

CONNECTION_STRING, ACCOUNT = "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT"
KEY, SAS = "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"
ENDPOINT = "AZURE_STORAGE_SERVICE_ENDPOINT"
_VARIABLES = (
    CONNECTION_STRING, ACCOUNT, KEY, SAS, ENDPOINT,
    "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_CLIENT_CERTIFICATE_PATH",
)  # fmt: skip
"""Variables of which a change makes another client."""
_SCOPE = "https://storage.azure.com/.default"
_CONNECTIONS = 128
"""Idle connections to keep: more than there are reads in flight."""
_ONE_REQUEST = 1 << 40
"""Bytes that one request may read: ranges are divided above."""
_RETRY_SECONDS = 60.0
_RETRIED = frozenset({"Md5Mismatch", "OperationTimedOut", "ServerBusy"})
_DENIED = frozenset({
    "AuthorizationFailure", "AuthorizationPermissionMismatch", "InsufficientAccountPermissions",
    "NoAuthenticationInformation", "PublicAccessNotPermitted",
})  # fmt: skip
_READER, _CONTRIBUTOR = "'Storage Blob Data Reader'", "'Storage Blob Data Contributor'"

_found: tuple[Any, bool, float, tuple[object, ...]] | None = None
_finding = threading.Lock()


class AzureFailure(Failure):
    """A failed request.

    Attributes:
      code: what the service calls the error, such as ServerBusy; empty if there was no response.
    """

    def __init__(self, reason: str, status: int, code: str, message: str) -> None:
        again = True if code in _RETRIED else None
        super().__init__(reason, status, message=message, retry=again)
        self.code = code


def client(uri: str) -> Any:
    """Returns the client of this process, which threads share.

    If there are no credentials, the next search for some is after a minute: users may log in.

    Raises:
      NoFilesystem: the packages of Azure are not installed.
      StoreError: no account is specified, or its credentials are invalid.
    """
    return _client(uri)[0]


def is_anonymous(uri: str) -> bool:
    """Returns whether there are no credentials: requests are not signed. Errors as of `client`."""
    return _client(uri)[1]


def _client(uri: str) -> tuple[Any, bool]:
    """Returns the client, and whether it is anonymous."""
    global _found
    key = (retry.POLICY, *map(os.environ.get, _VARIABLES))
    found = _found
    if found is None or found[3] != key or time.monotonic() > found[2]:
        with _finding:
            found = _found
            if found is None or found[3] != key or time.monotonic() > found[2]:
                made, anonymous = _make(uri)
                until = time.monotonic() + _RETRY_SECONDS if anonymous else float("inf")
                found = _found = made, anonymous, until, key
    return found[:2]


def _make(uri: str) -> tuple[Any, bool]:
    if module := extras.missing("azure"):
        raise NoFilesystem(f"{uri}: {module} is not installed: {extras.installation('azure')}")
    from azure.core.pipeline.transport import RequestsTransport
    from azure.storage.blob import BlobServiceClient
    from requests import Session
    from requests.adapters import HTTPAdapter

    session = Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_connections=4, pool_maxsize=_CONNECTIONS))
    options = {
        "transport": RequestsTransport(
            session=session,
            session_owner=False,
            connection_timeout=retry.POLICY.connect,
            read_timeout=retry.POLICY.silence,
        ),
        "retry_total": 0,
        "max_single_get_size": _ONE_REQUEST,
        "user_agent": "imageshards",
    }
    text, account = os.environ.get(CONNECTION_STRING), os.environ.get(ACCOUNT)
    try:
        if text:
            return BlobServiceClient.from_connection_string(text, **options), False
        if not account:
            raise StoreError(
                f"{uri}: no storage account is specified: set {ACCOUNT}, or {CONNECTION_STRING}"
            )
        endpoint = os.environ.get(ENDPOINT) or f"https://{account}.blob.core.windows.net"
        credential = _credential(account)
        return BlobServiceClient(endpoint, credential, **options), credential is None
    except ValueError as error:
        raise StoreError(f"{uri}: the Azure credentials cannot be used: {error}") from error


def _credential(account: str) -> Any:
    """Returns the account's key, its shared access signature, a login, or None."""
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
    from azure.core.exceptions import ClientAuthenticationError
    from azure.identity import DefaultAzureCredential

    if key := os.environ.get(KEY):
        return AzureNamedKeyCredential(account, key)
    if sas := os.environ.get(SAS):
        return AzureSasCredential(sas.removeprefix("?"))
    # Certificates, workload identities, the identity of this machine, the Azure CLI.
    found = DefaultAzureCredential()
    try:
        found.get_token(_SCOPE)
    except ClientAuthenticationError:
        return None
    return found


def failure_of(error: Exception) -> Failure:
    """Returns the failure of an error of Azure's clients."""
    from azure.core import exceptions

    if isinstance(error, exceptions.HttpResponseError) and error.status_code:
        status, code = error.status_code, getattr(error, "error_code", None) or ""
        code = str(getattr(code, "value", code))  # an enumeration has those that are known
        message = str(error.message or "").partition("\n")[0].strip().rstrip(".")
        if message.startswith("Operation returned an invalid status"):
            message = ""
        reason = f"status {status} {code or error.reason or ''}".rstrip()
        return AzureFailure(reason, status, code, message)
    if isinstance(error, exceptions.ClientAuthenticationError):
        return Failure(str(error).partition("\n")[0], retry=False, cause="credentials")
    if "timed out" in str(error):
        return Failure(f"no data for {retry.POLICY.silence:g} s")
    if isinstance(error, exceptions.ServiceRequestError):
        reason = connection_error(error.inner_exception or error)
        return Failure(reason, cause="offline" if "resolve" in reason else "")
    if isinstance(error, ValueError):  # an invalid name of a container
        return Failure(str(error).partition("\n")[0], retry=False)
    return Failure("the response breaks off")


def refusal(uri: str, action: Action, failure: Failure) -> StoreError:
    """Returns the error of a refused request: what the service says, and what to do."""
    if failure.cause == "credentials":
        return StoreError(
            f"{uri}: no access token for the Azure credentials: {failure}; 'az login' renews them"
        )
    anonymous = is_anonymous(uri)
    denied = isinstance(failure, AzureFailure) and failure.code in _DENIED
    if not denied and not (anonymous and failure.status in (401, 403)):
        is_wrong = isinstance(failure, AzureFailure) and failure.code == "AuthenticationFailed"
        advice = f"; check {ACCOUNT}, and {KEY} or {SAS}" if is_wrong else ""
        return Refused(f"{cannot(uri, action)}: {failure}{advice}")
    if anonymous:
        return Refused(
            f"{uri}: not public, and no Azure credentials were found: run 'az login', or set "
            f"{KEY}, {SAS} or {CONNECTION_STRING}"
        )
    where = f"on the container {uri.split('/')[2]}"
    problem = f"{uri}: this account has no permission to {action} it: grant"
    role = _READER if action in ("read", "list") else _CONTRIBUTOR
    return Refused(f"{problem} {role} {where}", f"{problem} {_CONTRIBUTOR} {where}")
