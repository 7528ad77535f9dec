"""Requests to the JSON API of Google Cloud Storage: lists, writes and deletions.

Uploads of more than one request are resumable uploads: one that is not completed costs nothing and
expires in a week, while the parts of a multipart upload stay in the bucket, invisible and billed,
when a process is killed. Emulators such as fake-gcs-server accept writes through this API only.

The API: https://cloud.google.com/storage/docs/json_api/v1
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import google_crc32c

from imageshards.transforms.elements import BuildError
from imageshards.transforms.storage import gcs_auth, gcs_list, retry
from imageshards.transforms.storage.objects import split
from imageshards.transforms.storage.protocol import Entry
from imageshards.transforms.storage.retry import Action, Failure, connection_error, translate

if TYPE_CHECKING:
    from google.auth.transport.requests import AuthorizedSession

_CONTENT_TYPE = "application/octet-stream"
_PRECONDITION_FAILED, _INCOMPLETE = 412, 308

_threads = threading.local()


def _session() -> AuthorizedSession:
    found = gcs_auth.credentials()  # others after a minute, if there were none at first
    if getattr(_threads, "credentials", None) is not found:
        from google.auth.transport.requests import AuthorizedSession

        _threads.credentials = found
        _threads.session = AuthorizedSession(found)  # type: ignore[no-untyped-call]
    session: AuthorizedSession = _threads.session
    return session


def _url(uri: str, prefix: str = "") -> str:
    """Returns the URL of an object, or of the objects of a bucket if the URI names none."""
    bucket, name = split(uri)
    url = f"{gcs_auth.server()}{prefix}/storage/v1/b/{quote(bucket, safe='')}/o"
    return f"{url}/{quote(name, safe='')}" if name else url


def _send(method: str, url: str, accept: int = 0, **options: Any) -> Any:
    """Makes one attempt at a request.

    Args:
      method: the HTTP method.
      url: the URL.
      accept: a status of 300 or more that is not a failure.
      options: options of `requests.request`.

    Raises:
      Failure: no response, or a response with another status of 300 or more.
    """
    from google.auth.exceptions import InvalidOperation, RefreshError, TransportError
    from requests.exceptions import RequestException

    timeout = (retry.POLICY.connect, retry.POLICY.silence)
    try:
        response = _session().request(  # type: ignore[no-untyped-call]
            method, url, timeout=timeout, allow_redirects=False, **options
        )
    except RefreshError as error:
        again = bool(getattr(error, "retryable", False))
        reason = gcs_auth.reason_of(error)
        raise Failure(reason, retry=again, cause="" if again else "credentials") from error
    except InvalidOperation as error:  # anonymous credentials, which cannot be refreshed
        raise Failure("status 401 Unauthorized", 401) from error
    except (RequestException, TransportError) as error:
        reason = connection_error(error)
        raise Failure(reason, cause="offline" if "Failed to resolve" in reason else "") from error
    code = response.status_code
    if code >= 300 and code != accept:
        raise Failure(f"status {code} {response.reason}", code)
    return response


def request(method: str, uri: str, action: Action, url: str = "", **options: Any) -> Any:
    """Makes a request for an object, or for a bucket's objects if the URI names none, with retries.

    Raises:
      FileNotFoundError: the object or the bucket does not exist.
      StoreError: no permission, or no response.
    """
    try:
        return retry.POLICY.call(lambda: _send(method, url or _url(uri), **options))
    except Failure as failure:
        raise translate(uri, action, failure, gcs_auth.refusal) from failure


def delete(uri: str) -> None:
    """Deletes an object, if it exists."""
    with suppress(FileNotFoundError):
        request("DELETE", uri, "delete")


def _list(bucket: str, fields: str, most: int = 0, **params: str) -> list[dict[str, Any]]:
    """Lists these fields of objects: of the first `most` objects, or of all if it is 0."""
    params = {name: value for name, value in params.items() if value}
    params["fields"] = f"items({fields}),nextPageToken"
    uri = f"gs://{bucket}"
    found: list[dict[str, Any]] = []
    while True:
        if most:
            params["maxResults"] = str(most - len(found))
        try:
            page = request("GET", uri, "list", params=params).json()
        except FileNotFoundError as error:
            raise _no_bucket(uri) from error
        found += page.get("items", ())
        # A page may have fewer objects than requested, or none, without being the last.
        if "nextPageToken" not in page or len(found) == most > 0:
            return found
        params["pageToken"] = page["nextPageToken"]


def _no_bucket(uri: str) -> BuildError:
    return BuildError(f"gs://{split(uri)[0]}: there is no such bucket")


def list_prefix(bucket: str, prefix: str) -> Iterator[tuple[str, int, int]]:
    """Yields (name, bytes, generation) of the objects with a prefix, in any order."""

    def page(start: str, end: str, most: int) -> list[gcs_list.Item]:
        first = max(start, prefix)
        items = _list(bucket, "name,size,generation", most, startOffset=first, endOffset=end)
        return [(item["name"], int(item["size"]), int(item["generation"])) for item in items]

    for entries in gcs_list.pages(page, prefix):
        yield from entries


def list_folder(bucket: str, prefix: str) -> list[Entry]:
    """Returns the objects directly below a prefix, which is empty or ends with `/`."""
    items = _list(bucket, "name,updated,size,crc32c", prefix=prefix, delimiter="/")
    return [
        Entry(
            item["name"].removeprefix(prefix),
            int(datetime.fromisoformat(item["updated"]).timestamp() * 1e9),
            int(item["size"]),
            _crc32c(item),
        )
        for item in items
        if item["name"] != prefix
    ]


def _crc32c(metadata: Mapping[str, str]) -> int | None:
    # Lists do not report it for objects under a customer-managed key.
    text = metadata.get("crc32c")
    return int.from_bytes(base64.b64decode(text)) if text else None


def _post(uri: str, params: dict[str, str], headers: dict[str, str], **options: Any) -> Any:
    """Makes the request that writes an object, or that begins an upload."""
    bucket, name = split(uri)
    url = _url(f"gs://{bucket}", "/upload")
    params["name"] = name
    try:
        return request("POST", uri, "write", url, params=params, headers=headers, **options)
    except FileNotFoundError as error:
        raise _no_bucket(uri) from error


def put(uri: str, data: bytes, stamp: int | None) -> bool:
    """Writes an object in one request.

    Args:
      uri: the object's URI.
      data: its content.
      stamp: the generation to replace; 0 if the object must not exist; None for any.

    Returns:
      False if the object has another generation. That includes the case that the response to a
      write was lost, and a retry found the new object.
    """
    condition = {} if stamp is None else {"ifGenerationMatch": str(stamp)}
    response = _post(
        uri, {"uploadType": "media", **condition}, {"Content-Type": _CONTENT_TYPE},
        data=data, accept=_PRECONDITION_FAILED,
    )  # fmt: skip
    if response.status_code == _PRECONDITION_FAILED:
        return False
    _check(uri, response.json(), len(data), google_crc32c.value(data))
    return True


def _check(uri: str, written: Mapping[str, str], size: int, crc32c: int) -> None:
    """Deletes a written object, and raises StoreError, if size or CRC-32C are not as sent."""
    if int(written.get("size", 0)) != size or _crc32c(written) not in (None, crc32c):
        delete(uri)
        failure = Failure("its size or CRC-32C differs from what was sent")
        raise translate(uri, "write", failure, gcs_auth.refusal)


class _Upload:
    """A resumable upload. The object appears when the last request is complete.

    The protocol: https://cloud.google.com/storage/docs/performing-resumable-uploads
    """

    def __init__(self, uri: str) -> None:
        headers = {"X-Upload-Content-Type": _CONTENT_TYPE}
        response = _post(uri, {"uploadType": "resumable"}, headers)
        self._uri = uri
        self._session_url = response.headers["Location"]
        self._sent = 0
        self._crc32c = 0

    def append(self, data: bytes) -> None:
        """Sends a multiple of 256 KiB."""
        self._send(data, "*")

    def finish(self, data: bytes) -> None:
        """Sends the last bytes, which may be none, and completes the object."""
        written = self._send(data, str(self._sent + len(data)))
        _check(self._uri, written.json(), self._sent, self._crc32c)

    def _send(self, data: bytes, total: str) -> Any:
        begin, end = self._sent, self._sent + len(data)
        received: int | None = begin  # None: unknown, since a request failed

        def attempt() -> Any:
            nonlocal received
            while True:
                offset, received = received, None
                if offset is None or offset == end:
                    # The server reports how much it received, and completes the object if it has
                    # received everything.
                    span, rest = "*", b""
                else:
                    span, rest = f"{offset}-{end - 1}", data[offset - begin :]
                response = _send(
                    "PUT", self._session_url, _INCOMPLETE, data=rest,
                    headers={"Content-Range": f"bytes {span}/{total}"},
                )  # fmt: skip
                if response.status_code != _INCOMPLETE:
                    return response
                last = response.headers.get("Range", "").rpartition("-")[2]
                received = int(last) + 1 if last else 0
                if received == end and total == "*":
                    return response
                if received < begin or (offset is not None and received <= offset):
                    raise Failure("the server received a part only", retry=received >= begin)

        try:
            response = retry.POLICY.call(attempt)
        except Failure as failure:
            raise translate(self._uri, "write", failure, gcs_auth.refusal) from failure
        self._sent = end
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        return response


def open_upload(uri: str) -> _Upload:
    """Begins to write an object in several requests."""
    return _Upload(uri)
