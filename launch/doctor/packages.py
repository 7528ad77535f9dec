"""Versions of imageshards and the packages that it requires; extras; decoders of image formats."""

from __future__ import annotations

import io
import platform
from collections.abc import Iterator
from importlib import metadata

from imageshards.launch.doctor.finding import Finding
from imageshards.transforms import extras

_OPTIONAL = (
    "array_record", "google-cloud-storage", "pillow-heif", "tensorflow", "tensorflow-cpu",
    "tensorflow-datasets", "jax", "torch",
)  # fmt: skip
_PURPOSES = {
    "array_record": "--file_format array_record",
    "coco": "masks of annotated objects",
    "dataflow": "--runner=DataflowRunner, and --writer beam to gs://",
    "grain": "reader.grain",
    "s3": "s3:// URIs",
    "azure": "az:// URIs",
    "heic": "HEIC images",
    "train": "reader.load, and the training in Keras",
    "jax": "the training in JAX",
}
_ALWAYS = ("JPEG", "PNG", "GIF", "BMP")
"""Formats that every build needs; TensorFlow decodes them."""
_OTHERS = {"WEBP": "WebP", "TIFF": "TIFF", "JPEG2000": "JPEG 2000", "AVIF": "AVIF"}
"""Pillow's names of further formats -> their names."""


def versions() -> Iterator[Finding]:
    """Checks that the required packages are installed, in versions that imageshards works with."""
    from packaging.requirements import Requirement

    yield Finding("python", "ok", f"{platform.python_version()} on {platform.platform(terse=True)}")
    distribution = metadata.distribution("imageshards")
    yield Finding("imageshards", "ok", distribution.version)
    required = map(Requirement, distribution.requires or ())
    for requirement in required:
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        name, advice = requirement.name, f"pip install '{requirement}'"
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding(name, "problem", "not installed", advice)
            continue
        if requirement.specifier.contains(found, prereleases=True):
            yield Finding(name, "ok", found)
        else:
            yield Finding(name, "problem", f"{found}, not {requirement.specifier}", advice)
    yield from _checksums()
    for name in _OPTIONAL:
        try:
            yield Finding(name, "ok", metadata.version(name))
        except metadata.PackageNotFoundError:
            continue


def _checksums() -> Iterator[Finding]:
    try:
        import google_crc32c
    except ImportError:
        return  # it is required, and reported as missing
    if google_crc32c.implementation == "python":
        advice = "pip install --upgrade google-crc32c"
        yield Finding("CRC-32C", "warning", "computed in Python, which is slow", advice)


def installed_extras() -> Iterator[Finding]:
    """Reports which extras are installed."""
    for name, purpose in _PURPOSES.items():
        if extras.missing(name):
            yield Finding(name, "note", f"not installed ({purpose})", extras.installation(name))
        else:
            yield Finding(name, "ok", f"installed ({purpose})")


def decoders() -> Iterator[Finding]:
    """Encodes and decodes a small image in each format."""
    try:
        from PIL import Image

        from imageshards.transforms.images.decode import open_image
    except ImportError as error:
        advice = "pip install --force-reinstall imageshards"
        yield Finding("decoders", "problem", f"cannot be imported: {error}", advice)
        return
    image = Image.new("RGB", (16, 16), (200, 100, 50))

    def works(name: str) -> str:
        """Returns why a format cannot be decoded; empty if it can."""
        try:
            file = io.BytesIO()
            if name == "HEIF":
                import pillow_heif

                pillow_heif.from_pillow(image).save(file)
            else:
                image.save(file, name)
            opened = open_image(file.getvalue(), image.width * image.height).image
            opened.load()
        except Exception as error:  # whatever a decoder of this machine raises
            return f"{type(error).__name__}: {error}"
        return "" if opened.size == image.size else f"decoded as {opened.size}"

    for name in _ALWAYS:
        problem = works(name)
        advice = "pip install --force-reinstall pillow simplejpeg" if problem else ""
        yield Finding(name, "problem" if problem else "ok", problem or "decoded", advice)
    for name, shown in _OTHERS.items():
        problem = works(name)
        advice = "install a wheel of Pillow that has it" if problem else ""
        value = f"images are rejected ({problem})" if problem else "decoded"
        yield Finding(shown, "warning" if problem else "ok", value, advice)
    if extras.missing("heic"):
        yield Finding("HEIC", "note", "images are rejected", extras.installation("heic"))
    else:
        problem = works("HEIF")
        value = f"images are rejected ({problem})" if problem else "decoded"
        advice = "pip install --force-reinstall pillow-heif" if problem else ""
        yield Finding("HEIC", "warning" if problem else "ok", value, advice)
