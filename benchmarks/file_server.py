"""Serves a folder over HTTP on localhost: python file_server.py FOLDER REQUESTS SECONDS.

Prints its URL. Stops after the given number of requests or seconds, or when its standard input
ends, so that it never outlives the process that started it.
"""

import http.server
import os
import sys
import threading
from functools import partial


class _Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    left = 0
    lock = threading.Lock()

    def do_GET(self) -> None:
        with self.lock:
            type(self).left -= 1
            stop = self.left < 0
        if stop:
            os._exit(0)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


def main(folder: str, requests: int, seconds: float) -> None:
    """Serves until one of the limits is reached or stdin ends."""
    _Handler.left = requests
    server = _Server(("127.0.0.1", 0), partial(_Handler, directory=folder))
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    deadline = threading.Timer(seconds, os._exit, [0])
    deadline.daemon = True
    deadline.start()
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
