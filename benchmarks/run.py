"""Runs all contenders: python -m benchmarks.run IMAGES [--copies 10]; --help lists the options.

Standard library only: the peers run in environments of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import environments, report
from benchmarks.contenders import CONTENDERS, GROWTH, HEADER, Contender
from benchmarks.environments import Environment
from benchmarks.goals import REFERENCES, goals
from benchmarks.measure import Measurement, measure, memory_available
from benchmarks.results import Figure, Result, Results, Run
from benchmarks.scratch import (
    Images,
    choose_folder,
    copy_images,
    find_images,
    has_room,
    is_tmpfs,
    link_images,
    scratch_folder,
    take_images,
)

_SMALL_IMAGES, _SMALL_SIDE = 20_000, 48
_OBJECT_BYTES = (2_000, 108_000)
_SHARDS = 100_000
_DIGESTS = 10_000_000
_HERE = Path(__file__).resolve().parent
_REPOSITORY = _HERE.parent
_VARIABLES = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "NO_ALBUMENTATIONS_UPDATE": "1",  # otherwise a library of img2dataset looks for updates online
}
_PACKAGES = {
    "imageshards": ("imageshards", "apache-beam", "numpy", "pillow", "simplejpeg", "google-crc32c"),
    "peers": (
        "apache-beam", "tensorflow-cpu", "tensorflow", "tensorflow-datasets", "webdataset",
        "pillow", "protobuf", "numpy",
    ),
    "streaming": ("mosaicml-streaming", "torch", "numpy"),
    "img2dataset": ("img2dataset", "webdataset", "opencv-python-headless", "numpy"),
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmarks that the arguments select; returns the exit code."""
    args = _parser().parse_args(arguments)
    # An exit instead of a signal, so that the scratch folder is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        chosen = _chosen(args)
        size = sum(path.stat().st_size for path in find_images(args.images)) * args.copies
        parent = choose_folder(int(2.2 * size), args.scratch)
        with scratch_folder(parent) as scratch:
            results = _Suite(args, chosen, scratch).run()
    except (ValueError, OSError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    _publish(results, args.results)
    return 0 if all(result.runs for result in results.main.values()) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run",
        description="Compares imageshards with its peers on copies of your images.",
    )
    add = parser.add_argument
    add("images", type=Path, metavar="IMAGES", help="a folder of JPEG files, .../CLASS/NAME")
    add("--copies", type=int, default=10, metavar="N", help="copies of each image (default 10)")
    add("--rounds", type=int, default=3, metavar="N", help="runs of each contender (default 3)")
    add("--shards", type=int, default=16, metavar="N", help="number of shards (default 16)")
    names = ", ".join(contender.name for contender in CONTENDERS)
    add("--only", default="", metavar="A,B", help=f"run only these: {names}; or none")
    add(
        "--growth", default="1,4,16", metavar="A,B",
        help="measure growth with these multiples of the images (default 1,4,16; 0: do not)",
    )  # fmt: skip
    add(
        "--growth-rounds",
        type=int,
        default=0,
        metavar="N",
        help="runs for growth (default: --rounds)",
    )
    counts = ",".join(map(str, REFERENCES))
    add(
        "--references", default=counts, metavar="A,B",
        help=f"numbers of synthetic URIs (default {counts}; 0: none)",
    )  # fmt: skip
    add(
        "--skip-references", action="store_const", dest="references", const="0",
        help="do the same as --references 0",
    )  # fmt: skip
    add(
        "--skip-start-up", action="store_true",
        help="do not measure --help and a build of 10 images",
    )  # fmt: skip
    add(
        "--skip-rates", action="store_true",
        help="do not measure what only `make rates` uses: small images, reads of objects, digests, "
        "and the end of a build",
    )  # fmt: skip
    add(
        "--imageshards", type=Path, default=_REPOSITORY / ".venv/bin/imageshards", metavar="PATH",
        help="the command to measure (default: .venv/bin/imageshards)",
    )  # fmt: skip
    add(
        "--scratch", type=Path, metavar="DIR",
        help="folder for the copies (default: a tmpfs with enough room, else the disk)",
    )  # fmt: skip
    add(
        "--results", type=Path, default=_REPOSITORY / "build/bench", metavar="DIR",
        help="folder for RESULTS.md, results.json and results.png (default build/bench)",
    )  # fmt: skip
    add(
        "--timeout", type=float, default=1800, metavar="SECONDS",
        help="limit of each run (default 1800)",
    )  # fmt: skip
    return parser


def _chosen(args: argparse.Namespace) -> list[Contender]:
    for option in ("copies", "rounds", "shards"):
        if getattr(args, option) < 1:
            raise ValueError(f"invalid --{option} {getattr(args, option)}: write a number from 1")
    if not args.imageshards.is_file():
        raise ValueError(f"--imageshards {args.imageshards}: no such file; run make env")
    names = [name for name in args.only.split(",") if name]
    known = {contender.name: contender for contender in CONTENDERS}
    for name in names:
        if name not in known and name != "none":
            raise ValueError(f"invalid --only {name}: the contenders are {', '.join(known)}")
    return [c for c in CONTENDERS if not names or c.name in names]


@dataclass(frozen=True)
class _Job:
    """A contender and its input images."""

    contender: Contender
    images: Images
    result: Result


class _Suite:
    """All runs of one invocation."""

    def __init__(self, args: argparse.Namespace, chosen: list[Contender], scratch: Path) -> None:
        self._args = args
        self._chosen = chosen
        self._scratch = scratch
        self._expected = scratch / "expected.json"
        self._environments: dict[str, Environment] = {}
        self._results = Results()

    def run(self) -> Results:
        """Copies the images, runs all jobs, and reads their outputs back."""
        args = self._args
        # Reading back and the picture always need the environment "peers".
        for name in dict.fromkeys(["peers", *(c.environment for c in self._chosen)]):
            if name:
                self._environments[name] = environments.ensure(name)
        if error := self._environments["peers"].error:
            raise OSError(f"the environment that reads outputs back: {error}")
        _say(f"copying {args.images} {args.copies} times to {self._scratch}")
        images = copy_images(args.images, self._scratch / "images", args.copies)
        self._expected.write_text(json.dumps({"ranks": images.ranks}))
        ten = take_images(images, self._scratch / "ten", 10)
        self._results.about = self._about(images)
        self._main(images, ten)
        if not args.skip_start_up:
            self._start_up(ten)
        for count in _numbers(args.references):
            self._references(count)
        if not args.skip_rates:
            self._small_images()
            for size in _OBJECT_BYTES:
                self._reads(size)
            self._script("finish", f"the end of a build of {_SHARDS:,} shards", "finish.py",
                         str(_SHARDS), "1000", count=_SHARDS)  # fmt: skip
            self._script("digests", f"{_DIGESTS:,} digests, compared", "copies.py", "digests",
                         str(_DIGESTS), count=_DIGESTS)  # fmt: skip
        self._growth(images)
        return self._results

    def _main(self, images: Images, ten: Images) -> None:
        jobs = [_Job(c, images, self._new_result(c, images)) for c in self._chosen]
        self._results.main = {job.contender.name: job.result for job in jobs}
        for round_number in range(self._args.rounds):
            for job in jobs:
                self._once(job, f"round {round_number + 1}")
                if not job.contender.argv[0].startswith("{python}") and job.result.runs:
                    self._start_up_of(job, ten)

    def _growth(self, images: Images) -> None:
        factors = sorted(_numbers(self._args.growth))
        chosen = [c for c in self._chosen if c.name in GROWTH]
        for factor in factors if chosen else []:
            folder = self._scratch / "grown"
            grown = link_images(images, folder, factor)
            jobs = [_Job(c, grown, self._new_result(c, grown)) for c in chosen]
            for job in jobs:
                self._results.growth.setdefault(job.contender.name, []).append(job.result)
            for round_number in range(self._args.growth_rounds or self._args.rounds):
                for job in jobs:
                    self._once(job, f"growth {factor}x, round {round_number + 1}")
            shutil.rmtree(folder)

    def _new_result(self, contender: Contender, images: Images) -> Result:
        return Result(
            contender.name, contender.title, images.count, contender.checks, contender.shuffle
        )

    def _once(self, job: _Job, when: str) -> None:
        """Runs a job once, and reads its output back; adds the run or the problem to its result."""
        problem = self._obstacle(job)
        if not problem:
            with self._output_folder(job.images.bytes) as output:
                job.result.medium = "tmpfs" if is_tmpfs(output) else "disk"
                measured = self._run(job.contender, job.images, output)
                problem = measured.problem
                if not problem:
                    read, problem = self._read_back(job, output)
                if not problem:
                    job.result.runs.append(_run_of(measured, read, job.images))
        if problem:
            job.result.problems.append(problem)
        last = job.result.runs[-1] if job.result.runs and not problem else None
        outcome = f"{last.seconds:.2f} s, {last.peak_bytes / 1e6:,.0f} MB" if last else problem
        _say(f"{when}: {job.result.title}, {job.images.count:,} images: {outcome}")

    def _obstacle(self, job: _Job) -> str:
        name = job.contender.environment
        if name and (error := self._environments[name].error):
            return error
        needed = job.contender.memory_factor * job.images.bytes + (1 << 30)
        if job.contender.memory_factor and memory_available() < needed:
            return (
                f"skipped: it needs about {needed / 1e9:.0f} GB of memory, more than is available"
            )
        return ""

    def _run(self, contender: Contender, images: Images, output: Path) -> Measurement:
        environment = self._environments.get(contender.environment)
        words = {
            "python": environment.python if environment else "",
            "peers": _HERE / "peers",
            "imageshards": self._args.imageshards,
            "images": images.folder,
            "output": output,
            "shards": min(self._args.shards, images.count),
        }
        with contextlib.ExitStack() as stack:
            if contender.served:
                words["server"] = stack.enter_context(self._server(images))
            argv = [word.format(**words) for word in contender.argv]
            return measure(argv, environment=_VARIABLES, timeout=self._args.timeout)

    def _start_up_of(self, job: _Job, ten: Images) -> None:
        with self._output_folder(ten.bytes) as output:
            measured = self._run(job.contender, ten, output)
        if measured.problem:
            job.result.problems.append(f"with 10 images: {measured.problem}")
        else:
            job.result.startups.append(measured.seconds)

    @contextlib.contextmanager
    def _output_folder(self, size: int) -> Iterator[Path]:
        """Makes a folder next to the images, or on the disk if `size` bytes do not fit there."""
        if has_room(self._scratch, int(1.02 * size)):
            parent = self._scratch
        else:
            parent = Path(tempfile.gettempdir())
        with tempfile.TemporaryDirectory(
            prefix="imageshards-bench-output-", dir=parent, ignore_cleanup_errors=True
        ) as output:
            yield Path(output)

    @contextlib.contextmanager
    def _server(self, images: Images) -> Iterator[str]:
        argv = [sys.executable, _HERE / "file_server.py", images.folder,
                str(4 * images.count), str(self._args.timeout)]  # fmt: skip
        server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert server.stdin
        assert server.stdout
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()
            server.stdout.close()
            server.wait()

    def _read_back(self, job: _Job, output: Path) -> tuple[dict[str, Any], str]:
        """Returns the counts of an output, and a reason if it is invalid."""
        name = job.contender.environment if job.contender.reader == "mds" else "peers"
        # -P: modules of this folder must not shadow those that the script imports.
        argv = [self._environments[name].python, "-P", _HERE / "read_back.py", job.contender.reader,
                output, self._expected]  # fmt: skip
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, env={**os.environ, **_VARIABLES}
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            return {}, f"the output cannot be read: {lines[-1][:300]}"
        read = json.loads(done.stdout.splitlines()[-1])
        if read["images"] != job.images.count:
            return {}, f"the output has {read['images']:,} of {job.images.count:,} images"
        return read, ""

    def _start_up(self, ten: Images) -> None:
        command = str(self._args.imageshards)
        header = next(c for c in CONTENDERS if c.name == HEADER)
        helps, builds = [], []
        for _ in range(self._args.rounds):
            helps.append(measure([command, "--help"]))
            with self._output_folder(ten.bytes) as output:
                builds.append(self._run(header, ten, output))
        for name, title, runs in (
            ("help", "imageshards --help", helps),
            ("ten", "imageshards build of 10 images", builds),
        ):
            self._results.figures[name] = _figure(title, runs, 10 if name == "ten" else 0)
            _say(f"{title}: {runs[-1].problem or f'{runs[-1].seconds:.2f} s'}")

    def _references(self, count: int) -> None:
        python = self._args.imageshards.parent / "python"
        script = str(_HERE / "references.py")
        parent = self._scratch if has_room(self._scratch, 100 * count) else tempfile.gettempdir()
        title = f"{count:,} references"
        with tempfile.TemporaryDirectory(prefix="imageshards-bench-", dir=parent) as folder:
            manifest = f"{folder}/manifest.csv"
            subprocess.run([sys.executable, script, "make", manifest, str(count)], check=True)
            # About 1,000 images per shard, as in shards of 150 MB.
            argv = [str(python), "-P", script, "run", manifest, str(math.ceil(count / 1000))]
            runs = []
            for _ in range(self._args.rounds):
                measured = measure(argv, environment=_VARIABLES, timeout=self._args.timeout)
                runs.append(measured)
                if not measured.problem:
                    found = json.loads(measured.stdout.splitlines()[-1])["images"]
                    if found != count:
                        raise ValueError(f"{title}: only {found:,} in the output")
                _say(f"{title}: {measured.problem or f'{measured.seconds:.2f} s'}")
        self._results.figures[f"references-{count}"] = _figure(title, runs, count)

    def _small_images(self) -> None:
        """Builds images of 2 kB, of which the cost does not depend on their size."""
        python = self._args.imageshards.parent / "python"
        folder = self._scratch / "small"
        subprocess.run(
            [python, "-P", _HERE / "small_images.py", folder, str(_SMALL_IMAGES), str(_SMALL_SIDE)],
            check=True,
        )
        header = next(c for c in CONTENDERS if c.name == f"{HEADER}-1")
        runs = []
        for _ in range(self._args.rounds):
            with self._output_folder(4096 * _SMALL_IMAGES) as output:
                runs.append(self._run(header, Images(folder, _SMALL_IMAGES, 0, 0, {}), output))
        shutil.rmtree(folder)
        title = f"{_SMALL_IMAGES:,} images of 2 kB, header check, one process"
        self._keep("small", title, runs, _SMALL_IMAGES)

    def _reads(self, size: int) -> None:
        """Reads objects from the Cloud Storage server of the tests."""
        name, title = f"reads-{size}", f"a read of an object of {size / 1000:.0f} kB"
        python = self._args.imageshards.parent / "python"
        argv = [str(python), "-m", "benchmarks.gcs", "--json", f"--bytes={size}", "--listed=0"]
        measured = measure(argv, environment=_VARIABLES, timeout=self._args.timeout)
        figure = Figure(title, problem=measured.problem)
        if not measured.problem:
            found = json.loads(measured.stdout.splitlines()[-1])["read 32"]
            figure = Figure(title, cpu_seconds=found["cpu"], count=1)
        self._results.figures[name] = figure
        _say(f"{title}: {figure.problem or f'{1000 * (figure.cpu_seconds or 0):.2f} ms of CPU'}")

    def _script(self, name: str, title: str, script: str, *arguments: str, count: int) -> None:
        """Measures a script of this folder in the environment of imageshards."""
        python = self._args.imageshards.parent / "python"
        argv = [str(python), "-P", str(_HERE / script), *arguments]
        runs = [measure(argv, environment=_VARIABLES, timeout=self._args.timeout)]
        self._keep(name, title, runs, count)

    def _keep(self, name: str, title: str, runs: Sequence[Measurement], count: int) -> None:
        self._results.figures[name] = _figure(title, runs, count)
        _say(f"{title}: {runs[-1].problem or f'{runs[-1].seconds:.2f} s'}")

    def _about(self, images: Images) -> dict[str, Any]:
        python = self._args.imageshards.parent / "python"
        found = {"imageshards": environments.versions(python, _PACKAGES["imageshards"])}
        for name, environment in self._environments.items():
            if not environment.error:
                found[name] = environments.versions(environment.python, _PACKAGES[name])
        medium = "tmpfs" if is_tmpfs(self._scratch) else "disk"
        # The path of the images is specific to this machine: only the folder's name is kept.
        words = [self._args.images.name if w == str(self._args.images) else w for w in sys.argv[1:]]
        command = ["python", "-m", "benchmarks.run", *words]
        return {
            "command": shlex.join(command),
            "images": images.count,
            "bytes": images.bytes,
            "shards": self._args.shards,
            "rounds": self._args.rounds,
            "medium": medium,
            "versions": found,
            "machine": {
                "Date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
                "Machine": _machine(),
                "System": f"{platform.system()} {platform.release()}, "
                f"load average at the start {os.getloadavg()[0]:.1f}",
                "Images": f"{images.count:,} JPEG files, {images.bytes / 1e9:.2f} GB, "
                f"{images.count // self._args.copies:,} of them {self._args.copies} times, "
                f"read from and written to a {medium}",
                "imageshards": _commit(),
            },
        }


def _numbers(text: str) -> list[int]:
    numbers = [int(number) for number in text.split(",") if number]
    return [number for number in numbers if number > 0]


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _run_of(measured: Measurement, read: dict[str, Any], images: Images) -> Run:
    try:
        loop_seconds = json.loads(measured.stdout.splitlines()[-1])["loop_seconds"]
    except (ValueError, IndexError, KeyError, TypeError):
        loop_seconds = None
    return Run(
        seconds=measured.seconds,
        cpu_seconds=measured.cpu_seconds,
        other_seconds=max(0.0, measured.busy_seconds - measured.cpu_seconds),
        peak_bytes=measured.peak_bytes,
        loop_seconds=loop_seconds,
        images=int(read["images"]),
        rising=read["rising"],
        same_bytes=read["bytes"] == images.bytes and read["checksum"] == images.checksum,
    )


def _figure(title: str, runs: Sequence[Measurement], count: int = 0) -> Figure:
    good = [run for run in runs if not run.problem]
    if not good:
        return Figure(title, problem=runs[0].problem)
    loops, used = [], []
    for run in good:
        with contextlib.suppress(ValueError, IndexError, KeyError, TypeError):
            printed = json.loads(run.stdout.splitlines()[-1])
            loops.append(printed["loop_seconds"])
            used.append(printed["cpu_seconds"])
    return Figure(
        title,
        seconds=median(run.seconds for run in good),
        loop_seconds=median(loops) if loops else None,
        peak_bytes=max(run.peak_bytes for run in good),
        cpu_seconds=median(used or [run.cpu_seconds for run in good]),
        count=count,
    )


def _machine() -> str:
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = " ".join(line.partition(":")[2].split())
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{len(os.sched_getaffinity(0))} cores of {model}, {memory / 2**30:.0f} GiB of memory"


def _commit() -> str:
    done = subprocess.run(
        ["git", "-C", _REPOSITORY, "describe", "--always", "--dirty", "--exclude=*"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return f"commit {done.stdout.strip()}" if done.returncode == 0 else "no commit known"


def _publish(results: Results, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    found = goals(results)
    data, picture = folder / "results.json", folder / "results.png"
    as_json = {**results.to_json(), "goals": [vars(goal) for goal in found]}
    data.write_text(json.dumps(as_json, indent=1) + "\n")
    (folder / "RESULTS.md").write_text(report.markdown(results, found, picture.name))
    print(report.text(results, found))
    if any(result.runs for result in results.main.values()):
        python = _HERE / ".venv/peers/bin/python"
        subprocess.run([python, "-P", _HERE / "picture.py", data, picture], check=True)
    print(f"\n{folder}: RESULTS.md, results.json, results.png")


if __name__ == "__main__":
    sys.exit(main())
