"""Requests to Amazon S3, and to servers with its protocol.

Objects are written with their CRC-32C, which the service compares. The parts of an upload that is
not completed stay in the bucket, invisible and billed, until `abort_uploads` deletes them.

The API: https://docs.aws.amazon.com/AmazonS3/latest/API/Welcome.html
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import google_crc32c

from imageshards.transforms.storage import parallel_list, retry
from imageshards.transforms.storage.clouds.download import (
    PRECONDITION_FAILED,
    Response,
    download,
    stamp_of,
)
from imageshards.transforms.storage.clouds.s3_client import client, failure_of, refusal
from imageshards.transforms.storage.objects import Content, split
from imageshards.transforms.storage.protocol import (
    RESUME,
    UNKNOWN,
    Entry,
    LostUpload,
    Names,
    StoreError,
)
from imageshards.transforms.storage.retry import Action, Failure, Pace, cannot, translate

PACE = Pace()
"""The pace of this process's reads."""
_PIECE_BYTES = 128 << 10
_CONTROL, _SPACE, _LAST = re.compile(r"[\x00-\x1f]"), 0x20, "\U0010ffff"
_PAYER = "AWS_REQUEST_PAYER"
"""Environment variable: `requester`, to pay for the requests to buckets with Requester Pays."""


def _send(uri: str, operation: str, **parameters: Any) -> Any:
    """Makes one attempt at a request of a bucket, or of an object if the URI names one.

    Raises:
      Failure: no response, or a response with an error.
    """
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    bucket, name = split(uri)
    if name:
        parameters["Key"] = name
    if payer := os.environ.get(_PAYER):
        parameters["RequestPayer"] = payer
    found = client(uri)
    try:
        return getattr(found, operation)(Bucket=bucket, **parameters)
    except (BotoCoreError, ClientError, ResponseParserError) as error:
        raise failure_of(error) from error


def _request(uri: str, action: Action, operation: str, **parameters: Any) -> Any:
    """Makes a request, with retries.

    Raises:
      FileNotFoundError: the object or the bucket does not exist.
      StoreError: no permission, or no response.
    """
    try:
        return retry.POLICY.call(lambda: _send(uri, operation, **parameters))
    except Failure as failure:
        raise translate(uri, action, failure, refusal) from failure


def get(uri: str, stamp: int, span: tuple[int, int] | None, limit: int) -> Content:
    """Reads an object, or a part of it; see `objects.Api.get`."""
    return download(uri, partial(_get, uri), (stamp, span, limit), PACE, refusal)


def _get(uri: str, etag: str, begin: int, end: int | None) -> Response:
    whole = begin == 0 and end is None
    # Of a range, the service may report the checksum of a part.
    options = {"ChecksumMode": "ENABLED"} if whole else {}
    if not whole:
        options["Range"] = f"bytes={begin}-{'' if end is None else end - 1}"
    if etag:
        options["IfMatch"] = etag
    found = _send(uri, "get_object", **options)
    total = found.get("ContentRange", "").rpartition("/")[2]
    return Response(
        found["ETag"], int(total or found["ContentLength"]), bool(total), _pieces(found["Body"]),
        "gzip" in found.get("ContentEncoding", ""), _crc32c(found),
    )  # fmt: skip


def _pieces(body: Any) -> Iterator[bytes]:
    from botocore.exceptions import BotoCoreError

    try:
        while piece := body.read(_PIECE_BYTES):
            yield piece
    except (BotoCoreError, OSError) as error:
        raise failure_of(error) from error
    finally:
        body.close()


def _crc32c(found: Any) -> int | None:
    """The CRC-32C of a whole object. That of an upload of parts may be one of their checksums."""
    text = found.get("ChecksumCRC32C", "")
    if not text or "-" in text or found.get("ChecksumType") == "COMPOSITE":
        return None
    return int.from_bytes(base64.b64decode(text))


def _encoded(crc32c: int) -> str:
    return base64.b64encode(crc32c.to_bytes(4)).decode()


def stat(uri: str) -> tuple[int, int]:
    """Returns (bytes, stamp) of an object, or `UNKNOWN`."""
    try:
        found = _request(uri, "read", "head_object")
    except FileNotFoundError:
        return UNKNOWN
    return found["ContentLength"], stamp_of(found["ETag"])


def crc32c(uri: str) -> int | None:
    """Returns the CRC-32C of an object; None without it."""
    try:
        return _crc32c(_request(uri, "read", "head_object", ChecksumMode="ENABLED"))
    except FileNotFoundError:
        return None


def _list(bucket: str, operation: str = "list_objects_v2", **options: Any) -> Iterator[Any]:
    """Yields the pages of a list."""
    uri = f"s3://{bucket}"
    while True:
        try:
            page = _request(uri, "list", operation, **options)
        except FileNotFoundError as error:
            raise _no_bucket(uri) from error
        yield page
        if not page.get("IsTruncated"):
            return
        for name in ("ContinuationToken", "KeyMarker", "UploadIdMarker"):
            if following := page.get(f"Next{name}"):
                options[name] = following


def _no_bucket(uri: str) -> StoreError:
    return StoreError(f"s3://{split(uri)[0]}: there is no such bucket")


def list_prefix(bucket: str, prefix: str) -> Iterator[tuple[str, int, int]]:
    """Yields (name, bytes, stamp) of the objects with a prefix, in any order."""
    for items in parallel_list.pages(partial(_page, bucket, prefix), prefix):
        yield from items


def list_part(
    bucket: str, prefix: str, names: Names, few: bool
) -> Iterator[tuple[str, int, int] | Names]:
    """Yields the objects with a prefix and names in a range; see `parallel_list.part_pages`."""
    page = partial(_page, bucket, prefix)
    return parallel_list.items_of(parallel_list.part_pages(page, prefix, names, few))


def list_first(
    bucket: str, prefix: str, accept: Callable[[str], object]
) -> list[tuple[str, int, int]]:
    """Returns the accepted objects of the first page with any; see `parallel_list.first_page`."""
    return parallel_list.first_page(partial(_page, bucket, prefix), prefix, accept)


def _page(bucket: str, prefix: str, start: str, end: str, most: int) -> list[parallel_list.Item]:
    """Lists the first objects with a prefix whose names are in a range."""
    options: dict[str, Any] = {"Prefix": prefix, "MaxKeys": most}
    if start > prefix and (before := _before(start)):
        options["StartAfter"] = before
    found: list[parallel_list.Item] = []
    for page in _list(bucket, **options):
        for item in page.get("Contents", ()):
            if end and item["Key"] >= end:
                return found
            if item["Key"] >= start:
                found.append((item["Key"], item["Size"], stamp_of(item["ETag"])))
        # A page may have fewer objects than requested without being the last.
        if len(found) >= most:
            break
    return found[:most]


def _before(name: str) -> str:
    """A name before another one, with few names between the two: a list begins after a name.

    It has no control characters, which not all servers accept.
    """
    if control := _CONTROL.search(name):
        return name[: control.start()]
    last = ord(name[-1])
    if last == _SPACE:
        return name[:-1]
    return name[:-1] + chr(0xD7FF if last == 0xE000 else last - 1) + _LAST


def list_folder(bucket: str, prefix: str) -> Iterator[Entry]:
    """Yields the objects directly below a prefix, which is empty or ends with `/`."""
    for page in _list(bucket, Prefix=prefix, Delimiter="/"):
        for item in page.get("Contents", ()):
            if item["Key"] != prefix:
                modified = int(item["LastModified"].timestamp() * 1e9)
                yield Entry(item["Key"].removeprefix(prefix), modified, item["Size"])


def delete(uri: str) -> None:
    """Deletes an object, if it exists."""
    with suppress(FileNotFoundError):
        _request(uri, "delete", "delete_object")


def put(uri: str, data: bytes, stamp: int | None) -> bool:
    """Writes an object in one request; see `objects.Api.put`.

    Returns:
      False if the object has another stamp. That includes the case that the response to a write
      was lost, and a retry found the new object.
    """
    options: dict[str, Any] = {}
    if stamp == 0:
        options["IfNoneMatch"] = "*"
    try:
        if stamp:
            options["IfMatch"] = _request(uri, "read", "head_object")["ETag"]
            if stamp_of(options["IfMatch"]) != stamp:
                return False
        checksum = _encoded(google_crc32c.value(data))
        retry.POLICY.call(
            lambda: _send(
                uri, "put_object", Body=data, ChecksumAlgorithm="CRC32C", ChecksumCRC32C=checksum,
                **options,
            )
        )  # fmt: skip
    except FileNotFoundError:
        return False
    except Failure as failure:
        if failure.status == PRECONDITION_FAILED:
            return False
        error = translate(uri, "write", failure, refusal)
        if not isinstance(error, FileNotFoundError):
            raise error from failure
        if stamp:  # it was deleted since
            return False
        raise _no_bucket(uri) from failure
    return True


class _Upload:
    """An upload of parts. The object appears when the last request is complete."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._parts: list[dict[str, Any]] = []
        self._size = 0
        self._crc32c = 0
        try:
            found = _request(
                uri, "write", "create_multipart_upload",
                ChecksumAlgorithm="CRC32C", ChecksumType="FULL_OBJECT",
            )  # fmt: skip
        except FileNotFoundError as error:
            raise _no_bucket(uri) from error
        self._id = found["UploadId"]

    def append(self, data: bytes) -> None:
        """Sends a part of at least 5 MiB, or the last one."""
        number, checksum = len(self._parts) + 1, _encoded(google_crc32c.value(data))
        try:
            found = _request(
                self._uri, "write", "upload_part", UploadId=self._id, PartNumber=number, Body=data,
                ChecksumAlgorithm="CRC32C", ChecksumCRC32C=checksum,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise self._lost() from error
        self._parts.append(
            {"PartNumber": number, "ETag": found["ETag"], "ChecksumCRC32C": checksum}
        )
        self._size += len(data)
        self._crc32c = google_crc32c.extend(self._crc32c, data)

    def finish(self, data: bytes) -> None:
        """Sends the last bytes, which may be none, and completes the object."""
        if data:
            self.append(data)
        try:
            _request(
                self._uri, "write", "complete_multipart_upload", UploadId=self._id,
                MultipartUpload={"Parts": self._parts}, ChecksumType="FULL_OBJECT",
                ChecksumCRC32C=_encoded(self._crc32c),
            )  # fmt: skip
        except FileNotFoundError as error:
            # The response to an earlier attempt may have been lost.
            if stat(self._uri)[0] != self._size or crc32c(self._uri) != self._crc32c:
                raise self._lost() from error

    def abort(self) -> None:
        """Deletes the parts that were sent."""
        _abort(self._uri, self._id)

    def _lost(self) -> LostUpload:
        return LostUpload(
            f"{cannot(self._uri, 'write')}: the service has lost the upload; {RESUME}"
        )


def open_upload(uri: str) -> _Upload:
    """Begins to write an object in several requests."""
    return _Upload(uri)


def _abort(uri: str, upload_id: str) -> None:
    with suppress(FileNotFoundError):
        _request(uri, "delete", "abort_multipart_upload", UploadId=upload_id)


def abort_uploads(bucket: str, prefix: str) -> None:
    """Deletes the parts of the uploads with a prefix that killed processes did not complete."""
    for page in _list(bucket, "list_multipart_uploads", Prefix=prefix):
        for upload in page.get("Uploads", ()):
            _abort(f"s3://{bucket}/{upload['Key']}", upload["UploadId"])
