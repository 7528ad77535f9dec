"""The store of s3:// URIs, with a server of the protocol and its faults."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest
import s3_server
import store_checks
from fault_proxy import refusing
from gcs_faults import Fault, corrupt, reset, short_body, silent
from s3_server import S3Server
from store_checks import DATA, LARGE

from imageshards.transforms import storage
from imageshards.transforms.storage import objects, parallel_list
from imageshards.transforms.storage.clouds import s3
from imageshards.transforms.storage.protocol import Names

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


@pytest.fixture(scope="module")
def running() -> Iterator[S3Server]:
    with s3_server.running() as server:
        yield server


@pytest.fixture
def server(running: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    store_checks.retry_quickly(monkeypatch, s3)
    running.proxy.log.clear()
    return running


@pytest.fixture(scope="module", autouse=True)
def _objects(running: S3Server) -> None:
    for name in NAMES:
        running.put(f"photos/{name}", DATA + name.encode())


def test_objects_are_listed_with_the_names_that_they_have(server: S3Server):
    list(storage.match("s3://bucket/photos/**"))
    assert server.proxy.count("GET", "?list-type=2") == 1
    directly = ["a b.jpg", "a#1.jpg", "a+b.jpg", "d%20.jpg"]
    store_checks.check_listing("s3://bucket", NAMES, directly)


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
    store_checks.check_ranges("s3://bucket")


def test_an_object_that_was_replaced_since_the_listing_is_not_read(server: S3Server):
    store_checks.check_replaced("s3://bucket")


def test_a_stored_compressed_object_is_its_content(server: S3Server):
    uri = "s3://bucket/compressed.txt"
    s3._send(uri, "put_object", Body=gzip.compress(DATA), ContentEncoding="gzip")
    store_checks.check_stored_gzip(uri)


def test_one_of_two_conditional_writes_succeeds(server: S3Server):
    store_checks.check_conditional_writes("s3://bucket")


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are uploaded in parts of 64 KiB."""
    monkeypatch.setattr(objects, "UPLOAD_BYTES", 1 << 16)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)


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
    store_checks.check_reads_are_retried(
        "s3://bucket", len(NAMES), server.proxy, fault, monkeypatch
    )


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
    store_checks.check_uploads_are_retried("s3://bucket", server.proxy, fault)


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
    store_checks.check_error_of_a_read("s3://bucket", server.proxy, fault, says, monkeypatch)


def test_a_missing_bucket_is_one_line(server: S3Server):
    store_checks.check_errors(
        [
            lambda: list(storage.match("s3://nothing/photos/**")),
            lambda: storage.create("s3://nothing/x", b"", ""),
            lambda: s3.open_upload("s3://nothing/x"),
        ],
        "s3://nothing: there is no such bucket",
    )


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
