"""A local server of Azure Blob Storage for tests, Azurite, behind a proxy that injects faults.

npm installs it, in a folder that all tests of this machine share.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fault_proxy
from fault_proxy import FaultProxy

_VERSION = "3.35.0"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key of the account devstoreaccount1, which is the same everywhere."""


def missing() -> str:
    """Returns why the server cannot run; empty if it can."""
    if not shutil.which("npm"):
        return "npm, which installs Azurite, is not installed"
    try:
        _installed()
    except subprocess.SubprocessError as error:
        return f"npm cannot install Azurite: {error}"
    return ""


def _installed() -> Path:
    folder = Path(tempfile.gettempdir()) / f"imageshards-azurite-{_VERSION}-{os.getuid()}"
    command = folder / "node_modules/.bin/azurite-blob"
    if not command.exists():
        folder.mkdir(exist_ok=True)
        subprocess.run(
            ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder,
             f"azurite@{_VERSION}"],
            check=True, capture_output=True, timeout=600,
        )  # fmt: skip
    return command


@contextmanager
def running() -> Iterator[tuple[FaultProxy, dict[str, str]]]:
    """Runs a server; yields its proxy, and environment variables of its clients."""
    command = [
        _installed(), "--inMemoryPersistence", "--silent", "--disableTelemetry",
        "--skipApiVersionCheck", "--blobPort", "0",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            assert process.stdout
            found = next(filter(None, (re.search(r"http://127.0.0.1:(\d+)", line)
                                       for line in process.stdout)))  # fmt: skip
            with fault_proxy.running("127.0.0.1", int(found[1])) as proxy:
                yield (
                    proxy,
                    {
                        "AZURE_STORAGE_ACCOUNT": "devstoreaccount1",
                        "AZURE_STORAGE_KEY": _KEY,
                        "AZURE_STORAGE_SERVICE_ENDPOINT": f"{proxy.url}/devstoreaccount1",
                    },
                )
        finally:
            process.terminate()
            process.wait()
