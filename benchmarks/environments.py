"""The virtual environments of the peers: benchmarks/.venv/NAME, from requirements files.

img2dataset needs an old webdataset, streaming needs PyTorch, only benchmarks/resize.py needs
libvips, and only benchmarks/coco.py the models of TensorFlow.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REQUIREMENTS = {
    "peers": "requirements.txt",
    "streaming": "requirements-streaming.txt",
    "img2dataset": "requirements-img2dataset.txt",
    "vips": "requirements-vips.txt",
    "coco": "requirements-coco.txt",
}

_VERSIONS = """
import importlib.metadata, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment, or the reason why it could not be installed.

    Attributes:
      name: key of REQUIREMENTS.
      python: the path of its interpreter.
      error: the last line of pip's errors; "" if the installation succeeded.
    """

    name: str
    python: Path
    error: str = ""


def ensure(name: str) -> Environment:
    """Installs an environment unless it exists; a failure is in the result's `error`."""
    requirements = HERE / REQUIREMENTS[name]
    folder = HERE / ".venv" / name
    python = folder / "bin" / "python"
    stamp = folder / "made"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return Environment(name, python)
    print(f"installing {requirements.name} into {folder} ...", file=sys.stderr, flush=True)
    if not python.exists():
        venv.create(folder, with_pip=True)
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         "--requirement", requirements],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        error = (lines or done.stderr.splitlines() or ["pip failed"])[-1].strip()
        return Environment(name, python, f"installation failed: {error[:300]}")
    stamp.write_text(digest)
    return Environment(name, python)


def versions(python: Path, packages: tuple[str, ...]) -> dict[str, str]:
    """Returns the versions of an interpreter and of those packages that it has."""
    done = subprocess.run(
        [python, "-c", _VERSIONS, *packages], capture_output=True, text=True, check=False
    )
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}
