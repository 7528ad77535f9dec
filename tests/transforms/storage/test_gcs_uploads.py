"""Uploads in several requests: whatever the service takes or loses, the object is what was sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gcs_server
import pytest
from gcs_faults import (
    Fault,
    Send,
    broken_json,
    flipped,
    incomplete,
    refused,
    reset,
    short_body,
    status,
    unchanged,
)
from gcs_server import GcsServer

from imageshards.transforms import storage
from imageshards.transforms.storage import objects, retry, sink
from imageshards.transforms.storage.retry import RetryPolicy

CHUNK = 1 << 18
DATA = bytes(range(256)) * (CHUNK * 7 // 512)  # three chunks and a half
LAST = 2  # it is sent in three requests
URI = "gs://bucket/a"
PUT, BEGIN = "PUT /upload/", "POST /upload/.*resumable"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    """A server, for clients in this process that send multiples of 256 KiB and give up soon."""
    monkeypatch.setattr(retry, "POLICY", RetryPolicy(silence=0.3, total=1.0, first_wait=0.01))
    monkeypatch.setattr(objects, "UPLOAD_BYTES", CHUNK)
    monkeypatch.setattr(sink, "_BATCH_BYTES", CHUNK)
    with gcs_server.running() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


def write(data: bytes = DATA, uri: str = URI) -> None:
    with storage.open_sink(uri, "") as file:
        for start in range(0, len(data), CHUNK):
            file.write([data[start : start + CHUNK]])


def test_the_data_is_sent_in_three_requests(server: GcsServer):
    write()
    assert server.get("a") == DATA
    assert server.matching(PUT) == LAST + 1


@pytest.mark.parametrize(
    "send",
    [
        status(503), status(429), status(408), status(500), status(502), reset, short_body,
        incomplete(),
    ],
)  # fmt: skip
@pytest.mark.parametrize("after", [0, 1, LAST])
@pytest.mark.parametrize("before", [True, False])
def test_a_request_that_fails_is_continued(server: GcsServer, send: Send, after: int, before: bool):
    if send.__qualname__.startswith("incomplete") and (after or not before):
        pytest.skip("a service that takes nothing of the first bytes")
    with server.failing(Fault(send, PUT, after=after, times=2, before=before)):
        write()
    assert server.failed == 2
    assert server.get("a") == DATA
    assert server.matching(BEGIN) == 1


def test_each_request_of_an_upload_may_be_taken_in_part(server: GcsServer):
    server.taken_bytes = 100_000
    write()
    assert server.get("a") == DATA


@pytest.mark.parametrize("code", [404, 410])
@pytest.mark.parametrize("begun", [0, 1])
def test_an_upload_that_the_service_loses_at_its_first_chunk_is_begun_again(
    server: GcsServer, code: int, begun: int
):
    lost = refused(code, "The upload session is not there.", "notFound")
    with server.failing(Fault(lost, PUT, times=1 + begun)):
        write()
    assert server.get("a") == DATA
    assert server.matching(BEGIN) == 2 + begun


@pytest.mark.parametrize("code", [404, 410])
@pytest.mark.parametrize("after", [1, LAST])
def test_an_upload_that_the_service_loses_later_is_for_the_writer_to_repeat(
    server: GcsServer, code: int, after: int
):
    gone = Fault(refused(code, "Gone", "gone"), PUT, after=after)
    with server.failing(gone), pytest.raises(storage.LostUpload) as caught:
        write()
    assert "run the same command again" in str(caught.value)
    assert str(caught.value).startswith(f"{URI}: cannot be written: ")
    assert "bucket" not in str(caught.value).removeprefix(URI)
    assert server.names() == []
    write()
    assert server.get("a") == DATA


def test_bytes_that_were_taken_and_are_lost_again_are_a_lost_upload(server: GcsServer):
    fault = Fault(incomplete(CHUNK // 2), PUT, after=1, times=1)
    with server.failing(fault), pytest.raises(storage.LostUpload):
        write()


@pytest.mark.parametrize("code", [404, 410])
def test_a_session_that_is_gone_because_the_object_is_complete_is_no_failure(
    server: GcsServer, code: int
):
    # The answer to the last request is lost, and the session is gone when the client asks.
    faults = [
        Fault(reset, PUT, after=LAST, times=1, before=False),
        Fault(refused(code, "Gone", "gone"), PUT, after=LAST + 1, times=1),
    ]
    with server.failing(*faults):
        write()
    assert server.failed == 2
    assert server.get("a") == DATA
    assert server.matching(BEGIN) == 1


@pytest.mark.parametrize("send", [broken_json, short_body, reset])
def test_an_answer_that_breaks_off_is_looked_up(server: GcsServer, send: Send):
    with server.failing(Fault(send, PUT, after=LAST, times=1, before=False)):
        write()
    assert server.failed == 1
    assert server.get("a") == DATA
    assert server.matching(BEGIN) == 1


@pytest.mark.parametrize("send", [broken_json, short_body, reset])
def test_an_answer_to_a_small_write_that_breaks_off_is_no_failure(server: GcsServer, send: Send):
    with server.failing(Fault(send, "POST /upload/", times=1, before=False)):
        write(b"small")
    assert server.failed == 1
    assert server.get("a") == b"small"


@pytest.mark.parametrize("send", [broken_json, short_body, reset])
def test_a_page_of_a_list_that_breaks_off_is_requested_again(server: GcsServer, send: Send):
    server.put("a", b"data")
    with server.failing(Fault(send, "GET /storage/v1/b/bucket/o", times=1, before=False)):
        assert storage.names_in("gs://bucket/") == ["a"]
    assert server.failed == 1


def test_an_upload_to_a_missing_bucket_says_so(server: GcsServer):
    with pytest.raises(storage.StoreError, match="gs://none: there is no such bucket"):
        write(uri="gs://none/a")


def test_the_newer_object_of_another_writer_is_not_deleted_with_a_damaged_one(server: GcsServer):
    def replaced(handler: Any, head: bytes, body: bytes) -> None:
        """Sends the response after another writer has replaced the object."""
        server.put("a", b"theirs")
        unchanged(handler, head, body)

    damaged = Fault(replaced, "POST .*media", before=False, receive=flipped, times=1)
    with server.failing(damaged):
        assert not storage.replace(URI, b"mine", "", 0)
    assert server.get("a") == b"theirs"
