"""Requests to Azure Blob Storage: az://CONTAINER/NAME.

The service discards the blocks of an upload that is not completed in a week.

The API: https://learn.microsoft.com/rest/api/storageservices/blob-service-rest-api
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from imageshards.transforms.storage import retry
from imageshards.transforms.storage.clouds import prefix_list
from imageshards.transforms.storage.clouds.azure_client import (
    AzureFailure,
    client,
    failure_of,
    refusal,
)
from imageshards.transforms.storage.clouds.download import (
    PRECONDITION_FAILED,
    Response,
    download,
    stamp_of,
)
from imageshards.transforms.storage.objects import Content, split
from imageshards.transforms.storage.parallel_list import Item, items_of
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
_PAGE_ITEMS = 5000
"""The most items that a page of a list can have."""
_FIRST_ITEMS, _FIRST_PAGES = 1000, 4


def _send(uri: str, operation: str, *arguments: Any, **options: Any) -> Any:
    """Makes one attempt at a request of a blob, or of a container if the URI names no blob.

    Raises:
      Failure: no response, or a response with an error.
    """
    from azure.core.exceptions import AzureError

    container, name = split(uri)
    found = client(uri)
    try:
        of = (
            found.get_blob_client(container, name)
            if name
            else found.get_container_client(container)
        )
        return getattr(of, operation)(*arguments, **options)
    except (AzureError, ValueError) as error:
        raise failure_of(error) from error


def _request(uri: str, action: Action, operation: str, *arguments: Any, **options: Any) -> Any:
    """Makes a request, with retries.

    Raises:
      FileNotFoundError: the blob or the container does not exist.
      StoreError: no permission, or no response.
    """
    try:
        return retry.POLICY.call(lambda: _send(uri, operation, *arguments, **options))
    except Failure as failure:
        raise translate(uri, action, failure, refusal) from failure


def get(uri: str, stamp: int, span: tuple[int, int] | None, limit: int) -> Content:
    """Reads a blob, or a part of it; see `objects.Api.get`."""
    request = partial(_get, uri, limit + 1 if limit else None)
    return download(uri, request, (stamp, span, limit), PACE, refusal)


def _get(uri: str, most: int | None, etag: str, begin: int, end: int | None) -> Response:
    options = _if_etag(etag) if etag else {}
    stop = most if end is None else end
    if begin or stop is not None:
        options["offset"] = begin
        options["length"] = None if stop is None else stop - begin
    headers: dict[str, str] = {}

    def take(response: Any) -> None:
        headers.update({k.lower(): v for k, v in response.http_response.headers.items()})

    found = _send(uri, "download_blob", raw_response_hook=take, decompress=False, **options)
    data: bytes = found.readall()
    total = headers.get("content-range", "").rpartition("/")[2]
    size = int(total or len(data))
    md5 = found.properties.content_settings.content_md5
    return Response(
        headers["etag"], size, bool(total), [data], "gzip" in headers.get("content-encoding", ""),
        md5=bytes(md5) if md5 and len(data) == size else None,
    )  # fmt: skip


def _if_etag(etag: str) -> dict[str, Any]:
    from azure.core import MatchConditions

    return {"etag": etag, "match_condition": MatchConditions.IfNotModified}


def stat(uri: str) -> tuple[int, int]:
    """Returns (bytes, stamp) of a blob, or `UNKNOWN`."""
    try:
        found = _request(uri, "read", "get_blob_properties")
    except FileNotFoundError:
        return UNKNOWN
    return found.size, stamp_of(found.etag)


def crc32c(uri: str) -> int | None:
    """Returns None: the service has no CRC-32C."""
    return None


def _pages(container: str, operation: str = "list_blobs", **options: Any) -> Iterator[list[Any]]:
    """Yields the pages of a list."""
    uri, token = f"az://{container}", None
    while True:
        try:
            items, token = retry.POLICY.call(partial(_page, uri, operation, token, options))
        except Failure as failure:
            raise _translated(uri, "list", failure) from failure
        yield items
        if not token:
            return


def _page(
    uri: str, operation: str, token: str | None, options: dict[str, Any]
) -> tuple[list[Any], str | None]:
    """Makes one attempt at the request of a page; returns its items, and the next page's token."""
    from azure.core.exceptions import AzureError

    pages = _send(uri, operation, **options).by_page(token)
    try:
        return list(next(pages, ())), pages.continuation_token
    except (AzureError, ValueError) as error:
        raise failure_of(error) from error


def _translated(uri: str, action: Action, failure: Failure) -> Exception:
    """The error of a request that fails with the status 404 only if there is no container."""
    error = translate(uri, action, failure, refusal)
    return _no_container(uri) if isinstance(error, FileNotFoundError) else error


def _no_container(uri: str) -> StoreError:
    return StoreError(f"az://{split(uri)[0]}: there is no such container")


def _is_blob(found: Any) -> bool:
    """Whether an item of a list by levels is a blob, and not a folder."""
    return hasattr(found, "etag")


def _item(found: Any) -> tuple[str, int, int]:
    return found.name, found.size, stamp_of(found.etag)


def list_prefix(bucket: str, prefix: str) -> Iterator[tuple[str, int, int]]:
    """Yields (name, bytes, stamp) of the blobs with a prefix, in any order."""
    for items in prefix_list.pages(_requests(bucket), prefix):
        yield from items


def list_part(
    bucket: str, prefix: str, names: Names, few: bool
) -> Iterator[tuple[str, int, int] | Names]:
    """Yields the blobs with a prefix and names in a range; see `prefix_list.part_pages`."""
    list_pages = prefix_list.part_pages if few else prefix_list.pages
    return items_of(list_pages(_requests(bucket), prefix, names))


def _requests(container: str) -> prefix_list.Requests:
    def blobs(prefix: str) -> Iterator[list[Item]]:
        for items in _pages(container, name_starts_with=prefix, results_per_page=_PAGE_ITEMS):
            yield [_item(found) for found in items]

    def level(prefix: str) -> Iterator[tuple[list[Item], list[str]]]:
        for items in _pages(
            container, "walk_blobs",
            name_starts_with=prefix, results_per_page=_PAGE_ITEMS, delimiter="/",
        ):  # fmt: skip
            found = [_item(item) for item in items if _is_blob(item)]
            yield found, [item.name for item in items if not _is_blob(item)]

    return prefix_list.Requests(blobs, level)


def list_first(
    bucket: str, prefix: str, accept: Callable[[str], object]
) -> list[tuple[str, int, int]]:
    """Returns the accepted blobs of the first page with any, among four pages."""
    pages = _pages(bucket, name_starts_with=prefix, results_per_page=_FIRST_ITEMS)
    for _, items in zip(range(_FIRST_PAGES), pages, strict=False):
        if kept := [_item(found) for found in items if accept(found.name)]:
            return kept
    return []


def list_folder(bucket: str, prefix: str) -> Iterator[Entry]:
    """Yields the blobs directly below a prefix, which is empty or ends with `/`."""
    for items in _pages(bucket, "walk_blobs", name_starts_with=prefix, delimiter="/"):
        for found in items:
            if _is_blob(found) and found.name != prefix:
                modified = int(found.last_modified.timestamp() * 1e9)
                yield Entry(found.name.removeprefix(prefix), modified, found.size)


def delete(uri: str) -> None:
    """Deletes a blob, if it exists."""
    with suppress(FileNotFoundError):
        _request(uri, "delete", "delete_blob", delete_snapshots="include")


def put(uri: str, data: bytes, stamp: int | None) -> bool:
    """Writes a blob in one request; see `objects.Api.put`.

    Returns:
      False if the blob has another stamp. That includes the case that the response to a write was
      lost, and a retry found the new blob.
    """
    options: dict[str, Any] = {"overwrite": stamp != 0}
    try:
        if stamp:
            etag = _request(uri, "read", "get_blob_properties").etag
            if stamp_of(etag) != stamp:
                return False
            options |= _if_etag(etag)
        retry.POLICY.call(
            lambda: _send(
                uri, "upload_blob", data, length=len(data), validate_content=True, **options
            )
        )
    except FileNotFoundError:
        return False
    except Failure as failure:
        exists = isinstance(failure, AzureFailure) and failure.code == "BlobAlreadyExists"
        if exists or failure.status == PRECONDITION_FAILED:
            return False
        raise _translated(uri, "write", failure) from failure
    return True


class _Upload:
    """An upload of blocks. The blob appears when the last request is complete."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._writer = uuid.uuid4().hex
        self._blocks: list[str] = []

    def append(self, data: bytes) -> None:
        """Sends a block."""
        # Others that write the same blob have blocks of their own.
        block = f"{self._writer}-{len(self._blocks):05}"
        try:
            _request(self._uri, "write", "stage_block", block, data, validate_content=True)
        except FileNotFoundError as error:
            raise _no_container(self._uri) from error
        self._blocks.append(block)

    def finish(self, data: bytes) -> None:
        """Sends the last bytes, which may be none, and completes the blob."""
        if data:
            self.append(data)
        try:
            retry.POLICY.call(lambda: _send(self._uri, "commit_block_list", self._blocks))
        except Failure as failure:
            # Another writer of the same blob, which completes it first, discards these blocks.
            if isinstance(failure, AzureFailure) and failure.code == "InvalidBlockList":
                raise LostUpload(
                    f"{cannot(self._uri, 'write')}: the service has lost the upload; {RESUME}"
                ) from failure
            raise _translated(self._uri, "write", failure) from failure

    def abort(self) -> None:
        """Does nothing: the service discards the blocks."""


def open_upload(uri: str) -> _Upload:
    """Begins to write a blob in several requests."""
    return _Upload(uri)


def abort_uploads(bucket: str, prefix: str) -> None:
    """Does nothing: the service discards the blocks of unfinished uploads."""
