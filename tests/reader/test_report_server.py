"""The server of `inspect --serve`: every record, to this machine only."""

import http.client
import io
import json
import math
import re
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from helpers import IMAGESHARDS, records
from PIL import Image

from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.run import run
from imageshards.reader.report import pictures
from imageshards.reader.report.server import Pages, ReportServer, _end_of_chunk
from imageshards.transforms.elements import BuildError, UsageError


@pytest.fixture(scope="module")
def dataset(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("served") / "out"
    options = BuildOptions.of(
        input=(str(photos),), output=str(output), splits="train=0.8,test=0.2", num_shards="3"
    )
    run(options, ["--runner=FnApiRunner"], show_progress=False)
    return output


@pytest.fixture(scope="module")
def server(dataset: Path) -> Iterator[ReportServer]:
    with ReportServer(Pages(str(dataset))) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def get(
    server: ReportServer, path: str, headers: dict[str, str] | None = None, **query: object
) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(
        "GET", f"{path}?{urlencode(query)}" if query else path, headers=headers or {}
    )
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, response.headers["Content-Type"], content


def page(server: ReportServer, **query: object) -> dict[str, Any]:
    status, _, content = get(server, "/records", **query)
    assert status == 200, content
    return json.loads(content)  # type: ignore[no-any-return]


def test_all_records_are_paged_through_in_order(server: ReportServer, dataset: Path):
    names: list[str] = []
    begin = 0
    while begin is not None:
        found = page(server, split="train", **{"from": begin})
        names += [entry["name"] for entry in found["records"]]
        begin = found["next"]
    expected = [record.first("image/filename").decode() for record in records(dataset, "train")]
    assert names == expected
    assert len(names) == found["total"] > 48
    last = page(server, split="train", **{"from": len(names) - 1})
    assert [entry["index"] for entry in last["records"]] == [len(names) - 1]
    assert page(server, split="test", **{"from": 10**9})["records"] == []


def test_records_are_found_by_class_and_by_file_name(server: ReportServer, dataset: Path):
    every = records(dataset, "train")
    for query, wanted in (
        ({"class": "CLASS03"}, lambda r: r.first("image/class/label") == 3),
        ({"class": "3"}, lambda r: r.first("image/class/label") == 3),
        ({"name": "00/0007"}, lambda r: b"00/0007" in r.first("image/filename")),
        ({"class": "class01", "name": "000"}, lambda r: r.first("image/class/label") == 1
         and b"000" in r.first("image/filename")),
    ):  # fmt: skip
        indices: list[int] = []
        begin = 0
        while begin is not None:  # a slow machine needs several pages
            found = page(server, split="train", **{"from": begin}, **query)
            indices += [entry["index"] for entry in found["records"]]
            begin = found["next"]
        assert indices == [index for index, record in enumerate(every) if wanted(record)]


def test_images_are_those_of_the_records(server: ReportServer, dataset: Path):
    expected = records(dataset, "test")[3].first("image/encoded")
    assert get(server, "/image", split="test", index=3) == (200, "image/jpeg", expected)
    status, kind, content = get(server, "/thumbnail", split="test", index=3)
    assert (status, kind) == (200, "image/png")
    assert Image.open(io.BytesIO(content)).size == (24, 16)


def test_the_page_is_that_of_the_report(server: ReportServer):
    status, kind, content = get(server, "/")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert b'"served":true' in content


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/../../etc/passwd", 404, "no such page"),
        ("/metadata/build.json", 404, "no such page"),
        ("/image?split=../..&index=0", 404, "no split '../..'"),
        ("/image?split=test&index=-1", 404, "no record -1"),
        ("/image?split=test&index=100000", 404, "no record 100000"),
        ("/image?split=test&index=x", 400, "an index is a number"),
        ("/records?split=other", 404, "no split 'other': name one of train, test"),
    ],
)
def test_other_requests_get_an_error_of_one_line(
    path: str, status: int, text: str, server: ReportServer
):
    found, _, content = get(server, path)
    assert found == status
    assert text in json.loads(content)["error"]


def test_unexpected_errors_are_no_fault_of_the_request(
    server: ReportServer, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise ValueError("two\nlines")

    monkeypatch.setattr(server.pages, "records", fail)
    status, _, content = get(server, "/records", split="test")
    assert (status, json.loads(content)) == (500, {"error": "unexpected ValueError: two lines"})


def test_browsers_may_close_connections_early(
    server: ReportServer, capfd: pytest.CaptureFixture[str]
):
    threads = threading.active_count()
    for _ in range(5):
        connection = socket.create_connection(("127.0.0.1", server.server_port))
        host = f"Host: 127.0.0.1:{server.server_port}"
        connection.sendall(f"GET / HTTP/1.1\r\n{host}\r\n\r\n".encode())
        # Close with a reset: the answer cannot be sent.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    assert get(server, "/records", split="test")[0] == 200
    deadline = time.monotonic() + 30
    while threading.active_count() > threads + 1:  # one for the request that was answered
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert capfd.readouterr().err == ""


def test_chunks_of_records_are_bounded_in_bytes():
    assert _end_of_chunk(np.full(100, 31 << 20), 7) == 8
    assert _end_of_chunk(np.full(100, 1 << 20), 7) == 11
    assert _end_of_chunk(np.full(100, 50), 7) == 107
    assert _end_of_chunk(np.full(100_000, 16), 0) == 4096


def test_boxes_that_are_not_finite_are_not_shown():
    sides = {f"image/object/bbox/{name}": [0.25, value]
             for name, value in (("xmin", 0.0), ("ymin", 0.0), ("xmax", math.inf),
                                 ("ymax", math.nan))}  # fmt: skip
    assert pictures.boxes_of(sides, []) == [[0.25, 0.25, 0.25, 0.25, ""]]
    named = {**sides, "image/object/class/text": [b"owl", b"cat"]}
    assert pictures.boxes_of(named, []) == [[0.25, 0.25, 0.25, 0.25, "owl"]]


def test_requests_by_another_host_name_are_refused(server: ReportServer):
    port = server.server_port
    assert server.server_address[0] == "127.0.0.1"
    for host in (f"evil.example:{port}", "127.0.0.1", f"127.0.0.1.evil.example:{port}", ""):
        assert get(server, "/", {"Host": host})[0] == 403
    for host in (f"localhost:{port}", f"127.0.0.1:{port}"):
        assert get(server, "/", {"Host": host})[0] == 200


def test_what_cannot_be_served_is_an_error(server: ReportServer, tmp_path: Path):
    with pytest.raises(BuildError, match="not a data set"):
        Pages(str(tmp_path))
    with pytest.raises(UsageError, match=f"--port {server.server_port}: Address already in use"):
        ReportServer(server.pages, server.server_port)
    with pytest.raises(UsageError, match="--port 70000"):
        ReportServer(server.pages, 70_000)


def test_the_command_serves_until_it_is_interrupted(dataset: Path):
    process = subprocess.Popen(
        [*IMAGESHARDS, "inspect", "--serve", str(dataset)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        found = re.match(r"http://127\.0\.0\.1:(\d+)/ ", process.stdout.readline())
        assert found
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=30)
        connection.request("GET", "/records?split=test&from=0")
        assert len(json.load(connection.getresponse())["records"]) > 10
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
