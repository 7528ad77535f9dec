"""Lists of what to leave out, against a model: sets of names."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from references import annotator, listing

from imageshards.transforms.elements import BuildError
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.names import Roots
from imageshards.transforms.references.order import partition
from imageshards.transforms.references.selection import exclusion
from imageshards.transforms.references.selection.exclusion import compare, read_list

ROOTS = Roots(frozenset({"/d/"}))
EMPTY = RefBatch.listed([], [])
names = st.sampled_from([f"{label}/{number}é.jpg" for label in "abc" for number in range(4)])
forms = st.sampled_from(["{}", "/d/{}", "/d/../d/{}", "file:///d/{}"])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lists") / "list.txt"


@settings(max_examples=50)
@given(st.sets(names), st.lists(st.tuples(names, forms)), st.sampled_from(["\n", "\r\n"]))
def test_names_and_uris_leave_out_the_same_images(
    path: Path, images: set[str], lines: list[tuple[str, str]], end: str
):
    path.write_bytes(end.join(form.format(name) for name, form in lines).encode())
    refs = annotator().annotate(listing([f"/d/{name}" for name in sorted(images)]))
    groups: dict[int, list[RefBatch]] = {}
    for at, batches in enumerate(([refs], read_list(str(path), ROOTS, {}, 0))):
        for batch in batches:
            for group, part in partition(batch, 2):
                groups.setdefault(group, [EMPTY, EMPTY])[at] = part
    found = [compare(*parts) for parts in groups.values()]
    listed = {name for name, _ in lines}
    assert {name for part in found for name in part.others.names} == images - listed
    assert sum(part.lines for part in found) == len(lines)
    unknown = [name for name, _ in lines if name not in images]
    assert sum(len(part.unknown) for part in found) == len(unknown)


def test_a_list_is_read_in_parts(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exclusion, "_LINES_AT_A_TIME", 4)
    packed = path.with_name("list.txt.gz")
    packed.write_bytes(
        gzip.compress(b"\xef\xbb\xbf" + b"\n\n".join(b"%d.jpg" % n for n in range(10)))
    )
    batches = list(read_list(str(packed), ROOTS, {}, 0))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert [uri for batch in batches for uri in batch.uris] == [f"{n}.jpg" for n in range(10)]


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("none.txt", None, "cannot be read: No such file"),
        ("long.txt", b"x\n" + b"x" * (1 << 17), ":2: a line of more than 65,536 characters"),
        ("cut.txt.gz", gzip.compress(bytes(9999), mtime=0)[:-9], "cannot be read: "),
        ("no.txt.gz", b"a.jpg", "cannot be read: Not a gzipped file"),
    ],
)
def test_a_list_that_cannot_be_read_is_an_error(
    tmp_path: Path, name: str, data: bytes | None, says: str
):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(BuildError) as caught:
        list(read_list(str(tmp_path / name), ROOTS, {}, 0))
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"--exclude {tmp_path / name}")
