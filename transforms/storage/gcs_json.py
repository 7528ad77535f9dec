"""Requests to the JSON API of Google Cloud Storage: lists, writes and deletions.

Uploads of more than one request are resumable uploads: one that is not completed costs nothing and
expires in a week, while the parts of a multipart upload stay in the bucket, invisible and billed,
when a process is killed. Emulators such as fake-gcs-server accept writes through this API only.

The API: https://cloud.google.com/storage/docs/json_api/v1
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import google_crc32c

from imageshards.transforms.storage import gcs_auth, parallel_list, retry
from imageshards.transforms.storage.gcs_read import get, stat
from imageshards.transforms.storage.messages import message_in
from imageshards.transforms.storage.objects import split
from imageshards.transforms.storage.protocol import RESUME, Entry, LostUpload, Names, StoreError
from imageshards.transforms.storage.retry import (
    Action,
    Failure,
    cannot,
    connection_error,
    translate,
)

if TYPE_CHECKING:
    from google.auth.transport.requests import AuthorizedSession

__all__ = [
    "abort_uploads", "crc32c", "delete", "get", "list_first", "list_folder", "list_part",
    "list_prefix", "open_upload", "put", "stat",
]  # fmt: skip
"""The requests that `ObjectStore` requires of a service; `gcs_read` makes `get` and `stat`."""

T = TypeVar("T")

_CONTENT_TYPE = "application/octet-stream"
_PRECONDITION_FAILED, _INCOMPLETE = 412, 308
_NO_SUCH_SESSION = (404, 410)
_NOT_AS_SENT = "its size or CRC-32C differs from what was sent"
_SESSION_LOST = "the service has lost the upload"

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
    url = f"{gcs_auth.endpoint()}{prefix}/storage/v1/b/{quote(bucket, safe='')}/o"
    return f"{url}/{quote(name, safe='')}" if name else url


def _send(
    method: str, url: str, accept: int = 0, headers: Mapping[str, str] | None = None, **options: Any
) -> Any:
    """Makes one attempt at a request.

    Args:
      method: the HTTP method.
      url: the URL.
      accept: a status of 300 or more that is not a failure.
      headers: its headers, besides those of all requests.
      options: options of `requests.request`.

    Raises:
      Failure: no response, or a response with another status of 300 or more.
    """
    from google.auth.exceptions import InvalidOperation, RefreshError, TransportError
    from requests.exceptions import RequestException

    timeout = (retry.POLICY.connect, retry.POLICY.silence)
    try:
        response = _session().request(  # type: ignore[no-untyped-call]
            method, url, timeout=timeout, allow_redirects=False,
            headers={**gcs_auth.headers(), **(headers or {})}, **options
        )  # fmt: skip
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
        message = message_in(response.text)
        reason = f"status {code}" if message else f"status {code} {response.reason}"
        raise Failure(reason, code, message=message)
    return response


def _json(response: Any) -> dict[str, Any]:
    """Returns the JSON object in a response; its end may be missing, without any other error."""
    try:
        found: dict[str, Any] = response.json()
    except ValueError as error:
        raise Failure("the response breaks off") from error
    return found


def request(
    method: str,
    uri: str,
    action: Action,
    take: Callable[[Any], T],
    prefix: str = "",
    **options: Any,
) -> T:
    """Makes a request for an object, or for a bucket's objects if the URI names none, with retries.

    Args:
      method: the HTTP method.
      uri: the object's URI.
      action: what the request does.
      take: returns the result of a response; if it raises a Failure, the request is retried.
      prefix: beginning of the URL's path.
      options: options of `_send`.

    Raises:
      FileNotFoundError: the object or the bucket does not exist.
      StoreError: no permission, or no response.
    """
    try:
        return retry.POLICY.call(lambda: take(_send(method, _url(uri, prefix), **options)))
    except Failure as failure:
        raise translate(uri, action, failure, gcs_auth.refusal) from failure


def _size(metadata: Mapping[str, str]) -> int:
    # Other servers omit the size of empty objects.
    return int(metadata.get("size", 0))


def delete(uri: str) -> None:
    """Deletes an object, if it exists."""
    with suppress(FileNotFoundError):
        request("DELETE", uri, "delete", _nothing)


def _nothing(response: Any) -> None:
    """Takes nothing from a response."""


def _list(bucket: str, fields: str, most: int = 0, **params: str) -> Iterator[dict[str, Any]]:
    """Yields these fields of objects: of the first `most` objects, or of all if it is 0."""
    params = {name: value for name, value in params.items() if value}
    params["fields"] = f"items({fields}),nextPageToken"
    uri = f"gs://{bucket}"
    found = 0
    while True:
        if most:
            params["maxResults"] = str(most - found)
        try:
            page = request("GET", uri, "list", _json, params=params)
        except FileNotFoundError as error:
            raise _no_bucket(uri) from error
        items = page.get("items", ())
        yield from items
        found += len(items)
        # A page may have fewer objects than requested, or none, without being the last.
        if "nextPageToken" not in page or found == most > 0:
            return
        params["pageToken"] = page["nextPageToken"]


def _no_bucket(uri: str) -> StoreError:
    return StoreError(f"gs://{split(uri)[0]}: there is no such bucket")


def list_prefix(bucket: str, prefix: str) -> Iterator[tuple[str, int, int]]:
    """Yields (name, bytes, generation) of the objects with a prefix, in any order."""
    for entries in parallel_list.pages(partial(_page, bucket), prefix):
        yield from entries


def list_part(
    bucket: str, prefix: str, names: Names, few: bool
) -> Iterator[tuple[str, int, int] | Names]:
    """Yields the objects with a prefix and names in a range; see `parallel_list.part_pages`."""
    page = partial(_page, bucket)
    return parallel_list.items_of(parallel_list.part_pages(page, prefix, names, few))


def list_first(
    bucket: str, prefix: str, accept: Callable[[str], object]
) -> list[tuple[str, int, int]]:
    """Returns the accepted objects of the first page with any; see `parallel_list.first_page`."""
    return parallel_list.first_page(partial(_page, bucket), prefix, accept)


def _page(bucket: str, start: str, end: str, most: int) -> list[parallel_list.Item]:
    items = _list(bucket, "name,size,generation", most, startOffset=start, endOffset=end)
    return [(item["name"], _size(item), int(item["generation"])) for item in items]


def list_folder(bucket: str, prefix: str) -> Iterator[Entry]:
    """Yields the objects directly below a prefix, which is empty or ends with `/`."""
    for item in _list(bucket, "name,updated,size,crc32c", prefix=prefix, delimiter="/"):
        if item["name"] != prefix:
            updated = datetime.fromisoformat(item["updated"])
            yield Entry(
                item["name"].removeprefix(prefix),
                int(updated.timestamp() * 1e9),
                _size(item),
                _crc32c(item),
            )


def crc32c(uri: str) -> int | None:
    """Returns the CRC-32C of an object, which lists do not always report; None without it."""
    try:
        return _crc32c(request("GET", uri, "read", _json, params={"fields": "crc32c"}))
    except FileNotFoundError:
        return None


def _crc32c(metadata: Mapping[str, str]) -> int | None:
    # Lists do not report it for objects under a customer-managed key.
    text = metadata.get("crc32c")
    return int.from_bytes(base64.b64decode(text)) if text else None


def _post(
    uri: str,
    take: Callable[[Any], T],
    params: dict[str, str],
    headers: dict[str, str],
    **options: Any,
) -> T:
    """Makes the request that writes an object, or that begins an upload; see `request`."""
    bucket, name = split(uri)
    url, params = f"gs://{bucket}", {**params, "name": name}
    try:
        return request(
            "POST", url, "write", take, "/upload", params=params, headers=headers, **options
        )
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

    crc32c = google_crc32c.value(data)

    def take(response: Any) -> bool:
        if response.status_code == _PRECONDITION_FAILED:
            return False
        if not _is_as_sent(uri, _json(response), len(data), crc32c):
            raise Failure(_NOT_AS_SENT)
        return True

    return _post(
        uri, take, {"uploadType": "media", **condition}, {"Content-Type": _CONTENT_TYPE},
        data=data, accept=_PRECONDITION_FAILED,
    )  # fmt: skip


def _is_as_sent(uri: str, written: Mapping[str, str], size: int, crc32c: int) -> bool:
    """Returns whether a written object has this size and CRC-32C; if not, deletes it."""
    if _size(written) == size and _crc32c(written) in (None, crc32c):
        return True
    # Another writer may have replaced it in the meantime.
    condition = {"ifGenerationMatch": written["generation"]}
    with suppress(FileNotFoundError):
        request("DELETE", uri, "delete", _nothing, accept=_PRECONDITION_FAILED, params=condition)
    return False


class _Upload:
    """A resumable upload. The object appears when the last request is complete.

    A request that fails is continued where the service reports, and so is one of which it has taken
    a part. If it has lost the upload, a new one is begun if all bytes are known still.

    The protocol: https://cloud.google.com/storage/docs/performing-resumable-uploads
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._session_url = self._begin()
        self._sent = 0
        self._crc32c = 0

    def _begin(self) -> str:
        headers = {"X-Upload-Content-Type": _CONTENT_TYPE}
        url: str = _post(
            self._uri, lambda r: r.headers["Location"], {"uploadType": "resumable"}, headers
        )
        return url

    def append(self, data: bytes) -> None:
        """Sends a multiple of 256 KiB."""
        self._send(data, last=False)

    def finish(self, data: bytes) -> None:
        """Sends the last bytes, which may be none, and completes the object."""
        written = self._send(data, last=True)
        if not _is_as_sent(self._uri, written, self._sent, self._crc32c):
            raise self._lost(_NOT_AS_SENT)

    def abort(self) -> None:
        """Does nothing: the service discards the upload in a week, and does not bill it."""

    def _send(self, data: bytes, *, last: bool) -> dict[str, Any]:
        """Sends the next bytes; returns the object's metadata after the last ones."""
        begin, end = self._sent, self._sent + len(data)
        crc32c = google_crc32c.extend(self._crc32c, data)
        total = str(end) if last else "*"
        received: int | None = begin  # None: unknown, since a request failed

        def attempt() -> dict[str, Any]:
            nonlocal received
            while True:
                offset, received = received, None
                if offset is None or offset == end:
                    # The server reports how much it received, and completes the object if it has
                    # received everything.
                    span, rest = "*", b""
                else:
                    span, rest = f"{offset}-{end - 1}", data[offset - begin :]
                try:
                    response = _send(
                        "PUT", self._session_url, _INCOMPLETE, data=rest,
                        headers={"Content-Range": f"bytes {span}/{total}"},
                    )  # fmt: skip
                except Failure as failure:
                    if failure.status not in _NO_SUCH_SESSION:
                        raise
                    if last and (written := self._completed(end, crc32c)):
                        return written
                    received = self._begin_again(begin)
                    raise Failure(_SESSION_LOST) from failure
                if response.status_code != _INCOMPLETE:
                    return _json(response)
                until = response.headers.get("Range", "").rpartition("-")[2]
                received = int(until) + 1 if until else 0
                if received == end and not last:
                    return {}
                if received < begin:
                    received = self._begin_again(begin)
                elif offset is not None and received <= offset:
                    raise Failure("the server received a part only")

        try:
            written = retry.POLICY.call(attempt)
        except Failure as failure:
            raise translate(self._uri, "write", failure, gcs_auth.refusal) from failure
        self._sent, self._crc32c = end, crc32c
        return written

    def _completed(self, size: int, crc32c: int) -> dict[str, Any] | None:
        """Returns the object's metadata if it exists and has this content."""
        try:
            found = _json(_send("GET", _url(self._uri), params={"fields": "size,crc32c"}))
        except Failure as failure:
            if failure.status == 404:
                return None
            raise
        return found if (_size(found), _crc32c(found)) == (size, crc32c) else None

    def _begin_again(self, lost: int) -> int:
        """Begins another upload, and returns its first byte; `lost` bytes are not known any more.

        Raises:
          LostUpload: there are some.
        """
        if lost:
            raise self._lost(_SESSION_LOST)
        self._session_url = self._begin()
        return 0

    def _lost(self, reason: str) -> LostUpload:
        return LostUpload(f"{cannot(self._uri, 'write')}: {reason}; {RESUME}")


def open_upload(uri: str) -> _Upload:
    """Begins to write an object in several requests."""
    return _Upload(uri)


def abort_uploads(bucket: str, prefix: str) -> None:
    """Does nothing: the service discards unfinished uploads in a week, and does not bill them."""
