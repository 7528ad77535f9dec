"""Measure reads and lists of Cloud Storage objects, next to plain google-cloud-storage loops.

    python -m benchmarks.gcs [--objects 1000] [--bytes 108000] [--listed 200000] [--server URL]

The server is that of the tests, in another process, or the one at --server, such as fake-gcs-server
(`fake-gcs-server -scheme http -backend memory -port 4443 -public-host localhost:4443`). Each row is
measured in a new process, so that its CPU time is that of the client.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

_BUCKET = "benchmark"
_IN_FLIGHT = (1, 8, 32, 64)


def _post(url: str, data: bytes, kind: str) -> None:
    request = urllib.request.Request(url, data, {"Content-Type": kind})
    urllib.request.urlopen(request).close()


def _fill(url: str, prefix: str, objects: int, size: int) -> None:
    data = Random(0).randbytes(size)

    def put(number: int) -> None:
        name = f"{prefix}%2Fc{number % 100:03}%2F{number:07}.jpg"
        place = f"{url}/upload/storage/v1/b/{_BUCKET}/o?uploadType=media&name={name}"
        _post(place, data, "image/jpeg")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(put, range(objects)))


def _serve(objects: int, size: int, listed: int) -> None:
    """Runs the tests' server with these objects, prints its URL, and waits for the end of stdin."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    import gcs_server

    data = Random(0).randbytes(size)
    with gcs_server.running(_BUCKET) as server:
        for name in _names("read", objects):
            server.put(name, data, _BUCKET)
        for name in _names("list", listed):
            server.put(name, b"0123456789", _BUCKET)
        print(server.url, flush=True)
        sys.stdin.read()


def _names(prefix: str, objects: int) -> list[str]:
    return [f"{prefix}/c{number % 100:03}/{number:07}.jpg" for number in range(objects)]


def _read(in_flight: int, objects: int) -> None:
    from imageshards.transforms import storage

    uris = [f"gs://{_BUCKET}/{name}" for name in _names("read", objects)]
    with ThreadPoolExecutor(in_flight) as threads:
        list(threads.map(storage.read, uris[:in_flight]))
        begin, cpu = time.perf_counter(), time.process_time()
        list(threads.map(storage.read, uris))
    _report(objects, begin, cpu)


def _read_baseline(objects: int) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    bucket = storage.Client("none", AnonymousCredentials()).bucket(_BUCKET)
    names = _names("read", objects)
    bucket.blob(names[0]).download_as_bytes()
    begin, cpu = time.perf_counter(), time.process_time()
    for name in names:
        bucket.blob(name).download_as_bytes()
    _report(objects, begin, cpu)


def _list(_: int) -> None:
    from imageshards.transforms import storage
    from imageshards.transforms.storage import gcs_json

    requests = 0
    real = gcs_json.request

    def counted(*arguments: object, **named: object) -> object:
        nonlocal requests
        requests += 1
        return real(*arguments, **named)

    gcs_json.request = counted  # type: ignore[assignment]
    begin, cpu = time.perf_counter(), time.process_time()
    found = sum(1 for _ in storage.match(f"gs://{_BUCKET}/list/**"))
    _report(found, begin, cpu, requests)


def _list_baseline(_: int) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    client = storage.Client("none", AnonymousCredentials())
    begin, cpu = time.perf_counter(), time.process_time()
    found = sum(1 for _ in client.list_blobs(_BUCKET, prefix="list/"))
    _report(found, begin, cpu, -(-found // 1000))


def _report(count: int, begin: float, cpu: float, requests: int = 0) -> None:
    print(
        json.dumps(
            {
                "count": count,
                "seconds": time.perf_counter() - begin,
                "cpu": time.process_time() - cpu,
                "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
                "requests": requests,
            }
        )
    )


def _run(what: str, url: str, objects: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gcs", "--only", what, "--objects", str(objects)],
        check=True, capture_output=True, text=True,
        env={**os.environ, "STORAGE_EMULATOR_HOST": url},
    )  # fmt: skip
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    """Fills the server, measures, and prints two tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--server", metavar="URL", default="")
    parser.add_argument("--objects", type=int, default=1000)
    parser.add_argument("--bytes", type=int, default=108_000)
    parser.add_argument("--listed", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the reads as one line of JSON")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    args = parser.parse_args()
    jobs = {f"read {number}": lambda n, k=number: _read(k, n) for number in _IN_FLIGHT}
    jobs |= {"read baseline": _read_baseline, "list": _list, "list baseline": _list_baseline}
    if args.only == "serve":
        _serve(args.objects, args.bytes, args.listed)
        return
    if args.only:
        jobs[args.only](args.objects)
        return
    url = args.server
    if url:
        _post(f"{url}/storage/v1/b", json.dumps({"name": _BUCKET}).encode(), "application/json")
        _fill(url, "read", args.objects, args.bytes)
        _fill(url, "list", args.listed, 10)
    else:
        server = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gcs", "--only=serve", f"--objects={args.objects}",
             f"--bytes={args.bytes}", f"--listed={args.listed}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert server.stdout
        url = server.stdout.readline().strip()
    reads = [name for name in jobs if name.startswith("read")]
    rounds = [{name: _run(name, url, args.objects) for name in reads} for _ in range(args.rounds)]
    found = {
        name: {
            "images_per_second": statistics.median(
                r[name]["count"] / r[name]["seconds"] for r in rounds
            ),
            "cpu": statistics.median(r[name]["cpu"] / r[name]["count"] for r in rounds),
        }
        for name in reads
    }
    if args.json:
        print(json.dumps(found))
        if not args.server:
            server.communicate()
        return
    print(f"{args.objects:,} objects of {args.bytes:,} bytes, medians of {args.rounds} rounds")
    print("| reads in flight | images/s | CPU of the client, ms an image |\n|---|---|---|")
    for name in reads:
        rate, cpu = found[name]["images_per_second"], found[name]["cpu"]
        label = name.removeprefix("read ")
        label = "1, google-cloud-storage" if label == "baseline" else label
        print(f"| {label} | {rate:,.0f} | {1000 * cpu:.2f} |")
    if args.listed:
        print(f"\n{args.listed:,} objects of 10 bytes in 100 folders")
        print("| listed by | requests | seconds | CPU, s | memory, MB |\n|---|---|---|---|---|")
        for name, label in (("list", "imageshards"), ("list baseline", "google-cloud-storage")):
            done = _run(name, url, 0)
            assert done["count"] == args.listed
            print(
                f"| {label} | {done['requests']:,} | {done['seconds']:.1f} | {done['cpu']:.1f} "
                f"| {done['megabytes']:.0f} |"
            )
    if not args.server:
        server.communicate()


if __name__ == "__main__":
    main()
