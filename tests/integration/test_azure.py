"""The store of az:// URIs, with a server of the protocol and its faults."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import azure_server
import pytest
import store_checks
from fault_proxy import FaultProxy, refusing
from gcs_faults import Fault, corrupt, reset, short_body, silent
from store_checks import DATA, LARGE

from imageshards.transforms import storage
from imageshards.transforms.storage import objects
from imageshards.transforms.storage.clouds import azure, prefix_list
from imageshards.transforms.storage.protocol import Names

NAMES = ["a b.jpg", "a#1.jpg", "a+b.jpg", "c0/1.jpg", "c0/2.png", "c1/ä€😀.jpg", "c1/x/y.jpg"]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[FaultProxy, dict[str, str]]]:
    if reason := azure_server.missing():
        pytest.skip(reason)
    with azure_server.running() as (proxy, environment), pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        azure._send("az://bucket", "create_container")
        for name in NAMES:
            storage.create(f"az://bucket/photos/{name}", DATA + name.encode(), "")
        yield proxy, environment


@pytest.fixture
def proxy(
    running: tuple[FaultProxy, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> FaultProxy:
    for name, value in running[1].items():
        monkeypatch.setenv(name, value)
    store_checks.retry_quickly(monkeypatch, azure)
    running[0].log.clear()
    return running[0]


def test_blobs_are_listed_with_the_names_that_they_have(proxy: FaultProxy):
    list(storage.match("az://bucket/photos/**"))
    assert proxy.count("GET", "comp=list") == 1
    store_checks.check_listing("az://bucket", NAMES, ["a b.jpg", "a#1.jpg", "a+b.jpg"])


def test_a_list_of_several_pages_loses_nothing(proxy: FaultProxy):
    pages = [*azure._pages("bucket", name_starts_with="photos/", results_per_page=2)]
    assert [len(page) for page in pages] == [2, 2, 2, 1]
    assert {item.name for page in pages for item in page} == {f"photos/{name}" for name in NAMES}


def test_a_list_is_divided_by_folders_and_loses_and_repeats_nothing(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(azure, "_PAGE_ITEMS", 2)
    monkeypatch.setattr(prefix_list, "FEW_PAGES", 1)
    every = sorted(f"az://bucket/photos/{name}" for name in NAMES)
    for pattern, expected in (
        ("az://bucket/photos/**", every),
        ("az://bucket/photos/c*/**", [uri for uri in every if "/c" in uri]),
    ):
        assert sorted(uri for uri, *_ in storage.match(pattern)) == expected
        found, ranges = [], []
        for item in storage.match_part(pattern, Names(), few=True):
            (ranges if isinstance(item, Names) else found).append(item)
        assert len(ranges) == 2
        for names in ranges:
            found += storage.match_part(pattern, names, few=False)
        assert sorted(uri for uri, *_ in found) == expected
    assert proxy.count("GET", "delimiter=%2F") + proxy.count("GET", "delimiter=/")


def test_ranges_of_a_blob_are_read(proxy: FaultProxy):
    store_checks.check_ranges("az://bucket")


def test_a_blob_that_was_replaced_since_the_listing_is_not_read(proxy: FaultProxy):
    store_checks.check_replaced("az://bucket")


def test_a_blob_that_is_stored_compressed_is_its_content(proxy: FaultProxy):
    from azure.storage.blob import ContentSettings

    uri, settings = "az://bucket/compressed.txt", ContentSettings(content_encoding="gzip")
    azure._send(uri, "upload_blob", gzip.compress(DATA), content_settings=settings)
    store_checks.check_stored_gzip(uri)


def test_one_of_two_conditional_writes_succeeds(proxy: FaultProxy):
    store_checks.check_conditional_writes("az://bucket")


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blobs are uploaded in blocks of 64 KiB and more."""
    monkeypatch.setattr(objects, "UPLOAD_BYTES", 1 << 16)


@pytest.mark.usefixtures("in_blocks")
def test_a_large_blob_appears_when_it_is_complete(proxy: FaultProxy):
    uri = "az://bucket/large"
    with storage.open_sink(uri, "") as sink:
        sink.write([LARGE])
        assert not storage.exists(uri)
    assert storage.read(uri)[0] == LARGE
    assert proxy.count("PUT", "comp=blocklist") == 1
    assert proxy.count("PUT", "comp=block&") == 2


@pytest.mark.usefixtures("in_blocks")
def test_a_shard_whose_blocks_another_writer_has_discarded_is_written_again(proxy: FaultProxy):
    first, second = azure.open_upload("az://bucket/race"), azure.open_upload("az://bucket/race")
    first.append(DATA)
    second.append(DATA)
    second.finish(b"2")
    with pytest.raises(storage.LostUpload):
        first.finish(b"1")
    assert storage.read("az://bucket/race")[0] == DATA + b"2"


GET, PUT = r"GET /devstoreaccount1/bucket/photos", r"PUT /devstoreaccount1/bucket/f"
BUSY = refusing(503, "ServerBusy", "The server is busy.")


@pytest.mark.parametrize(
    "fault",
    [
        Fault(BUSY, GET, times=3),
        Fault(refusing(429, "TooManyRequests"), GET, times=2),
        Fault(reset, GET, times=1),
        Fault(short_body, GET, times=1),
        Fault(corrupt, GET, times=1),
        Fault(silent, GET, times=1),
        Fault(BUSY, "comp=list", times=2),
    ],
)
def test_a_transient_fault_of_a_read_is_retried(
    proxy: FaultProxy, fault: Fault, monkeypatch: pytest.MonkeyPatch
):
    store_checks.check_reads_are_retried("az://bucket", len(NAMES), proxy, fault, monkeypatch)


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize(
    "fault",
    [
        Fault(BUSY, PUT + ".*comp=block&", times=2),
        Fault(refusing(400, "Md5Mismatch"), PUT + ".*comp=block&", times=1),
        Fault(reset, PUT + ".*comp=block&", times=1, before=False),
        Fault(BUSY, PUT + ".*comp=blocklist", times=1),
        Fault(reset, PUT + ".*comp=blocklist", times=1, before=False),
    ],
)
def test_a_transient_fault_of_an_upload_is_retried(proxy: FaultProxy, fault: Fault):
    store_checks.check_uploads_are_retried("az://bucket", proxy, fault)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault(BUSY), "be read: status 503 ServerBusy: The server is busy"),
        (Fault(refusing(403, "AuthorizationPermissionMismatch")), "grant 'Storage Blob Data Rea"),
        (Fault(refusing(403, "AuthenticationFailed", "Bad.")),
         "403 AuthenticationFailed: Bad; check AZURE_STORAGE_ACCOUNT, and AZURE_STORAGE_KEY or"),
        (Fault(corrupt), "its bytes differ from its checksum"),
        (Fault(silent), "no data for 0.4 s"),
    ],
)  # fmt: skip
def test_a_permanent_fault_is_one_line(
    proxy: FaultProxy, fault: Fault, says: str, monkeypatch: pytest.MonkeyPatch
):
    store_checks.check_error_of_a_read("az://bucket", proxy, fault, says, monkeypatch)


def test_a_missing_container_is_one_line(proxy: FaultProxy):
    store_checks.check_errors(
        [
            lambda: list(storage.match("az://nothing/photos/**")),
            lambda: storage.create("az://nothing/x", b"", ""),
            lambda: azure.open_upload("az://nothing/x").append(DATA),
        ],
        "az://nothing: there is no such container",
    )


def test_without_credentials_what_is_public_is_read(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
):
    azure._send("az://public", "create_container", public_access="container")
    storage.create("az://public/1.jpg", DATA, "")
    monkeypatch.delenv("AZURE_STORAGE_KEY")
    assert storage.read("az://public/1.jpg")[0] == DATA
    assert len(list(storage.match("az://public/**"))) == 1
    with pytest.raises(storage.StoreError, match="not public, and no Azure credentials were found"):
        list(storage.match("az://bucket/**"))


def test_a_connection_string_and_a_signature_are_credentials(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, running: tuple[FaultProxy, dict[str, str]]
):
    from datetime import UTC, datetime, timedelta

    from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

    account, key, endpoint = running[1].values()
    uri = "az://bucket/photos/a b.jpg"
    monkeypatch.delenv("AZURE_STORAGE_KEY")
    sas = generate_account_sas(
        account, key, ResourceTypes(object=True, container=True),
        AccountSasPermissions(read=True, list=True), datetime.now(UTC) + timedelta(hours=1),
    )  # fmt: skip
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", sas)
    assert storage.exists(uri)
    with pytest.raises(storage.StoreError, match="grant 'Storage Blob Data Contributor' on the"):
        storage.create("az://bucket/new", b"", "")
    for name in ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_ACCOUNT"):
        monkeypatch.delenv(name)
    with pytest.raises(storage.StoreError, match="set AZURE_STORAGE_ACCOUNT, or AZURE_STORAGE_CON"):
        storage.exists(uri)
    text = f"AccountName={account};AccountKey={key};BlobEndpoint={endpoint};"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"DefaultEndpointsProtocol=http;{text}")
    assert storage.exists(uri)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "nonsense")
    with pytest.raises(storage.StoreError, match="the Azure credentials cannot be used"):
        storage.exists(uri)


def test_a_server_that_does_not_respond_is_one_line(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AZURE_STORAGE_SERVICE_ENDPOINT", "http://127.0.0.1:1/devstoreaccount1")
    with pytest.raises(storage.StoreError, match=r"az://bucket: cannot be listed: .*refused"):
        list(storage.match("az://bucket/photos/**"))
