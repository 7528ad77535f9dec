"""Checks of a store of objects, which the tests of the stores share.

They expect `photos/NAME` with the content `DATA` and the name, in UTF-8, below a bucket.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from fault_proxy import FaultProxy
from gcs_faults import Fault, silent

from imageshards.transforms import storage
from imageshards.transforms.storage import retry
from imageshards.transforms.storage.retry import Pace

DATA = bytes(range(256)) * 20
LARGE = DATA * 200
NAME = "a b.jpg"
"""An object that all stores of tests have."""


def retry_quickly(monkeypatch: pytest.MonkeyPatch, api: object) -> None:
    """Retries for 2 s at most, at any pace."""
    quick = replace(retry.POLICY, total=2.0, first_wait=0.01, longest_wait=0.02)
    monkeypatch.setattr(retry, "POLICY", quick)
    monkeypatch.setattr(api, "PACE", Pace())


def check_listing(bucket: str, names: list[str], directly: list[str]) -> None:
    """Lists all names, and those that are directly in the folder."""
    photos = f"{bucket}/photos"
    found = sorted(storage.match(f"{photos}/**"))
    assert [uri for uri, *_ in found] == sorted(f"{photos}/{name}" for name in names)
    for uri, size, stamp in found:
        name = uri.removeprefix(f"{photos}/")
        assert (size, stamp) == storage.stat(uri)
        assert storage.read(uri, stamp=stamp) == (DATA + name.encode(), stamp)
    assert storage.names_in(photos) == directly
    assert [uri for uri, *_ in storage.match(f"{photos}/*/*.png")] == [f"{photos}/c0/2.png"]
    assert storage.match_first(f"{photos}/c1/x**")[0][0] == f"{photos}/c1/x/y.jpg"


def check_ranges(bucket: str) -> None:
    """Reads ranges of an object, one that is too large, and one that does not exist."""
    uri, missing = f"{bucket}/photos/{NAME}", f"{bucket}/photos/none.jpg"
    size, stamp = storage.stat(uri)
    assert storage.read_range(uri, 3, 5, stamp) == DATA[3:8]
    assert storage.read_range(uri, size - 2, 100, stamp) == b"pg"
    assert storage.read_range(uri, size, 100, stamp) == b""
    with storage.open_read(uri) as file:
        file.seek(-4, io.SEEK_END)
        assert file.read() == b".jpg"
    with pytest.raises(storage.ReadError, match="more than 10") as caught:
        storage.read(uri, limit=10)
    assert caught.value.kind == "TooLarge"
    with pytest.raises(storage.ReadError) as caught:
        storage.read(missing)
    assert caught.value.kind == "Missing"
    with pytest.raises(FileNotFoundError):
        storage.open_read(missing)
    storage.create(f"{bucket}/empty", b"", "")
    assert storage.read(f"{bucket}/empty")[0] == b""
    assert storage.stat(f"{bucket}/empty")[0] == 0


def check_replaced(bucket: str) -> None:
    """Does not read an object that was replaced since the listing."""
    storage.create(f"{bucket}/replaced.jpg", b"one", "")
    ((uri, _, stamp),) = storage.match(f"{bucket}/replaced*")
    assert storage.read(uri, stamp=stamp) == (b"one", stamp)
    assert storage.replace(uri, b"two", "", stamp)
    for read in (storage.read, lambda *_, stamp: storage.read_range(uri, 0, 2, stamp)):
        with pytest.raises(storage.ReadError) as caught:
            read(uri, stamp=stamp)
        assert caught.value.kind == "Changed"


def check_stored_gzip(uri: str) -> None:
    """Reads `DATA`, which is stored with `Content-Encoding: gzip`."""
    assert storage.read(uri)[0] == DATA
    with storage.open_read(uri) as file:
        assert file.read() == DATA
    with pytest.raises(storage.StoreError, match="Content-Encoding: gzip"):
        storage.read_range(uri, 0, 5)


def check_conditional_writes(bucket: str) -> None:
    """Writes an object on condition that nobody else has."""
    uri = f"{bucket}/pointer.json"
    assert storage.create(uri, b"1", "")
    assert not storage.create(uri, b"2", "")
    assert not storage.replace(uri, b"2", "", 0)
    data, stamp = storage.read(uri)
    assert storage.replace(uri, b"3", "", stamp)
    assert not storage.replace(uri, b"4", "", stamp)
    assert (data, storage.read(uri)[0]) == (b"1", b"3")
    storage.delete([uri, uri])
    assert not storage.replace(uri, b"4", "", stamp)
    assert not storage.exists(uri)


def _shorten_silence(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    """Clients wait for a response for 0.4 s, if there is none."""
    if fault.send is silent:
        monkeypatch.setattr(retry, "POLICY", replace(retry.POLICY, silence=0.4))


def check_reads_are_retried(
    bucket: str, count: int, proxy: FaultProxy, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists `count` objects and reads one, despite a transient fault."""
    _shorten_silence(monkeypatch, fault)
    uri = f"{bucket}/photos/{NAME}"
    with proxy.failing(fault):
        assert len(list(storage.match(f"{bucket}/photos/**"))) == count
        assert storage.read(uri)[0] == DATA + NAME.encode()
        assert storage.read_range(uri, 9, 9) == DATA[9:18]
    assert proxy.failed == fault.times


def check_uploads_are_retried(bucket: str, proxy: FaultProxy, fault: Fault) -> None:
    """Writes a large object, despite a transient fault."""
    uri = f"{bucket}/f"
    with proxy.failing(fault), storage.open_sink(uri, "") as sink:
        sink.write([LARGE])
    assert proxy.failed == fault.times
    assert storage.read(uri)[0] == LARGE
    storage.delete([uri])


def check_error_of_a_read(
    bucket: str, proxy: FaultProxy, fault: Fault, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails to read an object because of a permanent fault, with an error of one line."""
    _shorten_silence(monkeypatch, fault)
    uri = f"{bucket}/photos/{NAME}"
    with proxy.failing(fault), pytest.raises(storage.StoreError) as caught:
        storage.read(uri)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{uri}: ")


def check_errors(acts: list[Callable[[], object]], message: str) -> None:
    """Each of some calls fails with the message."""
    for act in acts:
        with pytest.raises(storage.StoreError, match=message):
            act()
