"""Serves the report of a data set on this machine, with all records behind it.

Requests are answered only if they name this machine as their host, so that no page of another site
can read the data set through a name of its own (DNS rebinding). No request names a file.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlencode, urlsplit

import numpy as np
import numpy.typing as npt

from imageshards.reader.dataset import open_dataset
from imageshards.reader.files import find
from imageshards.reader.report import pictures
from imageshards.reader.report.gallery import REJECTS_SHOWN, make_gallery
from imageshards.reader.report.page import Quoted, page_data, render
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.records import example
from imageshards.transforms.records.container import CorruptRecord
from imageshards.transforms.records.example import CorruptExample
from imageshards.transforms.shards.layout import DatasetFacts, first_lines, read_json
from imageshards.transforms.shards.read_back import Record
from imageshards.transforms.storage import StoreError

_PAGE = 48
_SEARCH_SECONDS = 2.0
_CHUNK_BYTES = 4 << 20
"""Records are read in chunks of about as many bytes, or one by one if they are larger."""
_CHUNK_RECORDS = 4096
_CONCURRENT = 4
"""Requests that are answered at the same time; others wait, which bounds the memory."""


class BadRequest(Exception):
    """A request with an invalid value. The message is one line."""


class NotFound(Exception):
    """A request for a record or page that does not exist. The message is one line."""


class Pages:
    """The answers of the server about one data set.

    Args:
      folder: the folder of the data set, local or remote.
      command: the command that repeats the build; empty: the page shows none.

    Raises:
      BuildError: there is no complete data set.

    >>> Pages("dataset").records("train", 0)["records"][0]["index"]
    0
    """

    def __init__(self, folder: str, command: str = "") -> None:
        self._dataset = open_dataset(folder)
        self._source = find(self._dataset.layout.root)
        self._schema = self._dataset.schema
        self._command = command
        self._ends = {
            split: np.cumsum([self._source.files[at].records for at in positions])
            for split, positions in self._source.splits.items()
        }

    @cached_property
    def html(self) -> bytes:
        """The page."""
        layout, build = self._dataset.layout, self._dataset.build
        statistics = read_json(layout.uri("statistics")) or {}
        rejected = first_lines(layout.rejects, REJECTS_SHOWN)
        facts = DatasetFacts(build, self._schema)
        leaked = first_lines(layout.leaks) if build["counts"]["leaks"] else []
        quoted = Quoted(make_gallery(layout, facts, statistics, rejected), rejected, leaked)
        data = page_data(
            build, self._schema, statistics, quoted, command=self._command, served=True
        )
        return render(data).encode()

    def count(self, split: str) -> int:
        """Returns the number of records of a split.

        Raises:
          NotFound: there is no such split.
        """
        if split not in self._ends:
            raise NotFound(f"no split {split!r}: name one of {', '.join(self._ends)}")
        return int(self._ends[split][-1]) if len(self._ends[split]) else 0

    def record(self, split: str, index: int) -> Record:
        """Returns a record by its number in the split.

        Raises:
          NotFound: there is no such record.
          CorruptRecord: it is damaged.
        """
        total = self.count(split)
        if not 0 <= index < total:
            raise NotFound(f"no record {index}: {split} has {total:,}")
        return next(self._read(split, index, index + 1))

    def _read(self, split: str, begin: int, end: int) -> Iterator[Record]:
        ends = self._ends[split]
        while begin < end:
            at = int(np.searchsorted(ends, begin, side="right"))
            file = self._source.files[self._source.splits[split][at]]
            before = int(ends[at]) - file.records
            first, last = begin - before, min(end, int(ends[at])) - before
            last = _end_of_chunk(file.index.sizes[first:last], first)
            for row, data in enumerate(file.data(first, last), first):
                try:
                    offset, size, *_ = file.index.row(row)
                    yield Record(offset, size, example.decode(data))
                except CorruptExample as error:
                    raise CorruptRecord(f"{file.uri}: {error}") from error
            begin = before + last

    def records(
        self, split: str, begin: int, class_text: str = "", name: str = ""
    ) -> dict[str, Any]:
        """Returns a page of records from `begin` on, for the page's gallery.

        With a text to search for, records are read until a page is full or for two seconds; the
        next request continues.

        Args:
          split: the split.
          begin: number of the first record in the split.
          class_text: part of the name of the class, or a label.
          name: part of the file name.

        Returns:
          `records`; `end`, one past the last record read; `next`, where the next page begins, or
          None; and the `total` of the split.

        Raises:
          NotFound: there is no such split.
          CorruptRecord: a record is damaged.
        """
        total = self.count(split)
        begin = min(max(begin, 0), total)
        end, limit = begin, time.monotonic() + _SEARCH_SECONDS
        searching = bool(class_text or name)
        found = []
        for record in self._read(split, begin, total if searching else min(begin + _PAGE, total)):
            index, end = end, end + 1
            if not searching or self._matches(record, class_text.lower(), name.lower()):
                found.append(self._entry(split, index, record))
            if len(found) == _PAGE or (searching and time.monotonic() > limit):
                break
        return {
            "records": found,
            "end": end,
            "next": end if end < total else None,
            "total": total,
        }

    def _matches(self, record: Record, class_text: str, name: str) -> bool:
        schema, classes = self._schema, self._dataset.classes
        if class_text:
            labels = record.values.get(schema.class_key or "", ())
            known = [classes[label].lower() for label in labels if 0 <= label < len(classes)]
            if not any(class_text in name for name in known) and class_text not in map(str, labels):
                return False
        key = schema.key_of("filename") or schema.key_of("source")
        return name in record.first(key, b"").decode("utf-8", "replace").lower()

    def _entry(self, split: str, index: int, record: Record) -> dict[str, Any]:
        known = {"kind": "record", "split": split, "index": index}
        entry = known | pictures.entry_of(record, self._schema, self._dataset.classes)
        if self._schema.holds != "text":
            query = urlencode({"split": split, "index": index})
            entry |= {"image": f"/thumbnail?{query}", "full": f"/image?{query}"}
        return entry

    def image(self, split: str, index: int) -> tuple[str, bytes]:
        """Returns (media type, content) of a record's image.

        Raises:
          NotFound: there is no such record, or it has no image that decodes.
          CorruptRecord: it is damaged.
        """
        record = self.record(split, index)
        try:
            return pictures.content_file(record, self._schema)
        except Exception as error:  # decoders raise errors of many types
            raise NotFound(f"record {index} of {split} has no image that decodes") from error

    def thumbnail(self, split: str, index: int) -> tuple[str, bytes]:
        """Returns (media type, content) of a small picture of a record; see `image`."""
        record = self.record(split, index)
        try:
            return pictures.small_file(pictures.open_picture(record, self._schema))
        except Exception as error:  # decoders raise errors of many types
            raise NotFound(f"record {index} of {split} has no image that decodes") from error


def _end_of_chunk(sizes: npt.NDArray[Any], first: int) -> int:
    """Returns one past the last record of a chunk that begins with record `first`.

    Args:
      sizes: integers [records], the stored bytes of the records from `first` on, at least one.
      first: number of the first record in the file.
    """
    fitting = int(np.searchsorted(np.cumsum(sizes[:_CHUNK_RECORDS]), _CHUNK_BYTES, side="right"))
    return first + max(fitting, 1)


class ReportServer(ThreadingHTTPServer):
    """An HTTP server on 127.0.0.1.

    Args:
      pages: the answers.
      port: its port; 0 takes a free one.

    Raises:
      UsageError: the port cannot be used.
    """

    daemon_threads = True

    def __init__(self, pages: Pages, port: int = 0) -> None:
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"--port {port}: {reason}: choose another one") from error
        self.pages = pages
        self.turns = threading.BoundedSemaphore(_CONCURRENT)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Reports an error, but not that a browser has closed its connection early."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.server_port}/"


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadRequest("an index is a number") from None


class _Handler(BaseHTTPRequestHandler):
    """Answers GET requests."""

    server: ReportServer
    protocol_version = "HTTP/1.1"
    server_version = "imageshards"
    sys_version = ""
    timeout = 60
    _PATHS: ClassVar = ("/", "/records", "/image", "/thumbnail")

    def do_GET(self) -> None:
        """Answers a request."""
        hosts = {f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost")}
        if self.headers.get("Host") not in hosts:
            self._send_error(403, f"this server answers only to {self.server.url}")
            return
        try:
            with self.server.turns:
                kind, content = self._answer()
        except NotFound as error:
            self._send_error(404, str(error))
        except BadRequest as error:
            self._send_error(400, str(error))
        except (BuildError, CorruptRecord, StoreError) as error:
            self._send_error(500, str(error))
        except Exception as error:  # the server goes on, and the page shows the error
            reason = " ".join(str(error).split())
            self._send_error(500, f"unexpected {type(error).__name__}: {reason}")
        else:
            self._send(200, kind, content)

    def _answer(self) -> tuple[str, bytes]:
        address = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(address.query).items()}
        pages, split = self.server.pages, query.get("split", "")
        if address.path == "/":
            return "text/html; charset=utf-8", pages.html
        if address.path == "/records":
            begin = _number(query.get("from", "0"))
            answer = pages.records(split, begin, query.get("class", ""), query.get("name", ""))
            return "application/json", json.dumps(answer, allow_nan=False).encode()
        if address.path in ("/image", "/thumbnail"):
            read = pages.image if address.path == "/image" else pages.thumbnail
            return read(split, _number(query.get("index", "")))
        raise NotFound(f"no such page; there are {', '.join(self._PATHS)}")

    def _send_error(self, code: int, message: str) -> None:
        self._send(code, "application/json", json.dumps({"error": message}).encode())

    def _send(self, code: int, kind: str, content: bytes) -> None:
        headers: Mapping[str, str] = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "Cross-Origin-Resource-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: the page's own requests are of no interest."""
