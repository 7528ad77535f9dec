"""`ObjectStore` with another service, whose objects are in memory."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator

import pytest
from helpers import image_bytes

from imageshards.launch.cli import main
from imageshards.transforms import storage
from imageshards.transforms.storage import objects
from imageshards.transforms.storage.objects import Content, ObjectStore, check_size, split
from imageshards.transforms.storage.protocol import UNKNOWN, Entry, Names, StoreError


class Api:
    """The requests of the service. A stamp counts all writes."""

    def __init__(self) -> None:
        self.found: dict[str, Content] = {}
        self.uploads = 0
        self.writes = 0

    def get(self, uri: str, stamp: int, span: tuple[int, int] | None, limit: int) -> Content:
        found = self.found.get(split(uri)[1])
        if found is None or stamp not in (0, found.stamp):
            raise FileNotFoundError(uri)
        if limit:
            check_size(found.size, limit)
        return found._replace(data=found.data[slice(*span)]) if span else found

    def stat(self, uri: str) -> tuple[int, int]:
        found = self.found.get(split(uri)[1])
        return (found.size, found.stamp) if found else UNKNOWN

    def crc32c(self, uri: str) -> int | None:
        return None

    def list_prefix(self, bucket: str, prefix: str) -> Iterator[tuple[str, int, int]]:
        for name, found in self.found.items():
            if name.startswith(prefix):
                yield name, found.size, found.stamp

    def list_part(
        self, bucket: str, prefix: str, names: Names, few: bool
    ) -> Iterator[tuple[str, int, int] | Names]:
        return self.list_prefix(bucket, prefix)

    def list_first(
        self, bucket: str, prefix: str, accept: Callable[[str], object]
    ) -> list[tuple[str, int, int]]:
        return [item for item in self.list_prefix(bucket, prefix) if accept(item[0])]

    def list_folder(self, bucket: str, prefix: str) -> Iterator[Entry]:
        for name, size, stamp in self.list_prefix(bucket, prefix):
            if "/" not in name.removeprefix(prefix):
                yield Entry(name.removeprefix(prefix), stamp, size)

    def delete(self, uri: str) -> None:
        self.found.pop(split(uri)[1], None)

    def put(self, uri: str, data: bytes, stamp: int | None) -> bool:
        if stamp not in (None, max(0, self.stat(uri)[1])):
            return False
        self.writes += 1
        self.found[split(uri)[1]] = Content(data, len(data), self.writes)
        return True

    def abort_uploads(self, bucket: str, prefix: str) -> None:
        """Nothing is left by an upload that is not completed."""

    def open_upload(self, uri: str) -> Upload:
        self.uploads += 1
        return Upload(self, uri)


class Upload:
    def __init__(self, api: Api, uri: str) -> None:
        self.api = api
        self.uri = uri
        self.data = b""

    def append(self, data: bytes) -> None:
        assert len(data) % objects.UPLOAD_BYTES == 0
        self.data += data

    def finish(self, data: bytes) -> None:
        self.api.put(self.uri, self.data + data, None)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    found = Api()
    monkeypatch.setitem(storage.STORES, "s3x", ObjectStore("s3x", found))
    return found


def test_a_build_uses_another_service(api: Api, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(objects, "UPLOAD_BYTES", 1 << 12)
    for number in range(20):
        api.put(f"s3x://bucket/photos/class{number % 2}/{number}.jpg", image_bytes(number), None)
    api.put("s3x://bucket/photos/class0/20.jpg", b"", None)
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
    api.put("s3x://bucket/a", b"two", None)
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


def test_an_object_that_is_replaced_while_it_is_read_may_be_read_again(api: Api):
    api.put("s3x://bucket/a", bytes(1 << 24), None)
    with storage.open_read("s3x://bucket/a") as file:
        file.read(5)
        api.put("s3x://bucket/a", b"two", None)
        with pytest.raises(StoreError, match="was replaced while it was read"):
            file.read()


def put_gzip(api: Api, stored: bytes) -> None:
    api.found["a"] = Content(stored, len(stored), 1, is_gzip=True)


def test_an_object_that_is_stored_compressed_is_its_content(api: Api):
    text = b"0123456789" * 10**6
    # A file of two gzip members is what `cat` makes of two files.
    put_gzip(api, gzip.compress(text[:100]) + gzip.compress(text[100:]))
    assert storage.read("s3x://bucket/a") == (text, 1)
    with storage.open_read("s3x://bucket/a") as file:
        assert file.read(5) == b"01234"
        file.seek(-3, 2)
        assert file.read() == b"789"
    with pytest.raises(StoreError, match="parts of it cannot be read, because"):
        storage.read_range("s3x://bucket/a", 0, 5)


def test_an_object_that_claims_to_be_compressed_is_its_bytes(api: Api):
    put_gzip(api, b"plain")
    assert storage.read("s3x://bucket/a") == (b"plain", 1)
    with storage.open_read("s3x://bucket/a") as file:
        assert file.read() == b"plain"


def test_a_compressed_object_that_cannot_be_decompressed_is_a_reject(api: Api):
    put_gzip(api, gzip.compress(bytes(10_000))[:-10])
    with pytest.raises(storage.ReadError, match="cannot be decompressed") as caught:
        storage.read("s3x://bucket/a")
    assert caught.value.kind == "Unreadable"


def test_a_compressed_object_does_not_expand_beyond_the_limit(api: Api):
    put_gzip(api, gzip.compress(bytes(10_001)))
    with pytest.raises(storage.ReadError, match="expands to more than 10,000 bytes") as caught:
        storage.read("s3x://bucket/a", limit=10_000)
    assert caught.value.kind == "TooLarge"
    assert len(storage.read("s3x://bucket/a", limit=10_001)[0]) == 10_001
