"""Paths are joined by `storage.join` alone: a slash at the end of a folder changes nothing."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_imports import MODULES, ROOT

# These join with a slash what is no path of a file.
NO_PATHS = {
    "launch/dataflow/package.py": "names in a wheel",
    "launch/flink/cluster.py": "local folders of a cluster, which it makes itself",
    "pipeline/job/progress.py": "rates per second",
    "pipeline/options/command_line.py": "a pattern in a message",
    "reader/elements/arrays.py": "keys of features",
    "reader/elements/keys.py": "keys of features",
    "reader/features_json.py": "keys of features",
    "reader/tensorflow/features.py": "keys of features",
    "transforms/annotations/files.py": "names in annotation files",
    "transforms/annotations/hub.py": "names of rows",
    "transforms/annotations/match.py": "names in annotation files",
    "transforms/annotations/yolo.py": "names in annotation files",
    "transforms/inputs/archives/archive.py": "names of members",
    "transforms/inputs/archives/members.py": "names of members",
    "transforms/inputs/archives/samples.py": "names of members",
    "transforms/inputs/archives/tars.py": "names of members",
    "transforms/inputs/embedded/mds.py": "names of samples",
    "transforms/inputs/embedded/parquet.py": "names of rows",
    "transforms/inputs/tfrecords.py": "names of records",
    "transforms/pairs/side_file.py": "names of members",
    "transforms/records/croissant.py": "identifiers of fields",
    "transforms/storage/__init__.py": "join itself",
    "transforms/storage/gcs_json.py": "URLs of requests",
    "transforms/storage/gcs_read.py": "paths of requests",
    "transforms/storage/objects.py": "URIs of objects, whose names may begin or end with a slash",
}


def text_of(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def joined_by_hand(tree: ast.AST) -> Iterator[int]:
    """Lines in which a slash joins two names: f"{a}/b", a + "/b", a + "/" + b, "/".join(...)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and "://" not in text_of(node.values[0]):
            for part, following in zip(node.values, node.values[1:], strict=False):
                if isinstance(part, ast.FormattedValue) and text_of(following).startswith("/"):
                    yield node.lineno
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            longer = text_of(node.right)[1:]
            left = node.left
            joins = isinstance(left, ast.BinOp) and text_of(left.right).endswith("/")
            if joins or (longer and text_of(node.right).startswith("/")):
                yield node.lineno
        elif isinstance(node, ast.Attribute) and node.attr == "join" and text_of(node.value) == "/":
            yield node.lineno


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('f"{root}/{name}"', True),
        ('f"{root}/metadata"', True),
        ('f"cannot read {root}/metadata"', True),
        ('root + "/metadata"', True),
        ('root + "/" + name', True),
        ('"/".join((root, name))', True),
        ('f"https://example.org/{region}/{job}"', False),
        ('f"image/{key}"', False),
        ('root + name', False),
        ('", ".join(names)', False),
    ],
)  # fmt: skip
def test_the_check_finds_paths_that_are_joined_by_hand(code: str, found: bool):
    assert bool(list(joined_by_hand(ast.parse(code)))) is found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_path_is_joined_by_hand(path: Path):
    lines = list(joined_by_hand(ast.parse(path.read_text())))
    if str(path.relative_to(ROOT)) in NO_PATHS:
        assert lines, "it joins nothing: remove its line from NO_PATHS"
    else:
        assert not lines, f"lines {lines}: use storage.join"
