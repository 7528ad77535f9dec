"""Archives, and what their listing finds in them."""

import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from imageshards.transforms.inputs import ranges
from imageshards.transforms.inputs.archives import archive
from imageshards.transforms.inputs.kind import ListingOptions, WorkUnit, list_references
from imageshards.transforms.inputs.listed import Listed
from imageshards.transforms.inputs.sources import identify
from imageshards.transforms.references.annotate import Annotator
from imageshards.transforms.references.rules import GroupRule, LabelRule, SplitRule
from imageshards.transforms.storage import ReadError

ANNOTATOR = Annotator(0, LabelRule("none"), SplitRule.parse("train=1"), GroupRule.parse("uri"))
Members = dict[str, bytes]
MEMBERS: Members = {"a/1.jpg": b"one", "a/2.PNG": b"two" * 400, "b/ü #?%20[1]*.jpg": b"three"}


def chunks(place: Path | str, **options: object) -> list[Listed]:
    unit = WorkUnit(identify(str(place)))
    return list(list_references(unit, ListingOptions(**options)))  # type: ignore[arg-type]


def found(
    place: Path | str, limit: int = ranges.MAX_BYTES, **options: object
) -> dict[str, bytes | str]:
    """Path below the archive -> its bytes, or the error type of its reject."""
    result: dict[str, bytes | str] = {}
    for chunk in chunks(place, **options):
        for ref in ANNOTATOR.annotate(chunk.refs).refs():
            name = ref.uri.removeprefix(f"{place}/")
            assert name not in result
            if ref.problem:
                result[name] = ref.problem.error
            else:
                assert ref.range
                try:
                    result[name] = ranges.read(ref.range, ref.stamp, limit)
                    if ref.size >= 0:
                        assert len(result[name]) == ref.size
                except ReadError as error:
                    result[name] = error.kind
    return result


def passed_over(place: Path) -> int:
    return sum(chunk.passed_over for chunk in chunks(place))


def tar_of(members: Members, format: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zip_of(members: Members, method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


KINDS: dict[str, Callable[[Members], bytes]] = {
    "pax.tar": tar_of,
    "gnu.tar": lambda members: tar_of(members, tarfile.GNU_FORMAT),
    "stored.zip": zip_of,
    "deflated.ZIP": lambda members: zip_of(members, zipfile.ZIP_DEFLATED),
    "x.tar.gz": lambda members: gzip.compress(tar_of(members)),
    "x.tgz": lambda members: gzip.compress(tar_of(members)),
    "x.tar.xz": lambda members: lzma.compress(tar_of(members)),
    "x.tar.zst": lambda members: zstandard.compress(tar_of(members)),
}


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that grows by the bytes of each read of an archive that is listed."""
    sizes: list[int] = []
    reads_at = archive.reads_at

    def counting(file, uri: str):
        read_at = reads_at(file, uri)

        def read(size: int, offset: int) -> bytes:
            data = read_at(size, offset)
            sizes.append(len(data))
            return data

        return read

    monkeypatch.setattr(archive, "reads_at", counting)
    return sizes
