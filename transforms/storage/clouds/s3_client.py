"""The client of Amazon S3, with the usual credentials, and the errors of its requests.

botocore signs the requests, follows buckets to their regions, and finds the credentials: variables
of the environment, profiles, single sign-on, web identities, and the roles of machines. Its own
retries are off: `retry.POLICY` decides. Without credentials, requests are not signed, which is
enough for public buckets.
"""

from __future__ import annotations

import os
import re
import threading
import time
from typing import Any

from imageshards.transforms import extras
from imageshards.transforms.storage import retry
from imageshards.transforms.storage.protocol import NoFilesystem, Refused, StoreError
from imageshards.transforms.storage.retry import Action, Failure, cannot, connection_error

_VARIABLES = (
    "AWS_ACCESS_KEY_ID", "AWS_CA_BUNDLE", "AWS_CONFIG_FILE", "AWS_DEFAULT_PROFILE",
    "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_REGION",
    "AWS_ROLE_ARN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)  # fmt: skip
"""Variables of which a change makes another client."""
_CONNECTIONS = 128
"""Idle connections to keep: more than there are reads in flight."""
_RETRY_SECONDS = 60.0
_RETRIED = frozenset({"BadDigest", "ConditionalRequestConflict", "OperationAborted",
                      "RequestTimeout", "SlowDown"})  # fmt: skip
_NO_TOKEN = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"}
)
_DENIED = frozenset({"AccessDenied", "403", "Forbidden"})
_WRONG = {
    "InvalidAccessKeyId": "'aws configure' sets the access key",
    "SignatureDoesNotMatch": "'aws configure' sets the secret key",
    "AuthorizationHeaderMalformed": "set AWS_DEFAULT_REGION to the region of the bucket",
    "IllegalLocationConstraintException": "set AWS_DEFAULT_REGION to the region of the bucket",
    "PermanentRedirect": "set AWS_DEFAULT_REGION to the region of the bucket",
    "301": "set AWS_DEFAULT_REGION to the region of the bucket",
}
"""What the service calls an error of the settings -> what to do."""
_NEEDED: dict[Action, str] = {
    "read": "s3:GetObject", "list": "s3:ListBucket", "write": "s3:PutObject",
    "delete": "s3:DeleteObject",
}  # fmt: skip
"""Action -> the permission that it requires."""
_ALL = "s3:ListBucket, s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload"
_NOT_AUTHORIZED = re.compile(r"(?:User: (\S+) )?is not authorized to perform: (s3:\w+)")

_found: tuple[Any, float, tuple[object, ...]] | None = None
_finding = threading.Lock()


class S3Failure(Failure):
    """A failed request.

    Attributes:
      code: what the service calls the error, such as SlowDown; empty if there was no response.
    """

    def __init__(self, reason: str, status: int, code: str, message: str) -> None:
        again = True if code in _RETRIED else None
        cause: retry.Cause = "credentials" if code in _NO_TOKEN else ""
        super().__init__(reason, status, message=message, retry=again, cause=cause)
        self.code = code


def client(uri: str) -> Any:
    """Returns the client of this process, which threads share.

    If there are no credentials, the next search for some is after a minute: users may log in.

    Raises:
      NoFilesystem: botocore is not installed.
      Failure: a profile is incomplete or missing.
    """
    global _found
    key = (retry.POLICY, *map(os.environ.get, _VARIABLES))
    found = _found
    if found is None or found[2] != key or time.monotonic() > found[1]:
        with _finding:
            found = _found
            if found is None or found[2] != key or time.monotonic() > found[1]:
                made = _make(uri)
                final = not is_anonymous(made)
                until = float("inf") if final else time.monotonic() + _RETRY_SECONDS
                found = _found = made, until, key
    return found[0]


def _make(uri: str) -> Any:
    if extras.missing("s3"):
        raise NoFilesystem(f"{uri}: botocore is not installed: {extras.installation('s3')}")
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    try:
        session = Session()
        settings = {
            "signature_version": None if session.get_credentials() else UNSIGNED,
            "connect_timeout": retry.POLICY.connect,
            "read_timeout": retry.POLICY.silence,
            "max_pool_connections": _CONNECTIONS,
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            "user_agent_appid": "imageshards",
        }
        made = session.create_client("s3", config=Config(**settings))
        style = (session.get_scoped_config().get("s3") or {}).get("addressing_style")
        if "amazonaws.com" not in made.meta.endpoint_url and not style:
            # Other servers have no name in DNS for each bucket.
            config = Config(**settings, s3={"addressing_style": "path"})
            made = session.create_client("s3", config=config)
    except (BotoCoreError, ValueError) as error:  # ValueError: an endpoint that is no URL
        raise failure_of(error) from error
    made.meta.events.register("before-call.s3.HeadBucket", _keep_redirect)
    return made


def _keep_redirect(context: dict[str, Any], **_: Any) -> None:
    """Returns a redirect of HeadBucket as it is, instead of following it.

    botocore follows a redirect without a region by a HeadBucket, whose response names the region.
    It follows a redirect of that request in the same way: if each response is a redirect, for ever.
    """
    context["s3_redirect"]["redirected"] = True


def is_anonymous(found: Any) -> bool:
    """Returns whether the requests of a client are not signed."""
    from botocore import UNSIGNED

    return found.meta.config.signature_version is UNSIGNED


def failure_of(error: Exception) -> Failure:
    """Returns the failure of an error of botocore."""
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    if isinstance(error, exceptions.ClientError):
        return _failure_of_response(error.response)
    if isinstance(error, exceptions.ReadTimeoutError):
        return Failure(f"no data for {retry.POLICY.silence:g} s")
    broken = (
        exceptions.IncompleteReadError, exceptions.ResponseStreamingError, ResponseParserError
    )  # fmt: skip
    if isinstance(error, broken):
        return Failure("the response breaks off")
    if isinstance(error, (exceptions.ConnectionError, exceptions.HTTPClientError)):
        reason = connection_error(error.kwargs.get("error") or error)
        return Failure(reason, cause="offline" if "resolve" in reason else "")
    reason = str(error).strip().rpartition("\n")[2]
    invalid = (exceptions.ParamValidationError, ValueError)
    return Failure(reason, retry=False, cause="" if isinstance(error, invalid) else "credentials")


def _failure_of_response(response: Any) -> Failure:
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    error = response.get("Error", {})
    code, message = str(error.get("Code", "")), str(error.get("Message", ""))
    if code.isdigit():  # the response to a HEAD request has no body
        return S3Failure(f"status {status} {message}".rstrip(), status, code, "")
    return S3Failure(f"status {status} {code}", status, code, message.rstrip("."))


def refusal(uri: str, action: Action, failure: Failure) -> StoreError:
    """Returns the error of a refused request: what the service says, and what to do."""
    if failure.cause == "credentials":
        return StoreError(
            f"{uri}: the AWS credentials cannot be used: {failure}; 'aws sso login' or "
            "'aws configure' renews them"
        )
    if not isinstance(failure, S3Failure) or failure.code not in _DENIED:
        advice = _WRONG.get(failure.code, "") if isinstance(failure, S3Failure) else ""
        return Refused(f"{cannot(uri, action)}: {failure}{advice and '; '}{advice}")
    if is_anonymous(client(uri)):
        return Refused(
            f"{uri}: not public, and no AWS credentials were found: run 'aws configure', or set "
            "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    named = _NOT_AUTHORIZED.search(failure.message)
    account = (named and named[1]) or "this account"
    permission = named[2] if named else _NEEDED[action]
    problem = f"{uri}: {account} has no permission {permission}"
    if action == "read" and not named:
        problem += ", or it does not exist, which S3 reports to those with s3:ListBucket only"
    where = f"on the bucket {uri.split('/')[2]}, in a policy of the account or of the bucket"
    return Refused(f"{problem}: grant it {where}", f"{problem}: grant {_ALL} {where}")
