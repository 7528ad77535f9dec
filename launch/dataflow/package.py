"""Makes the package for the workers: a wheel of the installed imageshards.

Beam's --setup_file would require a checkout of the source.

Format: https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

from __future__ import annotations

import importlib
import pkgutil
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from importlib import metadata
from pathlib import Path

from imageshards.transforms.elements import UsageError

NAME = "imageshards"
_DATA = (".html", ".json", ".npz", ".txt")
"""Suffixes of the package data that setup.py lists, besides py.typed."""
_TAG = "py3-none-any"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_wheel(folder: Path) -> Path:
    """Writes the wheel; its bytes are reproducible.

    Args:
      folder: the folder of the wheel.

    Returns:
      The path of the wheel, folder/imageshards-VERSION-py3-none-any.whl.

    Raises:
      UsageError: the metadata of the installed package is missing.
    """
    distribution = _installed()
    info = f"{NAME}-{distribution.version}.dist-info"
    files = dict(_modules())
    files[f"{info}/METADATA"] = _text(distribution, "METADATA")
    files[f"{info}/entry_points.txt"] = _text(distribution, "entry_points.txt")
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: {NAME}\nRoot-Is-Purelib: true\nTag: {_TAG}\n".encode()
    )
    rows = [f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items()]
    files[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
    path = folder / f"{NAME}-{distribution.version}-{_TAG}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return path


def _installed() -> metadata.Distribution:
    # In a checkout, *.egg-info of an earlier sdist may come first; it has no requirements.
    for distribution in metadata.distributions(name=NAME):
        if distribution.read_text("METADATA"):
            return distribution
    raise UsageError(
        "imageshards was not installed by pip, so there is no package for the workers: specify "
        "--setup_file=SETUP.PY of a checkout, or --sdk_container_image=IMAGE"
    )


def _modules() -> Iterator[tuple[str, bytes]]:
    """Yields (name in the wheel, bytes) of every file of the package."""
    top = importlib.import_module(NAME)
    packages = [
        importlib.import_module(f"{NAME}.{module.name}")
        for module in pkgutil.iter_modules(top.__path__)
        if module.ispkg
    ]
    for package, pattern in [(top, "*"), *((package, "**/*") for package in packages)]:
        (root,) = map(Path, package.__path__)
        for path in sorted(root.glob(pattern)):
            # In a checkout, folders such as launch/flink are no packages.
            is_packaged = path.name == "py.typed" or path.suffix in (".py", *_DATA)
            if is_packaged and (path.parent / "__init__.py").is_file():
                name = path.relative_to(root).as_posix()
                yield f"{package.__name__.replace('.', '/')}/{name}", path.read_bytes()


def _text(distribution: metadata.Distribution, name: str) -> bytes:
    return (distribution.read_text(name) or "").encode()


def _digest(data: bytes) -> str:
    return urlsafe_b64encode(sha256(data).digest()).rstrip(b"=").decode()
