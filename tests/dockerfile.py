"""Runs the install steps of a Dockerfile without Docker, in a virtual environment.

A new virtual environment replaces Python's base image, and a folder the root of the image. Files
of other images (COPY --from) are skipped. As with Docker, a RUN step is cached: it runs again only
if it, an earlier step or a copied file has changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

# Variables of this machine that pip needs to reach its index.
_KEPT = ("PIP_", "SSL_", "HTTP", "http", "NO_PROXY", "no_proxy", "REQUESTS_")


def stages(text: str) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Stage -> (its base, its steps as (instruction, arguments)); stage "" has the global ARGs."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {"": ("", [])}
    name = ""
    for line in filter(None, map(str.strip, whole.splitlines())):
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            base, _, name = re.split(r"(?i)\s+as\s+", rest)[0], None, rest.split()[-1]
            found[name] = (base, [])
        else:
            found[name][1].append((instruction, rest.strip()))
    return found


def steps_of(text: str, stage: str) -> list[tuple[str, str]]:
    """All steps of a stage, after those of its base stages."""
    found = stages(text)
    base, steps = found[stage]
    return [*(steps_of(text, base) if base in found else []), *steps]


@dataclass
class Image:
    """A built stage.

    Attributes:
      root: the folder that represents the root of the image.
      environment: environment variables of the image.
      seconds: wall time of each RUN step when it last ran, in order.
    """

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    @property
    def python(self) -> Path:
        return self.root / "venv/bin/python"

    def run(self, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in the image."""
        return subprocess.run(
            command, cwd=self.root, env={**self.environment, **environment},
            capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip


def build(dockerfile: Path, stage: str, context: Path, cache: Path) -> Image:
    """Builds a stage in a folder below `cache`, and deletes older builds there."""
    text = dockerfile.read_text()
    values = dict(_pair(rest) for instruction, rest in stages(text)[""][1] if instruction == "ARG")
    steps = steps_of(text, stage)
    first = next(index for index, (instruction, _) in enumerate(steps) if instruction == "RUN")
    copied = [rest for instruction, rest in steps[:first] if instruction == "COPY"]
    files = [context / name for rest in copied for name in rest.split()[:-1]]
    root = cache / _digest(sys.version, text, *map(_content, files))
    for other in cache.iterdir():
        if other != root:
            shutil.rmtree(other)
    if not root.exists():
        subprocess.run([sys.executable, "-m", "venv", root / "venv"], check=True)
    image = Image(root)
    image.environment = {
        "PATH": f"{root}/venv/bin:/usr/bin:/bin",
        "HOME": str(root),
        # A slim image has no compiler.
        "CC": "/bin/false",
        **{name: value for name, value in os.environ.items() if name.startswith(_KEPT)},
    }
    where, state = root, ""
    arguments: dict[str, str] = {}
    for instruction, rest in steps:
        state = _digest(state, instruction, rest)
        known = {**arguments, **image.environment}
        if instruction == "ARG":
            name, value = _pair(rest)
            arguments[name] = values.get(name, value)
        elif instruction == "ENV":
            name, value = _pair(rest)
            image.environment[name] = _filled(value, known)
        elif instruction == "WORKDIR":
            where = root / _filled(rest, known).lstrip("/")
            where.mkdir(parents=True, exist_ok=True)
        elif instruction == "COPY" and not rest.startswith("--from="):
            *sources, target = rest.split()
            target_path = root / target.lstrip("/") if target.startswith("/") else where / target
            for source in sources:
                state = _digest(state, _content(context / source))
                _copy(context / source, target_path, into=target.endswith("/"))
        elif instruction == "RUN":
            done = root / f".{state}"
            if not done.exists():
                begin = time.monotonic()
                command = ["/bin/sh", "-e", "-c", rest]
                ran = subprocess.run(
                    command, cwd=where, env={**arguments, **image.environment},
                    capture_output=True, text=True, check=False,
                )  # fmt: skip
                assert ran.returncode == 0, f"{rest}\n{ran.stdout[-2000:]}\n{ran.stderr[-4000:]}"
                done.write_text(str(time.monotonic() - begin))
            image.seconds.append(float(done.read_text()))
    return image


def _pair(rest: str) -> tuple[str, str]:
    name, _, value = shlex.split(rest)[0].partition("=")
    return name, value


def _filled(value: str, known: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda match: known.get(match[1], ""), value)


def _copy(source: Path, target_path: Path, *, into: bool) -> None:
    if source.is_dir():
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target_path, dirs_exist_ok=True, ignore=ignore)
        return
    target = target_path / source.name if into else target_path
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def _content(path: Path) -> str:
    files = [path] if path.is_file() else sorted(path.rglob("*.*"))
    return _digest(*(f"{file}{_digest(file.read_bytes().hex())}" for file in files if file.is_file()
                     and "__pycache__" not in file.parts))  # fmt: skip


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
