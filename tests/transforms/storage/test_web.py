import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
import web_server
from web_server import Internet, WebServer, after, redirect, short, slow, status

from imageshards.transforms import storage
from imageshards.transforms.references.rules import parent_name
from imageshards.transforms.storage import ReadError, web
from imageshards.transforms.storage.addresses import is_public
from imageshards.transforms.storage.web import WebOptions


def local(**limits: Any) -> WebOptions:
    """Limits of requests to the tests' servers."""
    return WebOptions(allow_private_hosts=True, **limits)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    monkeypatch.setattr(web, "_FIRST_WAIT_SECONDS", 0.01)
    with web_server.running() as running:
        yield running


def outcome(url: str, options: WebOptions | None = None, limit: int = 1 << 20) -> bytes | str:
    try:
        return storage.read(url, limit, web=options or local(timeout=5))[0]
    except ReadError as error:
        return f"{error.kind}: {error}"


@pytest.mark.parametrize(
    "name",
    ["/a.jpg", "/a b.jpg", "/50%.jpg", "/ü.jpg", "/[1]*.jpg", "/a.jpg?size=large&x=a/b#part"],
)
def test_a_url_is_read(server: WebServer, name: str):
    server.pages[name.partition("?")[0]] = b"image"
    assert outcome(server.url + name.replace("50%", "50%25")) == b"image"
    assert server.requests.total() == 1


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (404, "Missing: status 404 Not Found"), (410, "Missing: status 410 Gone"),
        (403, "Forbidden: status 403 Forbidden"), (401, "Forbidden: status 401 Unauthorized"),
        (418, "HttpError: status 418 I'm a Teapot"), (204, "HttpError: status 204 No Content"),
        (302, "HttpError: status 302 Found"),
    ],
)  # fmt: skip
def test_permanent_errors_are_not_retried(server: WebServer, code: int, says: str):
    server.pages["/a"] = status(code)
    assert outcome(f"{server.url}/a") == says
    assert server.requests["/a"] == 1


@pytest.mark.parametrize("code", [408, 429, 500, 503])
def test_transient_errors_are_retried(server: WebServer, code: int):
    server.pages["/a"] = after(2, status(code), b"image")
    server.pages["/b"] = status(code)
    assert outcome(f"{server.url}/a") == b"image"
    assert server.requests["/a"] == 3
    assert f"HttpError: status {code}" in str(outcome(f"{server.url}/b"))
    assert "(4 attempts)" in str(outcome(f"{server.url}/b"))
    assert server.requests["/b"] == 8
    server.requests.clear()
    outcome(f"{server.url}/b", local(retries=0))
    assert server.requests["/b"] == 1


@pytest.mark.parametrize("failure", [web_server.hang_up, short(b"ima", 5)])
def test_broken_connections_are_retried(server: WebServer, failure: web_server.Page):
    server.pages["/a"] = after(2, failure, b"image")
    server.pages["/b"] = failure
    assert outcome(f"{server.url}/a") == b"image"
    assert "HttpError: " in str(outcome(f"{server.url}/b"))
    assert server.requests == {"/a": 3, "/b": 4}


def test_retry_after_is_honoured_up_to_a_limit(server: WebServer):
    server.pages["/a"] = after(1, status(429, Retry_After="1"), b"image")
    begin = time.monotonic()
    assert outcome(f"{server.url}/a") == b"image"
    assert time.monotonic() - begin >= 1
    server.pages["/b"] = status(503, Retry_After="3600")
    begin = time.monotonic()
    assert "status 503" in str(outcome(f"{server.url}/b"))
    assert time.monotonic() - begin < 1
    assert web._retry_after(formatdate(time.time() + 100, usegmt=True)) == pytest.approx(100, abs=2)
    assert web._retry_after("soon") is None


def test_hosts_that_do_not_answer_are_errors():
    begin = time.monotonic()
    assert "refused" in str(outcome("http://127.0.0.1:9/a.jpg", local(retries=0)))
    for options in (local(retries=0), WebOptions(retries=0)):
        assert "no.such.host.invalid" in str(outcome("http://no.such.host.invalid/a", options))
        for url in ("http://", "http://[bad/a", "http://a:b/c", "http:///a", "http://a..b/c"):
            assert str(outcome(url, options)).startswith("HttpError: ")
    assert time.monotonic() - begin < 6


def test_redirects_are_followed_up_to_a_limit(server: WebServer):
    server.pages |= {
        "/a": redirect("/b"), "/b": redirect(f"{server.url}/c"), "/c": b"image",
        "/loop": redirect("/pool"), "/pool": redirect("/loop"), "/self": redirect("/self"),
        "/file": redirect("file:///etc/hostname"), "/gs": redirect("gs://bucket/a"),
        **{f"/{n}": redirect(f"/{n + 1}") for n in range(100)},
    }  # fmt: skip
    assert outcome(f"{server.url}/a") == b"image"
    assert str(outcome(f"{server.url}/loop")).startswith("TooManyRedirects: redirected in a circle")
    assert str(outcome(f"{server.url}/self")).startswith("TooManyRedirects: ")
    assert "more than 5 times" in str(outcome(f"{server.url}/0"))
    assert server.requests["/6"] == 0
    assert "redirected to 'file:///etc/hostname'" in str(outcome(f"{server.url}/file"))
    assert "redirected to 'gs://bucket/a'" in str(outcome(f"{server.url}/gs"))


def test_huge_bodies_are_not_read(server: WebServer):
    server.pages |= {"/endless": web_server.endless, "/said": short(b"a", 1 << 40)}
    assert outcome(f"{server.url}/endless") == "TooLarge: more than 1,048,576 bytes"
    assert str(outcome(f"{server.url}/said")).startswith("TooLarge: 1,099,511,627,776 bytes")
    assert server.requests == {"/endless": 1, "/said": 1}


@pytest.mark.parametrize("page", [slow(bytes(1000), 0.02), web_server.slow_headers])
def test_endless_responses_end_at_the_time_limit(server: WebServer, page: web_server.Page):
    server.pages["/a"] = page
    begin = time.monotonic()
    assert outcome(f"{server.url}/a", local(timeout=0.5)) == "Timeout: incomplete after 0.5 s"
    assert time.monotonic() - begin < 1


def test_a_silent_server_is_a_timeout(server: WebServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(web, "_SILENCE_SECONDS", 0.1)
    server.pages["/a"] = slow(b"image", 1)
    begin = time.monotonic()
    assert "Timeout: no data" in str(outcome(f"{server.url}/a", local(retries=1)))
    assert time.monotonic() - begin < 1
    assert server.requests["/a"] == 2


def test_compressed_bodies_are_refused(server: WebServer):
    server.pages["/a"] = status(200, Content_Encoding="gzip")
    assert "the server compressed it" in str(outcome(f"{server.url}/a"))


def test_requests_to_a_host_are_limited(server: WebServer):
    server.pages["/a"] = slow(b"image", 0.005)
    options = local(per_host=3, user_agent="me (me@example.org)")
    with ThreadPoolExecutor(16) as executor:
        got = set(executor.map(lambda _: outcome(f"{server.url}/a", options), range(30)))
    assert got == {b"image"}
    assert server.most_at_a_time == 3
    assert server.agents == {"me (me@example.org)"}


def test_worker_processes_divide_the_limit_of_requests(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(web, "_processes", 1)
    web.divide_requests(4)
    server.pages["/a"] = slow(b"image", 0.005)
    with ThreadPoolExecutor(16) as executor:
        list(executor.map(lambda _: outcome(f"{server.url}/a", local(per_host=8)), range(20)))
    assert server.most_at_a_time == 2


def test_waiting_for_other_requests_does_not_count(server: WebServer):
    server.pages["/a"] = slow(b"image", 0.02)
    with ThreadPoolExecutor(8) as executor:
        options = local(per_host=1, timeout=0.4)
        got = set(executor.map(lambda _: outcome(f"{server.url}/a", options), range(6)))
    assert got == {b"image"}


def test_the_label_of_a_url_is_its_folder():
    assert parent_name("https://h.org/cats/1.jpg?a=b/c") == "cats"
    assert parent_name("HTTP://h.org/x/big%20cats/1.jpg#a/b") == "big cats"
    assert parent_name("https://h.org/1.jpg") == ""


def test_malformed_responses_are_errors(server: WebServer):
    def wrong_chunk(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"-5\r\nhello\r\n")
        handler.close_connection = True

    server.pages = {
        "/address": web_server.redirect("http://[bad/x"),
        "/length": web_server.status(200, Content_Length="9" * 5000),
        "/chunk": wrong_chunk,
    }
    for path in server.pages:
        with pytest.raises(ReadError) as caught:
            storage.read(server.url + path, web=local(retries=0, timeout=5))
        assert caught.value.kind == "HttpError", path


PUBLIC = "93.184.215.14"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.1.2.3", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1",
        "169.254.169.254", "198.18.0.1", "192.0.2.1", "224.0.0.1", "239.1.1.1", "240.0.0.1",
        "255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1",
        "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1",
        "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2001::1",
        "192.0.0.192", "168.63.129.16", "::ffff:168.63.129.16", "64:ff9b:1::808:808", "3fff::1",
    ],
)  # fmt: skip
def test_addresses_of_this_machine_and_its_network_are_not_public(address: str):
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", [PUBLIC, "8.8.8.8", "::ffff:8.8.8.8", "2606:4700::1", "64:ff9b::808:808"]
)
def test_other_addresses_are_public(address: str):
    assert is_public(address)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "127.1", "0"],
)
def test_servers_of_this_machine_are_refused_by_default(server: WebServer, host: str):
    server.pages["/a"] = b"secret"
    port = server.url.rpartition(":")[2]
    said = str(outcome(f"http://{host}:{port}/a", WebOptions(timeout=5)))
    assert said.startswith("PrivateHost: ")
    assert said.endswith("is not a public address; --allow_private_hosts permits it")
    assert said.count("127.0.0.1 ") <= 1
    assert server.requests.total() == 0


def test_a_host_whose_addresses_are_all_private_is_refused(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
):
    internet = Internet(server, monkeypatch)
    internet.answers["intranet.example.org"] = [["10.0.0.5", "fd00::5"]]
    internet.answers["example.org"] = [["10.0.0.5", PUBLIC]]
    server.pages["/a"] = b"image"
    assert outcome("http://intranet.example.org/a", WebOptions()) == (
        "PrivateHost: intranet.example.org resolves to 10.0.0.5, which is not a public address; "
        "--allow_private_hosts permits it"
    )
    assert outcome("http://example.org/a", WebOptions()) == b"image"
    assert internet.connected == [PUBLIC]


@pytest.mark.parametrize(
    "target", ["http://169.254.169.254/computeMetadata/v1/", "http://metadata.example.org/"]
)
def test_a_redirect_to_a_private_host_is_refused(
    server: WebServer, monkeypatch: pytest.MonkeyPatch, target: str
):
    internet = Internet(server, monkeypatch)
    internet.answers["example.org"] = [[PUBLIC]]
    internet.answers["metadata.example.org"] = [["169.254.169.254"]]
    server.pages["/a"] = redirect(target)
    assert str(outcome("http://example.org/a", WebOptions())).startswith("PrivateHost: ")
    assert server.requests == {"/a": 1}
    assert internet.connected == [PUBLIC]


def test_a_name_that_resolves_to_another_address_after_the_check_is_not_connected_to(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
):
    internet = Internet(server, monkeypatch)
    internet.answers["example.org"] = [[PUBLIC], ["127.0.0.1"]]
    server.pages["/a"] = web_server.hang_up  # so that the name is resolved once more
    assert str(outcome("http://example.org/a", WebOptions())).startswith("PrivateHost: ")
    assert internet.connected == [PUBLIC]


def test_an_allowed_private_connection_is_not_reused_where_it_is_refused(server: WebServer):
    server.pages["/a"] = b"image"
    assert outcome(f"{server.url}/a") == b"image"
    assert str(outcome(f"{server.url}/a", WebOptions())).startswith("PrivateHost: ")
