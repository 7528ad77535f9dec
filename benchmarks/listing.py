"""Measures how the listing of inputs scales with the workers, behind a slow object store.

    python -m benchmarks.listing [--scale 0.02] [--engines local-1,local-4,flink-1,flink-8]
                                 [--inputs tars,records,prefix,csv,parquet,compressed]

The server is that of the tests, in this process; it answers each request after --delay seconds.
Each row is a process of its own that runs `ReadReferences` and nothing else. Listing seconds are
those from the first step of the graph to the last batch of references: on Flink, this step begins
when all workers have started, which is in the seconds of the whole. Flink needs `make engines`
(Java, Maven) and one task manager a worker.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcs_server import GcsServer

ROOT = Path(__file__).parents[1]
_IMAGES = 200
_STARTS = 4
"""Elements for each worker, of which it receives at least one."""
_NAMES = "tars,records,prefix,csv,parquet,compressed"
_CREDENTIALS = {
    "type": "authorized_user", "token": "t", "refresh_token": "r", "client_id": "c",
    "client_secret": "s", "expiry": "2999-01-01T00:00:00Z",
}  # fmt: skip
_ENGINES = "local-1,local-4,flink-1,flink-2,flink-4,flink-8"


def _tar(mode: str = "w") -> bytes:
    from helpers import image_bytes

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:  # type: ignore[call-overload]
        for number in range(_IMAGES):
            data = image_bytes(number)
            info = tarfile.TarInfo(f"class{number % 10}/{number:04}.jpg")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _put_tars(server: GcsServer, scale: float) -> tuple[str, int]:
    data, count = _tar(), max(2, round(64 * scale))
    for number in range(count):
        server.put(f"tars/{number:03}.tar", data)
    return "tars/*.tar", count * _IMAGES


def _put_compressed(server: GcsServer, scale: float) -> tuple[str, int]:
    data, count = _tar("w:gz"), max(2, round(8 * scale))
    for number in range(count):
        server.put(f"compressed/{number:03}.tar.gz", data)
    return "compressed/*.tar.gz", count * _IMAGES


def _put_records(server: GcsServer, scale: float) -> tuple[str, int]:
    from helpers import image_bytes

    from imageshards.pipeline.options.build_options import BuildOptions
    from imageshards.pipeline.run import run

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "in")
        folder.mkdir()
        for number in range(_IMAGES):
            (folder / f"{number:04}.jpg").write_bytes(image_bytes(number))
        options = BuildOptions.of(input=(str(folder),), output=f"{name}/out", num_shards="1")
        run(options, ["--runner=FnApiRunner"], show_progress=False)
        (shard,) = Path(name, "out").glob("*.tfrecord")
        data, count = shard.read_bytes(), max(2, round(64 * scale))
    for number in range(count):
        server.put(f"records/{number:03}.tfrecord", data)
    return "records/*.tfrecord", count * _IMAGES


def _put_prefix(server: GcsServer, scale: float) -> tuple[str, int]:
    count = max(1000, round(100_000 * scale))
    for number in range(count):
        server.put(f"prefix/class{number % 100:03}/{number:08}.jpg", b"0123456789")
    return "prefix", count


def _rows(count: int) -> Iterator[tuple[str, str]]:
    for number in range(count):
        label = f"n{number % 1000:08}"
        yield f"gs://bucket/train/{label}/{label}_{number:08}.JPEG", label


def _put_csv(server: GcsServer, scale: float) -> tuple[str, int]:
    count = max(1000, round(5_000_000 * scale))
    text = io.StringIO()
    text.write("uri,label\n")
    for uri, label in _rows(count):
        text.write(f"{uri},{label}\n")
    server.put("list.csv", text.getvalue().encode())
    return "list.csv", count


def _put_parquet(server: GcsServer, scale: float) -> tuple[str, int]:
    import pyarrow as pa
    from pyarrow import parquet

    count = max(1000, round(5_000_000 * scale))
    uris, labels = zip(*_rows(count), strict=True)
    out = io.BytesIO()
    parquet.write_table(pa.table({"uri": uris, "label": labels}), out, row_group_size=1 << 18)
    server.put("list.parquet", out.getvalue())
    return "list.parquet", count


_INPUTS: dict[str, tuple[str, Callable[[GcsServer, float], tuple[str, int]]]] = {
    "tars": ("64 tars of 200 images", _put_tars),
    "records": ("64 TFRecord files of 200 images", _put_records),
    "prefix": ("a prefix of 100,000 objects", _put_prefix),
    "csv": ("a CSV file of 5 M rows", _put_csv),
    "parquet": ("a Parquet file of 5 M rows", _put_parquet),
    "compressed": ("8 .tar.gz of 200 images", _put_compressed),
}


def list_input(uri: str, folder: Path, beam_arguments: list[str]) -> None:
    """Lists an input, and prints seconds, references and workers as JSON."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from benchmarks.listing_steps import Clock, Ready, Watch
    from imageshards.pipeline.assembly import BuildSpec
    from imageshards.pipeline.options.build_options import BuildOptions
    from imageshards.transforms.inputs.sources import identify
    from imageshards.transforms.read import ReadReferences

    spec = BuildSpec(BuildOptions.of(input=(uri,), output=str(folder / "out")))
    parallelism = next((word for word in beam_arguments if word.startswith("--parallelism=")), "")
    begin = time.time()
    with beam.Pipeline(options=PipelineOptions(beam_arguments)) as root:
        workers = 0
        if parallelism:
            workers = int(parallelism.removeprefix("--parallelism="))
            _ = (
                root
                | "Numbers" >> beam.Create(range(_STARTS * workers))
                | "Ready" >> beam.ParDo(Ready(str(folder)))
            )
        inputs = [Clock(str(folder), str(folder / "clock"), workers), identify(uri)]
        listed = root | "Read" >> ReadReferences(inputs, spec.annotator, spec.listing)
        _ = listed.batches | "Watch" >> beam.ParDo(Watch(str(folder)))
    whole = time.time() - begin
    first = float((folder / "begin").read_text())
    ends = [json.loads(path.read_text()) for path in folder.glob("worker-*")]
    print(
        json.dumps(
            {
                "listing": max(end for end, _ in ends) - first,
                "whole": whole,
                "references": sum(references for _, references in ends),
                "workers": len({path.name.split("-")[1] for path in folder.glob("worker-*")}),
            }
        )
    )


@contextmanager
def _engine(name: str, folder: Path, environment: dict[str, str]) -> Iterator[list[str]]:
    """The options of Beam for an engine such as local-4 or flink-2, which runs in the block."""
    kind, _, workers = name.partition("-")
    if kind == "local":
        options = ["--runner=FnApiRunner"]
        if int(workers) > 1:
            options.append("--direct_running_mode=multi_processing")
            options.append(f"--direct_num_workers={workers}")
        yield options
        return
    cluster = subprocess.Popen(
        [
            sys.executable, ROOT / "launch/flink/cluster.py", "run", "--folder", folder / "cluster",
            "--rest_port=0", "--job_port=0", f"--task_managers={workers}",
        ],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
    )  # fmt: skip
    assert cluster.stdin
    assert cluster.stdout
    try:
        started = cluster.stdout.readline()
        if not started:
            raise SystemExit("the Flink cluster did not start")
        yield json.loads(started)["options"]
    finally:
        cluster.stdin.close()
        cluster.wait()


def main() -> None:
    """Fills the server, measures, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="size of the inputs")
    parser.add_argument("--delay", type=float, default=0.1, help="seconds before each response")
    parser.add_argument("--inputs", default=_NAMES)
    parser.add_argument("--engines", default=_ENGINES)
    parser.add_argument("--only", nargs=2, metavar=("URI", "FOLDER"), help=argparse.SUPPRESS)
    args, beam_arguments = parser.parse_known_args()
    if args.only:
        list_input(args.only[0], Path(args.only[1]), beam_arguments)
        return
    sys.path.insert(0, str(ROOT / "tests"))
    import gcs_server

    with gcs_server.running() as server, tempfile.TemporaryDirectory() as name:
        # Without credentials, the clients of each worker look for some for 20 s.
        credentials = Path(name, "credentials.json")
        credentials.write_text(json.dumps(_CREDENTIALS))
        environment = {**os.environ, **server.environment, "PYTHONPATH": str(ROOT)}
        environment["GOOGLE_APPLICATION_CREDENTIALS"] = str(credentials)
        found = {kind: _INPUTS[kind][1](server, args.scale) for kind in args.inputs.split(",")}
        server.delay = args.delay
        print("| input | engine | listing, s | whole, s | workers | requests |")
        print("|---|---|---|---|---|---|", flush=True)
        for engine in args.engines.split(","):
            with _engine(engine, Path(name, engine), environment) as options:
                for kind, (uri, references) in found.items():
                    row = _run(f"gs://bucket/{uri}", server, options, environment)
                    assert row["references"] == references, (engine, kind, row)
                    size = _INPUTS[kind][0] if args.scale == 1 else f"{kind} ({references:,})"
                    print(
                        f"| {size} | {engine} | {row['listing']:.1f} | {row['whole']:.1f} "
                        f"| {row['workers']} | {row['requests']} |",
                        flush=True,
                    )


def _run(
    uri: str, server: GcsServer, options: list[str], environment: dict[str, str]
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        server.requests.clear()
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.listing", "--only", uri, folder, *options],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True, text=True,
        )  # fmt: skip
        row: dict[str, Any] = json.loads(done.stdout)
        row["requests"] = server.requests.total()
        return row


if __name__ == "__main__":
    main()
