"""A stub of the Dataflow API on localhost, with the requests of a submission.

Format: https://cloud.google.com/dataflow/docs/reference/rest/v1b3/projects.locations.jobs
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

JOB_ID = "2026-01-02_03_04_05-1234567890"


@dataclass
class Service:
    """Accepts one job, and reports the state that the test sets.

    Attributes:
      end: runs the job: takes its description, and returns its final state.
      error: the text of the job's only message; empty: it has none.
      refuse: HTTP status with which the service refuses a job; 0: it accepts it.
      endpoint: the URL of the service.
      requests: "METHOD path" of all requests, in order.
      job: the description of the submitted job.
    """

    end: Callable[[dict[str, Any]], str] = lambda job: "JOB_STATE_DONE"
    error: str = ""
    refuse: int = 0
    endpoint: str = ""
    requests: list[str] = field(default_factory=list)
    job: dict[str, Any] = field(default_factory=dict)
    _state: str = "JOB_STATE_PENDING"

    def answer(self, request: str, body: bytes) -> tuple[int, dict[str, Any]]:
        self.requests.append(request)
        method, _, path = request.partition(" ")
        path = path.partition("?")[0]
        jobs = "/v1b3/projects/my-project/locations/us-central1/jobs"
        if (method, path) == ("POST", jobs):
            if self.refuse:
                return self.refuse, {"error": {"code": self.refuse, "message": "not you"}}
            self.job = json.loads(body)
            known = self._known()
            threading.Thread(target=self._run, daemon=True).start()
            return 200, known
        if (method, path) == ("GET", f"{jobs}/{JOB_ID}"):
            return 200, self._known()
        if (method, path) == ("GET", f"{jobs}/{JOB_ID}/messages"):
            message = {
                "id": "1", "time": "2026-01-02T03:04:05Z", "messageText": self.error,
                "messageImportance": "JOB_MESSAGE_ERROR",
            }  # fmt: skip
            return 200, {"jobMessages": [message] if self.error else []}
        if (method, path) == ("GET", f"{jobs}/{JOB_ID}/metrics"):
            return 200, {"metrics": []}
        return 404, {"error": {"code": 404, "message": f"not in this stub: {request}"}}

    def _known(self) -> dict[str, Any]:
        return {
            "id": JOB_ID, "projectId": "my-project", "name": self.job["name"],
            "currentState": self._state, "clientRequestId": self.job["clientRequestId"],
        }  # fmt: skip

    def _run(self) -> None:
        self._state = "JOB_STATE_RUNNING"
        self._state = self.end(self.job)


@contextmanager
def serve(service: Service) -> Iterator[Service]:
    """Runs the service until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, value = service.answer(f"{self.command} {self.path}", body)
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _do  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    service.endpoint = f"http://localhost:{server.server_port}"
    yield service
    server.shutdown()
    server.server_close()
    thread.join()
