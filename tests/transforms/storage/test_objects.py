"""`ObjectStore` with another configuration: obstore's store in memory as the service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import obstore
import pytest
from helpers import image_bytes
from obstore.exceptions import AlreadyExistsError, GenericError
from obstore.store import MemoryStore

from imageshards.launch.cli import main
from imageshards.transforms import storage
from imageshards.transforms.storage import objects
from imageshards.transforms.storage.objects import ObjectStore, Service, split
from imageshards.transforms.storage.protocol import Entry, StoreError
from imageshards.transforms.storage.retry import Action, Failure


def stamp_of(meta: Any) -> int:
    return int(meta["e_tag"].strip('"')) + 1


class Api:
    """Lists, writes and deletions by obstore, for a service that has all of them there."""

    def __init__(self) -> None:
        self.client = MemoryStore()
        self.uploads = 0

    def list_prefix(self, bucket: str, prefix: str) -> Iterator[tuple[str, int, int]]:
        for page in obstore.list(self.client, prefix.rpartition("/")[0] or None):
            for meta in page:
                if meta["path"].startswith(prefix):
                    yield meta["path"], meta["size"], stamp_of(meta)

    def list_folder(self, bucket: str, prefix: str) -> list[Entry]:
        return [
            Entry(meta["path"].removeprefix(prefix), stamp_of(meta), meta["size"])
            for meta in obstore.list_with_delimiter(self.client, prefix)["objects"]
        ]

    def delete(self, uri: str) -> None:
        with suppress(FileNotFoundError):
            obstore.delete(self.client, split(uri)[1])

    def put(self, uri: str, data: bytes, stamp: int | None) -> bool:
        try:
            obstore.put(
                self.client, split(uri)[1], data, mode="overwrite" if stamp is None else "create"
            )
        except AlreadyExistsError:
            return False
        return True

    def open_upload(self, uri: str) -> Upload:
        self.uploads += 1
        return Upload(self, uri)


class Upload:
    def __init__(self, api: Api, uri: str) -> None:
        self.writer = obstore.open_writer(api.client, split(uri)[1])

    def append(self, data: bytes) -> None:
        assert len(data) % objects.UPLOAD_BYTES == 0
        self.writer.write(data)

    def finish(self, data: bytes) -> None:
        self.writer.write(data)
        self.writer.close()


def refusal(uri: str, action: Action, failure: Failure) -> StoreError:
    return StoreError(f"{uri}: {action} refused: {failure}")


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    found = Api()
    service = Service("s3x", lambda _: found.client, stamp_of, lambda _: {}, refusal, found)  # type: ignore[arg-type]
    monkeypatch.setitem(storage.STORES, "s3x", ObjectStore(service))
    return found


def test_a_build_uses_another_service(api: Api, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(objects, "UPLOAD_BYTES", 1 << 12)
    for number in range(20):
        obstore.put(api.client, f"photos/class{number % 2}/{number}.jpg", image_bytes(number))
    # A reject: obstore's store in memory cannot read a range of an empty file.
    obstore.put(api.client, "photos/class0/20.jpg", b"not an image")
    build = ["build", "--input=s3x://bucket/photos", "--output=s3x://bucket/out", "--workers=1",
             "--max_reject_fraction=0.1"]  # fmt: skip
    assert main(build) == 0
    assert api.uploads > 0
    assert main(["verify", "s3x://bucket/out"]) == 0
    assert main(build) == 0


def test_an_object_that_was_replaced_is_not_read(api: Api):
    with storage.open_sink("s3x://bucket/a", "") as sink:
        sink.write([b"one"])
    data, stamp = storage.read("s3x://bucket/a")
    assert (data, stamp) == (b"one", storage.stat("s3x://bucket/a")[1])
    obstore.put(api.client, "a", b"two")
    for read in (
        lambda: storage.read("s3x://bucket/a", stamp=stamp),
        lambda: storage.read_range("s3x://bucket/a", 0, 1, stamp),
    ):
        with pytest.raises(storage.ReadError) as caught:
            read()
        assert caught.value.kind == "Changed"
    with pytest.raises(storage.ReadError) as caught:
        storage.read("s3x://bucket/none")
    assert caught.value.kind == "Missing"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Generic GCS error: out of order", "out of order"),
        ("Generic S3 error: Error performing GET in 1s - out of order", "out of order"),
        ("Generic GCS error: Server returned status code: 503 - busy", "status 503"),
        ("Generic GCS error: HTTP error: end of file", "the response breaks off or stalls on each"),
    ],
)
def test_messages_do_not_contain_the_prefixes_of_obstore(text: str, says: str):
    class Broken(Api):
        def connect(self, bucket: str) -> Any:
            raise GenericError(f"{text}\n\nDebug source: ...")

    broken = Broken()
    service = Service("s3x", broken.connect, stamp_of, lambda _: {}, refusal, broken)  # type: ignore[arg-type]
    with pytest.raises(StoreError) as caught:
        ObjectStore(service).open_read("s3x://bucket/a")
    assert str(caught.value).startswith(f"s3x://bucket/a: cannot be read: {says}")
