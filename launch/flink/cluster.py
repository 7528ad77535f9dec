"""A Flink cluster on this machine: a job manager, task managers, and Beam's job server.

    cluster.py start    starts it in the background; its log is .engines/cluster/log
    cluster.py stop     stops it
    cluster.py run      runs it until it is interrupted or its standard input ends

`make flink` downloads the jars first. Maven's repository has Flink's jars but not its start
scripts, so the main classes are started here as the scripts do. Only Java and Python are required.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ROOT / ".engines"
FOLDER = ENGINES / "cluster"

_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
_TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
_START_SECONDS = 60.0

# The packages that Flink's own configuration opens on Java 17.
_OPENS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        "java.lang", "java.lang.reflect", "java.net", "java.io", "java.nio", "java.text",
        "java.time", "java.util", "java.util.concurrent", "java.util.concurrent.atomic",
        "java.util.concurrent.locks", "sun.nio.ch",
    )
]  # fmt: skip

# The sizes of a task manager's memory, which Flink's start script would compute.
_CONFIG = """\
jobmanager.rpc.address: 127.0.0.1
jobmanager.rpc.port: {rpc}
jobmanager.bind-host: 127.0.0.1
rest.address: 127.0.0.1
rest.bind-address: 127.0.0.1
rest.port: {rest}
blob.server.port: "0"
taskmanager.host: 127.0.0.1
taskmanager.bind-host: 127.0.0.1
taskmanager.numberOfTaskSlots: {slots}
taskmanager.cpu.cores: {slots}
taskmanager.memory.task.heap.size: 256m
taskmanager.memory.task.off-heap.size: 0m
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.network.min: 192m
taskmanager.memory.network.max: 192m
taskmanager.memory.managed.size: 128m
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 192m
taskmanager.memory.jvm-overhead.max: 192m
heartbeat.interval: 2000
heartbeat.timeout: 10000
restart-strategy.type: {restart}
restart-strategy.fixed-delay.attempts: {attempts}
restart-strategy.fixed-delay.delay: 1 s
io.tmp.dirs: {folder}/tmp
"""


def main() -> int:
    """Runs a command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="A Flink cluster on this machine.")
    parser.add_argument("command", choices=["start", "stop", "run"])
    parser.add_argument(
        "--folder",
        type=Path,
        default=FOLDER,
        help="folder of the configuration, the logs and the process id",
    )
    parser.add_argument(
        "--rest_port", type=int, default=8081, help="port of Flink's REST API; 0 for a free port"
    )
    parser.add_argument(
        "--job_port", type=int, default=8099, help="port of the job server; 0 for a free port"
    )
    parser.add_argument("--task_managers", type=int, default=2, help="number of task managers")
    parser.add_argument("--slots", type=int, default=1, help="slots of each task manager")
    parser.add_argument(
        "--restarts", type=int, default=3, help="restarts of a job whose worker dies"
    )
    args = parser.parse_args()
    try:
        if args.command == "stop":
            return _stop(args.folder)
        return _start(args) if args.command == "start" else _Cluster(args).run()
    except _Problem as problem:
        print(f"flink: {problem}", file=sys.stderr)
        return 1


class _Problem(Exception):
    """An error that the user can correct."""


def _pid(folder: Path) -> int | None:
    """Returns the process id of the cluster that runs in a folder, or None."""
    try:
        pid = int((folder / "pid").read_text())
        # Process ids are reused: check that the process runs this script.
        running = Path(__file__).name in Path(f"/proc/{pid}/cmdline").read_text()
    except (OSError, ValueError):
        return None
    return pid if running else None


def _start(args: argparse.Namespace) -> int:
    if _pid(args.folder):
        raise _Problem(f"a cluster already runs in {args.folder}: run make flink-stop to stop it")
    args.folder.mkdir(parents=True, exist_ok=True)
    arguments = ["run", *(word for word in sys.argv[1:] if word != "start")]
    with (args.folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            env={**os.environ, "IMAGESHARDS_FLINK_DETACHED": "1"},
        )  # fmt: skip
    assert process.stdout
    line = process.stdout.readline().decode()
    if not line:
        lines = (args.folder / "log").read_text(errors="replace").splitlines()
        raise _Problem(f"it did not start: {lines[-1] if lines else ''} ({args.folder}/log)")
    options = " ".join(map(shlex.quote, json.loads(line)["options"]))
    print(
        "A Flink cluster runs. To build on it, run\n\n"
        f"    imageshards build ... {options}\n\nTo stop it, run make flink-stop."
    )
    return 0


def _stop(folder: Path) -> int:
    pid = _pid(folder)
    if pid is None:
        print("flink: no cluster is running")
        return 0
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 30
    while _pid(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    if _pid(folder):
        raise _Problem(f"process {pid} did not end within 30 s")
    print("flink: stopped")
    return 0


class _Cluster:
    """The processes of a cluster, in one process group that ends as a whole."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._folder: Path = args.folder.resolve()
        self._rest = args.rest_port or _free_port()
        self._jobs = args.job_port or _free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ended = threading.Event()

    def run(self) -> int:
        """Runs until a signal or until one of the processes ends; then all end."""
        if not (ENGINES / "flink").is_dir():
            raise _Problem("there are no jars: run make flink to download them")
        for port in (self._rest, self._jobs):
            if not _is_free(port):
                raise _Problem(f"port {port} is in use: set --rest_port and --job_port")
        if os.getpgrp() != os.getpid():
            os.setpgrp()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._signalled)
        if not os.environ.get("IMAGESHARDS_FLINK_DETACHED"):
            threading.Thread(target=self._until_input_ends, daemon=True).start()
        (self._folder / "tmp").mkdir(parents=True, exist_ok=True)
        (self._folder / "pid").write_text(str(os.getpid()))
        try:
            self._begin()
            self._await_task_managers()
            print(json.dumps({"options": self._options()}), flush=True)
            while not self._ended.wait(0.2):
                self._check()
            return 0
        finally:
            (self._folder / "pid").unlink(missing_ok=True)
            self._end()

    def _options(self) -> list[str]:
        """Returns the options of a build that runs on this cluster."""
        return [
            "--runner=FlinkRunner",
            f"--job_endpoint=127.0.0.1:{self._jobs}",
            "--environment_type=PROCESS",
            '--environment_config={"command": "imageshards-worker"}',
            f"--parallelism={self._args.task_managers * self._args.slots}",
            # Without it each stage starts new workers, which takes seconds.
            "--environment_cache_millis=10000",
        ]

    def _begin(self) -> None:
        config = _CONFIG.format(
            rpc=_free_port(),
            rest=self._rest,
            slots=self._args.slots,
            restart="fixed-delay" if self._args.restarts else "none",
            attempts=max(1, self._args.restarts),
            folder=self._folder,
        )
        (self._folder / "config.yaml").write_text(config)
        # The optimizing compiler would take half of the CPU time of short jobs.
        java = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *_OPENS]
        flink = [*java, "-XX:MaxMetaspaceSize=256m", "-cp", f"{ENGINES}/flink/*"]
        conf = ["--configDir", str(self._folder)]
        self._spawn("jobmanager", [*flink, "-Xmx512m", _MANAGER, *conf])
        for number in range(self._args.task_managers):
            memory = ["-Xmx384m", "-XX:MaxDirectMemorySize=320m"]
            self._spawn(f"taskmanager-{number}", [*flink, *memory, _TASK_MANAGER, *conf])
        self._spawn(
            "jobserver",
            [
                *java, "-Xmx512m", "-jar", str(ENGINES / "beam-flink-job-server.jar"),
                f"--flink-master=127.0.0.1:{self._rest}", f"--job-port={self._jobs}",
                "--artifact-port=0", "--expansion-port=0",
                f"--artifacts-dir={self._folder}/artifacts",
            ],
        )  # fmt: skip

    def _spawn(self, name: str, command: list[str]) -> None:
        # Task managers start imageshards-worker, which is in the folder of this Python.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with (self._folder / f"{name}.log").open("wb") as log:
            try:
                self._processes[name] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                    env={**os.environ, "PATH": path},
                )  # fmt: skip
            except FileNotFoundError as error:
                raise _Problem(f"{command[0]} is not installed: install it") from error

    def _await_task_managers(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and not self._ended.is_set():
            self._check()
            with suppress(OSError, ValueError):
                url = f"http://127.0.0.1:{self._rest}/overview"
                with urllib.request.urlopen(url, timeout=5) as answer:
                    running = json.load(answer)["taskmanagers"]
                if running == self._args.task_managers and not _is_free(self._jobs):
                    return
            time.sleep(0.2)
        raise _Problem(f"it did not start within {_START_SECONDS:.0f} s: see {self._folder}/*.log")

    def _check(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise _Problem(f"{name} ended: see {self._folder / name}.log")

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._ended.set()

    def _until_input_ends(self) -> None:
        # The process that started this one holds the other end, which closes when it ends.
        while sys.stdin.buffer.read(4096):
            pass
        self._ended.set()

    def _end(self) -> None:
        # The workers, which are children of the task managers, are in the group too.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) != 0


if __name__ == "__main__":
    sys.exit(main())
