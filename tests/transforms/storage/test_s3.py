"""The store of s3:// URIs, with a server of the protocol and its faults."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from dataclasses import replace

import pytest
import s3_server
from fault_proxy import refusing
from gcs_faults import Fault, corrupt, reset, short_body, silent
from s3_server import S3Server

from imageshards.transforms import storage
from imageshards.transforms.storage import objects, parallel_list, retry
from imageshards.transforms.storage.clouds import s3
from imageshards.transforms.storage.protocol import Names
from imageshards.transforms.storage.retry import Pace

NAMES = [
    "a b.jpg",
    "a#1.jpg",
    "a+b.jpg",
    "c0/1.jpg",
    "c0/2.png",
    "c1/ä€😀.jpg",
    "c1/x/y.jpg",
    "d%20.jpg",
]
DATA = bytes(range(256)) * 20


@pytest.fixture(scope="module")
def running() -> Iterator[S3Server]:
    with s3_server.running() as server:
        yield server


@pytest.fixture
def server(running: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    quick = replace(retry.POLICY, total=2.0, first_wait=0.01, longest_wait=0.02)
    monkeypatch.setattr(retry, "POLICY", quick)
    monkeypatch.setattr(s3, "PACE", Pace())
    running.proxy.log.clear()
    return running


@pytest.fixture(scope="module", autouse=True)
def _objects(running: S3Server) -> None:
    for name in NAMES:
        running.put(f"photos/{name}", DATA + name.encode())


def test_objects_are_listed_with_the_names_that_they_have(server: S3Server):
    found = sorted(storage.match("s3://bucket/photos/**"))
    assert [uri for uri, *_ in found] == sorted(f"s3://bucket/photos/{name}" for name in NAMES)
    for uri, size, stamp in found:
        assert (size, stamp) == storage.stat(uri)
        assert storage.read(uri, stamp=stamp) == (DATA + uri[19:].encode(), stamp)
    assert server.proxy.count("GET", "?list-type=2") == 1
    assert storage.names_in("s3://bucket/photos") == ["a b.jpg", "a#1.jpg", "a+b.jpg", "d%20.jpg"]
    assert [uri[19:] for uri, *_ in storage.match("s3://bucket/photos/*/*.png")] == ["c0/2.png"]
    assert storage.match_first("s3://bucket/photos/c1/**")[0][0].endswith("/c1/x/y.jpg")


@pytest.mark.slow
def test_a_list_is_divided_into_ranges_that_lose_and_repeat_nothing(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(parallel_list, "PAGE_ITEMS", 2)
    monkeypatch.setattr(parallel_list, "FEW_PAGES", 1)
    pattern = "s3://bucket/photos/**"
    found, ranges = [], []
    for item in storage.match_part(pattern, Names(), few=True):
        (ranges if isinstance(item, Names) else found).append(item)
    assert ranges
    for names in ranges:
        found += storage.match_part(pattern, names, few=False)
    assert sorted(found) == sorted(storage.match(pattern))
    assert len(found) == len(NAMES)


def test_ranges_of_an_object_are_read(server: S3Server):
    uri = "s3://bucket/photos/a b.jpg"
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
        storage.read("s3://bucket/photos/none.jpg")
    assert caught.value.kind == "Missing"
    with pytest.raises(FileNotFoundError):
        storage.open_read("s3://bucket/photos/none.jpg")


def test_an_object_that_was_replaced_since_the_listing_is_not_read(server: S3Server):
    server.put("replaced.jpg", b"one")
    ((uri, _, stamp),) = storage.match("s3://bucket/replaced*")
    assert storage.read(uri, stamp=stamp) == (b"one", stamp)
    server.put("replaced.jpg", b"two")
    for read in (storage.read, lambda *_, stamp: storage.read_range(uri, 0, 2, stamp)):
        with pytest.raises(storage.ReadError) as caught:
            read(uri, stamp=stamp)
        assert caught.value.kind == "Changed"


def test_a_stored_compressed_object_is_its_content(server: S3Server):
    uri = "s3://bucket/compressed.txt"
    s3._send(uri, "put_object", Body=gzip.compress(DATA), ContentEncoding="gzip")
    assert storage.read(uri)[0] == DATA
    with storage.open_read(uri) as file:
        assert file.read() == DATA
    with pytest.raises(storage.StoreError, match="Content-Encoding: gzip"):
        storage.read_range(uri, 0, 5)


def test_one_of_two_conditional_writes_succeeds(server: S3Server):
    uri = "s3://bucket/pointer.json"
    assert storage.create(uri, b"1", "")
    assert not storage.create(uri, b"2", "")
    assert not storage.replace(uri, b"2", "", 0)
    data, stamp = storage.read(uri)
    assert storage.replace(uri, b"3", "", stamp)
    assert not storage.replace(uri, b"4", "", stamp)
    assert (data, storage.read(uri)[0]) == (b"1", b"3")
    storage.delete([uri])
    assert not storage.replace(uri, b"4", "", stamp)
    assert not storage.exists(uri)


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are uploaded in parts of 64 KiB."""
    monkeypatch.setattr(objects, "UPLOAD_BYTES", 1 << 16)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)


LARGE = DATA * 200


@pytest.mark.usefixtures("in_parts")
def test_a_large_object_appears_when_it_is_complete(server: S3Server):
    uri = "s3://bucket/large"
    with storage.open_sink(uri, "") as sink:
        sink.write([LARGE])
        assert not storage.exists(uri)
    assert storage.read(uri)[0] == LARGE
    assert storage.crc32cs([uri]) == [sink.crc32c]
    assert server.proxy.count("PUT", "partNumber=") == 2

    class Stop(Exception):
        pass

    def stopped() -> None:
        with storage.open_sink("s3://bucket/stopped", "") as sink:
            for _ in range(5):  # batches of 2 MB are sent
                sink.write([LARGE])
            raise Stop

    with pytest.raises(Stop):
        stopped()
    assert server.proxy.count("DELETE", "/bucket/stopped?uploadId=") == 1
    assert not storage.exists("s3://bucket/stopped")
    assert server.uploads() == 0


@pytest.mark.usefixtures("in_parts")
def test_what_a_killed_upload_has_sent_is_deleted(server: S3Server):
    assert server.uploads() == 0
    for name in ("out/train", "out2/train"):
        s3.open_upload(f"s3://bucket/{name}").append(LARGE)
    assert server.uploads() == 2
    storage.abort_uploads("s3://bucket/out")
    assert server.uploads() == 1
    storage.abort_uploads("s3://bucket")
    assert server.uploads() == 0


GET, PUT, PART = r"GET /bucket/photos", r"PUT /bucket/f", r"PUT /bucket/f.*partNumber"
COMPLETE = r"POST /bucket/f\?uploadId"
SLOW_DOWN = refusing(503, "SlowDown", "Please reduce your request rate.")


def shorten_silence(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    """Clients wait for a response for 0.4 s, if there is none."""
    if fault.send is silent:
        monkeypatch.setattr(retry, "POLICY", replace(retry.POLICY, silence=0.4))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        Fault(SLOW_DOWN, GET, times=3),
        Fault(refusing(429, "TooManyRequests"), GET, times=2),
        Fault(refusing(400, "RequestTimeout"), GET, times=2),
        Fault(reset, GET, times=2),
        Fault(short_body, GET, times=2),
        Fault(silent, GET, times=1),
        Fault(SLOW_DOWN, r"list-type", times=2),
        Fault(short_body, r"list-type", times=2),
    ],
)
def test_a_transient_fault_of_a_read_is_retried(
    server: S3Server, fault: Fault, monkeypatch: pytest.MonkeyPatch
):
    shorten_silence(monkeypatch, fault)
    uri = "s3://bucket/photos/a b.jpg"
    with server.proxy.failing(fault):
        assert len(list(storage.match("s3://bucket/photos/**"))) == len(NAMES)
        assert storage.read(uri)[0] == DATA + b"a b.jpg"
        assert storage.read_range(uri, 9, 9) == DATA[9:18]
    assert server.proxy.failed == fault.times


@pytest.mark.usefixtures("in_parts")
@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        Fault(SLOW_DOWN, PART, times=2),
        Fault(refusing(400, "BadDigest"), PART, times=1),
        Fault(reset, PART, times=1, before=False),
        Fault(SLOW_DOWN, COMPLETE, times=1),
        Fault(reset, COMPLETE, times=1, before=False),
        Fault(short_body, r"POST /bucket/f\?uploads", times=1),
    ],
)
def test_a_transient_fault_of_an_upload_is_retried(server: S3Server, fault: Fault):
    with server.proxy.failing(fault), storage.open_sink("s3://bucket/f", "") as sink:
        sink.write([LARGE])
    assert server.proxy.failed == fault.times
    assert storage.read("s3://bucket/f")[0] == LARGE
    storage.delete(["s3://bucket/f"])


@pytest.mark.slow
def test_bytes_that_differ_from_the_checksum_are_read_again(server: S3Server):
    storage.create("s3://bucket/photos2/sum", DATA, "")
    once = Fault(corrupt, r"GET /bucket/photos2", times=1)
    with server.proxy.failing(once):
        assert storage.read("s3://bucket/photos2/sum")[0] == DATA
    always = Fault(corrupt, r"GET /bucket/photos2")
    with (
        server.proxy.failing(always),
        pytest.raises(storage.StoreError, match="differ from its checksum"),
    ):
        storage.read("s3://bucket/photos2/sum")


NOT_AUTHORIZED = (
    "User: arn:aws:iam::1:user/me is not authorized to perform: s3:PutObject on resource: "
    "arn:aws:s3:::bucket/f because no identity-based policy allows the s3:PutObject action"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault(SLOW_DOWN), "be read: status 503 SlowDown: Please reduce your request rate"),
        (Fault(refusing(403, "AccessDenied")), "has no permission s3:GetObject, or it does not"),
        (Fault(refusing(403, "AccessDenied", NOT_AUTHORIZED)), "user/me has no permission s3:Put"),
        (Fault(refusing(403, "InvalidAccessKeyId", "No.")), "status 403 InvalidAccessKeyId: No; "),
        (Fault(refusing(403, "SignatureDoesNotMatch")), "'aws configure' sets the secret key"),
        (Fault(refusing(400, "AuthorizationHeaderMalformed", "Expecting eu-west-1.")),
         "Expecting eu-west-1; set AWS_DEFAULT_REGION to the region of the bucket"),
        (Fault(refusing(301, "PermanentRedirect"), GET), "set AWS_DEFAULT_REGION to the region of"),
        (Fault(refusing(301, "PermanentRedirect")), "set AWS_DEFAULT_REGION to the region of"),
        (Fault(refusing(400, "ExpiredToken", "It expired.")), "the AWS credentials cannot be used"),
        (Fault(refusing(501, "NotImplemented")), "status 501 NotImplemented"),
        (Fault(short_body), "the response breaks off"),
        (Fault(silent), "no data for 0.4 s"),
    ],
)  # fmt: skip
def test_a_permanent_fault_is_one_line(
    server: S3Server, fault: Fault, says: str, monkeypatch: pytest.MonkeyPatch
):
    shorten_silence(monkeypatch, fault)
    with server.proxy.failing(fault), pytest.raises(storage.StoreError) as caught:
        storage.read("s3://bucket/photos/a b.jpg")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("s3://bucket/photos/a b.jpg: ")


def test_a_missing_bucket_is_one_line(server: S3Server):
    for act in (
        lambda: list(storage.match("s3://nothing/photos/**")),
        lambda: storage.create("s3://nothing/x", b"", ""),
        lambda: s3.open_upload("s3://nothing/x"),
    ):
        with pytest.raises(storage.StoreError, match="s3://nothing: there is no such bucket"):
            act()


def test_without_credentials_what_is_public_is_read(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
):
    s3._send("s3://bucket/photos/a b.jpg", "put_object_acl", ACL="public-read")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert storage.read("s3://bucket/photos/a b.jpg")[0].startswith(DATA)
    with pytest.raises(storage.StoreError, match="not public, and no AWS credentials were found"):
        storage.read("s3://bucket/photos/a#1.jpg")


def test_a_profile_of_the_credentials_file_is_used(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: object
):
    file = f"{tmp_path}/credentials"
    with open(file, "w") as out:
        out.write("[lab]\naws_access_key_id = lab-key\naws_secret_access_key = s\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", file)
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert s3.client("s3://bucket")._request_signer._credentials.access_key == "lab-key"
    assert storage.exists("s3://bucket/photos/a b.jpg")
    monkeypatch.setenv("AWS_PROFILE", "labb")
    with pytest.raises(storage.StoreError, match=r"the AWS credentials cannot.*profile \(labb\)"):
        storage.exists("s3://bucket/photos/a b.jpg")


def test_other_credentials_make_another_client(server: S3Server, monkeypatch: pytest.MonkeyPatch):
    def credentials() -> tuple[str, str | None]:
        found = s3.client("s3://bucket")._request_signer._credentials
        return found.secret_key, found.token

    assert credentials() == ("secret", None)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "renewed")
    assert credentials() == ("renewed", None)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    assert credentials() == ("renewed", "token")


@pytest.mark.slow
def test_a_server_that_does_not_respond_is_one_line(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
):
    for url, says in (("http://127.0.0.1:1", "refused"), ("nowhere", "Invalid endpoint")):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(storage.StoreError, match=rf"s3://bucket: cannot be listed: .*{says}"):
            list(storage.match("s3://bucket/photos/**"))
