"""A reject names the type of a file that is not an image, and quotes nothing of its content."""

import gzip
import io
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import Build
from helpers import contents, image_bytes, rejects, write_images

from imageshards.transforms.images.filetypes import describe


def archive(kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "tar":
        with tarfile.open(fileobj=out, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("a"))
    else:
        with zipfile.ZipFile(out, "w") as file:
            file.writestr("a", "b")
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "an empty file"),
        (b"root:$6$salt$hash:19000:0:99999:7:::\n", "a text file"),
        ("é".encode() * 1000, "a text file"),
        (b"x" + "é".encode() * 1000, "a text file"),  # the last character is cut
        ("text".encode("utf-16"), "a text file"),
        (b"MZ is text as well", "a text file"),
        (b"\xef\xbb\xbf\n<!DOCTYPE html><p>404", "an HTML page"),
        (b'<?xml version="1.0"?><svg/>', "an SVG drawing"),
        (b'<?xml version="1.0"?><rss/>', "an XML file"),
        (Path(sys.executable).read_bytes()[:4096], "an ELF program"),
        (archive("tar"), "a tar archive"),
        (archive("zip"), "a zip archive"),
        (gzip.compress(b"a", mtime=0), "a gzip file"),
        (bytes(100), "a file of zero bytes"),
        (b"\0\1\2\3\xff\xfe", "a file of an unknown type"),
    ],
    ids=lambda value: value if isinstance(value, str) else "data",
)
def test_the_type_of_a_file_is_named(data: bytes, kind: str):
    assert describe(data) == kind


@pytest.mark.parametrize("convert", ["auto", "never"])
def test_no_file_of_a_data_set_quotes_a_file_that_is_not_an_image(
    build: Build, tmp_path: Path, convert: str
):
    images = write_images(tmp_path / "in", 1, 4)
    secrets = {
        "shadow": b"hunter2:swordfish",
        "token": b"\0\1hunter2",
        "program": b"\x7fELFhunter2",
        "width": b"P6 hunter2 5 255\n",
        "long": b"P6 hunter2hunter2 5 255\n",
        "chunk": b"\x89PNG\r\n\x1a\n" + image_bytes(1, "PNG")[8:33] + b"\0\0\0\1h-t2rswordIEND",
        "size": b"Image size (x*y): hunter2\n" + bytes(100),
        "float": b"Image size (x*y): hunter2\n" + bytes(512),
        "float-text": b"Image type: L 16 image\nImage size (x*y): hunter2\n",
        "scale": b"Pf\n2 2\nhunter2\n" + bytes(16),
        "pixels": b"P3 2 2 255\nhunter2 hunter2\n",
    }
    for name, data in secrets.items():
        (tmp_path / name).write_bytes(data)
    rows = [*images, *(tmp_path / name for name in secrets)]
    (tmp_path / "m.txt").write_text("".join(f"{path}\n" for path in rows))
    build(
        tmp_path / "m.txt", labels="none", num_shards="1", max_reject_fraction=0.9, convert=convert
    )
    found = {Path(line["uri"]).name: line["reason"] for line in rejects(tmp_path / "out")}
    assert len(found) == len(secrets)
    assert (
        found.items()
        >= {
            "shadow": "a text file, not an image",
            "token": "a file of an unknown type, not an image",
            "program": "an ELF program, not an image",
        }.items()
    )
    for path, data in contents(tmp_path / "out").items():
        assert b"hunter2" not in data, path
        assert b"h-t2" not in data, path
