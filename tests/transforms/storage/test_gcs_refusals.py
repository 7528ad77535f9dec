"""What a request says that Cloud Storage refuses: the service's own words, and what to do."""

from __future__ import annotations

import pickle
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import gcs_server
import pytest
from gcs_faults import Fault, Send, denied, refused, status
from gcs_server import GcsServer
from google.auth.credentials import AnonymousCredentials, Credentials
from helpers import image_bytes, imageshards

from imageshards.launch.cli import main
from imageshards.transforms import storage
from imageshards.transforms.storage import gcs_auth, retry
from imageshards.transforms.storage.messages import message_in
from imageshards.transforms.storage.retry import RetryPolicy

PERIMETER = (
    "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: VQQnKfXtZ1"
)
RETENTION = (
    "Object 'bucket/a' is subject to bucket's retention policy and cannot be deleted, overwritten "
    "or archived until 2026-12-05T11:36:47.70576-08:00"
)
HOLD = (
    "Object 'bucket/a' is under active Temporary hold and cannot be deleted, overwritten or "
    "archived until hold is removed."
)
BILLING = "The billing account for the owning project is disabled in state absent"
KEY = (
    "Permission denied on Cloud KMS key. Please ensure that your Cloud Storage service account has "
    "been authorized to use this key."
)
PAYER = "Bucket is requester pays bucket but no user project provided."


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    """A server with the object gs://bucket/a; its clients in this process give up soon."""
    monkeypatch.setattr(retry, "POLICY", RetryPolicy(total=0.3, first_wait=0.01))
    with gcs_server.running() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        running.put("a", b"data")
        yield running


def read() -> None:
    storage.read("gs://bucket/a")


def read_odd_name() -> None:
    storage.read("gs://bucket//a")


def stat() -> None:
    storage.stat("gs://bucket/a")


def list_() -> None:
    storage.names_in("gs://bucket/")


def write() -> None:
    with storage.open_sink("gs://bucket/b", "") as sink:
        sink.write([b"data"])


def delete() -> None:
    storage.delete(["gs://bucket/a"])


Do = Callable[[], None]
EVERY = [read, read_odd_name, stat, list_, write, delete]


def message_of(server: GcsServer, do: Do, send: Send) -> str:
    with server.failing(Fault(send)), pytest.raises(storage.StoreError) as caught:
        do()
    message = str(pickle.loads(pickle.dumps(caught.value)))  # as from a worker process
    assert "\n" not in message
    return message


@pytest.mark.parametrize("do", EVERY)
@pytest.mark.parametrize(
    ("code", "text"), [(403, PERIMETER), (403, RETENTION), (403, HOLD), (403, BILLING), (403, KEY)]
)
def test_a_refusal_for_another_reason_than_a_permission_has_the_words_of_the_service(
    server: GcsServer, do: Do, code: int, text: str
):
    message = message_of(server, do, refused(code, text))
    assert text.rstrip(".") in message
    assert re.match(r"gs://bucket(/+[ab])?: cannot be (read|listed|written|deleted): ", message)
    assert "grant" not in message
    assert "run the same command again" not in message


@pytest.mark.parametrize("do", EVERY)
def test_a_missing_permission_is_named_with_a_role_that_has_it(server: GcsServer, do: Do):
    message = message_of(server, do, denied("storage.objects.get"))
    assert "me@example.org has no permission storage.objects.get" in message
    assert message.endswith("grant roles/storage.objectViewer on the bucket bucket")
    message = message_of(server, do, denied("storage.objects.delete"))
    assert "me@example.org has no permission storage.objects.delete" in message
    assert message.endswith("grant roles/storage.objectUser on the bucket bucket")


@pytest.mark.parametrize("do", [read, list_, write, delete])
def test_a_refusal_without_words_is_taken_for_a_missing_permission(server: GcsServer, do: Do):
    assert "has no permission storage.objects." in message_of(server, do, status(403))


@pytest.mark.parametrize("do", EVERY)
def test_a_bad_request_is_not_resumed_by_the_same_command(server: GcsServer, do: Do):
    message = message_of(server, do, refused(400, "The bucket name is invalid.", "invalid"))
    assert "status 400: The bucket name is invalid" in message
    assert "again" not in message


@pytest.mark.parametrize("do", EVERY)
def test_a_failed_precondition_has_the_words_of_the_service(server: GcsServer, do: Do):
    if do is write:
        pytest.skip("412 is an answer to a conditional write")
    text = "At least one of the pre-conditions you specified did not hold."
    assert text.rstrip(".") in message_of(server, do, refused(412, text, "conditionNotMet"))


def test_long_words_are_shortened(server: GcsServer):
    assert len(message_of(server, read, refused(403, "why " * 1000))) < 300


@pytest.mark.parametrize(
    "body",
    ["", "not json", "{", "[1]", '{"error": []}', '{"error": {"message": 3}}', "<html><p>Oops</p>",
     '{"error": {"message": "Forbidden"}}'],
)  # fmt: skip
def test_a_body_without_a_message_has_none(body: str):
    assert message_in(body) == ""


@pytest.mark.parametrize("do", EVERY)
def test_requester_pays_asks_for_a_project_and_then_works(
    server: GcsServer, do: Do, monkeypatch: pytest.MonkeyPatch
):
    server.put("/a", b"data")
    server.requester_pays = "payer"
    with pytest.raises(storage.StoreError) as caught:
        do()
    assert PAYER.rstrip(".") in str(caught.value)
    assert "specify --billing_project" in str(caught.value)
    monkeypatch.setenv("IMAGESHARDS_BILLING_PROJECT", "payer")
    do()
    monkeypatch.setenv("IMAGESHARDS_BILLING_PROJECT", "other")
    with pytest.raises(storage.StoreError) as caught:
        do()
    assert "roles/serviceusage.serviceUsageConsumer on the project other" in str(caught.value)


def test_a_build_in_a_bucket_with_requester_pays_names_the_project(server: GcsServer):
    for number in range(4):
        server.put(f"photos/{number}.jpg", image_bytes(number))
    server.requester_pays = "payer"
    build = ["build", "--input=gs://bucket/photos", "--output=gs://bucket/out", "--num_shards=2"]
    assert main(build) == 1
    # With processes of its own, which are forked from a server.
    done = imageshards(*build, "--workers=2", "--billing_project=payer", **server.environment)
    assert done.returncode == 0, done.stderr
    assert main(["verify", "gs://bucket/out"]) == 1
    for command in ("verify", "inspect", "publish"):
        assert main([command, "gs://bucket/out", "--billing_project=payer"]) == 0
    fingerprint = ["fingerprint", *build[1:]]
    assert main(fingerprint) == 1
    assert main([*fingerprint, "--billing_project=payer"]) == 0
    assert main(build) == 1


def test_the_project_of_the_option_replaces_that_of_the_credentials(
    monkeypatch: pytest.MonkeyPatch,
):
    from google.oauth2.credentials import Credentials as UserCredentials

    found = UserCredentials("t", quota_project_id="mine")  # type: ignore[no-untyped-call]
    monkeypatch.setattr(gcs_auth, "_find_account", lambda: found)
    monkeypatch.setattr(gcs_auth, "_found", None)
    monkeypatch.setenv("IMAGESHARDS_BILLING_PROJECT", "payer")
    assert gcs_auth.credentials().quota_project_id == "payer"  # type: ignore[attr-defined]
    monkeypatch.delenv("IMAGESHARDS_BILLING_PROJECT")
    assert gcs_auth.credentials().quota_project_id == "mine"  # type: ignore[attr-defined]


@pytest.mark.parametrize("do", [read, stat, list_])
@pytest.mark.parametrize("name", ["GOOGLE_CLOUD_QUOTA_PROJECT", "IMAGESHARDS_BILLING_PROJECT"])
def test_what_is_public_is_read_without_credentials_though_a_project_is_set(
    server: GcsServer, do: Do, name: str, monkeypatch: pytest.MonkeyPatch
):
    server.refuses_anonymous_payers = True
    monkeypatch.setenv(name, "payer")
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setattr(gcs_auth, "endpoint", lambda: server.url)
    monkeypatch.setattr(gcs_auth, "_find_account", lambda: AnonymousCredentials())  # type: ignore[no-untyped-call]
    monkeypatch.setattr(gcs_auth, "_found", None)
    do()
    server.requester_pays = "payer"
    with pytest.raises(storage.StoreError, match="login': a project pays only for requests with"):
        do()


def test_the_output_of_a_build_requires_the_role_that_writes(
    server: GcsServer, capsys: pytest.CaptureFixture[str]
):
    server.put("photos/1.jpg", b"")
    build = ["build", "--input=gs://bucket/photos", "--output=gs://bucket/out"]
    with server.failing(Fault(denied("storage.objects.get"), "GET .*out")):
        assert main(build) == 1
    assert "grant roles/storage.objectUser on the bucket bucket" in capsys.readouterr().err
    with server.failing(Fault(denied("storage.objects.list"), "GET .*photos")):
        assert main(build) == 1
    assert "grant roles/storage.objectViewer on the bucket bucket" in capsys.readouterr().err


def test_a_missing_bucket_is_the_same_failure_for_input_and_output(
    server: GcsServer, capsys: pytest.CaptureFixture[str]
):
    server.put("photos/1.jpg", b"")
    for options in (
        ["--input=gs://none/photos", "--output=gs://bucket/out"],
        ["--input=gs://bucket/photos", "--output=gs://none/out"],
    ):
        assert main(["build", *options]) == 1
        assert capsys.readouterr().err == "imageshards: gs://none: there is no such bucket\n"


def test_empty_objects_without_a_size_are_listed(server: GcsServer):
    # Google's storage testbench omits it.
    server.put("empty//0", b"")
    server.put("none", b"")
    for name in ("none", "empty//0"):
        del server.storage.objects["bucket"][name]["size"]
    assert storage.stat("gs://bucket/empty//0")[0] == 0
    assert [entry.size for entry in storage.entries_in("gs://bucket/")] == [4, 0]
    assert sorted(size for _, size, _ in storage.match("gs://bucket/**")) == [0, 0, 4]


@pytest.mark.parametrize("do", [read, stat, list_, write])
@pytest.mark.parametrize("where", ["environment", "credentials"])
def test_requests_go_to_the_universe_of_the_credentials(
    do: Do, where: str, monkeypatch: pytest.MonkeyPatch
):
    found = AnonymousCredentials()  # type: ignore[no-untyped-call]
    if where == "environment":
        monkeypatch.setenv("GOOGLE_CLOUD_UNIVERSE_DOMAIN", "example.invalid")
    else:
        found._universe_domain = "example.invalid"
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr(gcs_auth, "_find_account", lambda: found)
    monkeypatch.setattr(gcs_auth, "_found", None)
    monkeypatch.setattr(retry, "POLICY", RetryPolicy(offline=0.1, total=0.1, first_wait=0.01))
    with pytest.raises(storage.StoreError, match=r"storage\.example\.invalid"):
        do()


def test_the_name_of_a_bucket_is_never_a_query(server: GcsServer):
    for do in (storage.read, storage.stat):
        with suppress(storage.ReadError, storage.StoreError):
            do("gs://bucket?prefix=x/a")  # type: ignore[operator]
    assert server.matching("prefix=") == 0
    assert server.matching("bucket%3Fprefix%3Dx") == 2


@pytest.mark.slow
def test_the_name_of_an_emulator_without_an_address_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://emulator.invalid:1")
    monkeypatch.setattr(retry, "POLICY", RetryPolicy(offline=0.1, total=0.1, first_wait=0.01))
    with pytest.raises(storage.StoreError, match=r"no address of emulator\.invalid: "):
        read()


@pytest.mark.parametrize("do", EVERY)
def test_a_server_that_cannot_be_reached_is_named_as_such(
    server: GcsServer, do: Do, monkeypatch: pytest.MonkeyPatch
):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    with pytest.raises(storage.StoreError, match="Connection refused"):
        do()


class Renewed(Credentials):
    """Credentials whose token is `t1`, and after the n-th refresh `t<n>`; it does not expire."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.refreshed = 0

    def refresh(self, request: object) -> None:
        self.refreshed += 1
        self.token = f"t{self.refreshed}"


@pytest.fixture
def renewed(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Renewed:
    """Credentials of clients in this process."""
    found = Renewed()
    monkeypatch.setattr(gcs_auth, "_find_account", lambda: found)
    monkeypatch.setattr(gcs_auth, "_found", None)
    return found


@pytest.mark.parametrize("do", EVERY)
def test_a_token_that_is_refused_before_it_expires_is_renewed(
    server: GcsServer, renewed: Renewed, do: Do
):
    server.put("/a", b"data")
    server.token = "t1"
    do()
    server.put("a", b"data")
    server.token = "t2"
    do()
    assert renewed.refreshed == 2


def test_many_threads_with_a_refused_token_renew_it_once(server: GcsServer, renewed: Renewed):
    from concurrent.futures import ThreadPoolExecutor

    server.token = "t1"
    read()
    server.token = "t2"
    server.delay = 0.05
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda _: read(), range(32)))
    assert renewed.refreshed == 2


def test_credentials_that_are_found_after_a_request_without_a_token_are_used(
    server: GcsServer, renewed: Renewed, monkeypatch: pytest.MonkeyPatch
):
    accounts = iter([AnonymousCredentials(), renewed])  # type: ignore[no-untyped-call]
    monkeypatch.setattr(gcs_auth, "_find_account", lambda: next(accounts))

    def after_the_search(handler: Any, head: bytes, body: bytes) -> None:
        monkeypatch.setattr(gcs_auth, "_found", None)
        refused(401, "Anonymous caller")(handler, head, body)

    with server.failing(Fault(after_the_search, times=1)):
        read()
    assert renewed.refreshed == 1


def test_a_token_that_is_refused_again_is_one_line(server: GcsServer, renewed: Renewed):
    server.token = "none"
    for do in (read, write):
        with pytest.raises(storage.StoreError) as caught:
            do()
        assert "Invalid Credentials; 'gcloud auth application-default login'" in str(caught.value)
