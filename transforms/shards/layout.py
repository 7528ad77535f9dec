"""The files of a data set: their paths, and how they are made, cleared and verified.

`METADATA_FILES` lists every file of a complete data set that is not a shard. Not in it are
temporary files in metadata/shards, which `claim` and `finish` delete: unpacked tar files
(`unpacked-*`), and the references of large shards (`references-*`). Building, `--overwrite`,
resuming, `verify`, `reshard` and `publish` use the list: to add a file, add one entry. For a file
that can be computed from build.json and the schema, an entry with `make` is sufficient.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from imageshards.transforms import storage
from imageshards.transforms.elements import ShardId
from imageshards.transforms.records.card import card
from imageshards.transforms.records.containers import container_of, index_name, shard_name
from imageshards.transforms.records.croissant import croissant_json
from imageshards.transforms.records.objects import LABEL
from imageshards.transforms.records.schemas import SCHEMAS, Schema
from imageshards.transforms.records.tfds import features_json

LINES_SHOWN = 20
"""Lines of rejects.jsonl and leaks.jsonl that are quoted, unless another number is given."""


_PIECES = 1 << 14
_JOINED = ".joined"
SHARDS_PER_MERGE = 256
"""Shards whose parts of rejects.jsonl are joined by one worker."""


def to_json(value: Any) -> bytes:
    """Returns JSON as every metadata file is written."""
    return (json.dumps(value, indent=1) + "\n").encode()


def json_pieces(value: Mapping[str, Any]) -> Iterator[bytes]:
    """Yields the bytes of `to_json` in pieces.

    A value that is a sequence and no list, such as a million rows, is read row by row.
    """
    held: list[str] = []
    for text in _json_texts(value):
        held.append(text)
        if len(held) >= _PIECES:
            yield "".join(held).encode()
            held = []
    yield "".join(held).encode()


def _json_texts(value: Mapping[str, Any]) -> Iterator[str]:
    encoder = json.JSONEncoder(indent=1)
    for number, (name, item) in enumerate(value.items()):
        yield f"{',' if number else '{'}\n {json.dumps(name)}: "
        if isinstance(item, str | list | tuple) or not isinstance(item, Sequence):
            for text in encoder.iterencode(item):
                yield _indented(text, 1)
            continue
        yield "["
        for at, row in enumerate(item):
            yield ("," if at else "") + "\n  " + _row_text(row)
        yield "\n ]" if item else "]"
    yield "\n}\n"


_FLAT = json.JSONEncoder(separators=(",\n   ", ": "))


def _row_text(row: Mapping[str, Any]) -> str:
    """Returns the text of a row as `to_json` indents it in a list."""
    if row and not any(isinstance(value, dict | list | tuple) for value in row.values()):
        # Python's own encoder, the only one that indents, takes four times as long.
        return "{\n   " + _FLAT.encode(row)[1:-1] + "\n  }"
    return _indented(json.dumps(row, indent=1), 2)


def _indented(text: str, spaces: int) -> str:
    # No text in JSON contains a line feed: all are those of the encoder.
    return text.replace("\n", "\n" + " " * spaces)


def read_json(uri: str) -> dict[str, Any] | None:
    """Returns the JSON object in a file; None if there is no file, {} if it holds anything else."""
    try:
        with storage.open_read(uri) as file:
            value = json.load(file)
            return value if isinstance(value, dict) else {}
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except ValueError:
        return {}


def first_lines(uri: str, count: int = LINES_SHOWN) -> list[dict[str, Any]]:
    """Returns the first objects of a JSON Lines file; none if there is no file."""
    try:
        with storage.open_read(uri) as file:
            return [json.loads(line) for line in islice(file, count)]
    except FileNotFoundError:
        return []


Cleared = Literal["first", "next", "last", "never"]


@dataclass(frozen=True)
class DatasetFacts:
    """The facts that derived metadata files are computed from.

    Attributes:
      build: the content of build.json.
      schema: the schema of the records.
    """

    build: Mapping[str, Any]
    schema: Schema


@dataclass(frozen=True)
class MetadataFile:
    """One kind of file in a data set's folder.

    Attributes:
      path: path below the folder. It begins with `{objects}` if only data sets with `--annotations`
        have the file. It may contain `{shard}` or `{index}` (one file for each shard;
        the name of the shard or of its index), `{part}` (one file for each part of rejects.jsonl),
        or `{label}` (the key of the label feature with dots for slashes; no file without labels).
      make: computes the content from build.json and the schema. Building and resharding write it;
        `verify` compares it with the file.
      check: returns whether a content fits the data set; `verify` calls it.
      resharded: whether `reshard` copies the file.
      cleared: when `--overwrite`, and `publish` for an old version, delete the file: "first", since
        this file marks the data set as complete; "next"; "last", since it lists the other files to
        delete; "never", since `publish` deletes it itself.
      rewritten: whether the file is deleted before a resumed build writes a shard again.
    """

    path: str
    make: Callable[[DatasetFacts], bytes] | None = None
    check: Callable[[DatasetFacts, bytes], bool] | None = None
    resharded: bool = False
    cleared: Cleared = "next"
    rewritten: bool = False

    def fits(self, facts: DatasetFacts, content: bytes) -> bool:
        """Whether a content is the one that build.json implies.

        Raises:
          ValueError: the content cannot be parsed.
        """
        if self.check:
            return self.check(facts, content)
        if not self.make:
            return True
        expected = self.make(facts)
        if self.path.endswith(".json"):
            return bool(json.loads(content) == json.loads(expected))
        return bool(content == expected)


def _features(facts: DatasetFacts) -> bytes:
    objects = len(facts.build.get("object_classes", ()))
    return to_json(features_json(facts.schema, len(facts.build["classes"]), objects))


def _class_names(facts: DatasetFacts) -> bytes:
    return "".join(f"{name}\n" for name in facts.build["classes"]).encode()


def _object_names(facts: DatasetFacts) -> bytes:
    return "".join(f"{name}\n" for name in facts.build["object_classes"]).encode()


def _label_map(facts: DatasetFacts) -> bytes:
    names = facts.build["object_classes"]
    return "".join(
        f"item {{\n  id: {number}\n  name: {json.dumps(name, ensure_ascii=False)}\n}}\n"
        for number, name in enumerate(names)
        if number
    ).encode()


def _croissant(facts: DatasetFacts) -> bytes:
    return to_json(croissant_json(facts.build, facts.schema))


def _card(facts: DatasetFacts) -> bytes:
    return card(facts.build, facts.schema)


def _has_all_rejects(facts: DatasetFacts, content: bytes) -> bool:
    rejects = [json.loads(line) for line in content.splitlines()]
    return bool(len(rejects) == facts.build["counts"]["rejects"])


METADATA_FILES: dict[str, MetadataFile] = {
    # Marks the data set as complete; by `finish`, after all other files.
    "dataset_info": MetadataFile("dataset_info.json", cleared="first", rewritten=True),
    # With dataset_info.json, the input of `tfds.builder_from_directory`.
    "features": MetadataFile("features.json", make=_features),
    # Class names in label order, under the name that TensorFlow Datasets expects.
    "labels": MetadataFile("{label}.labels.txt", make=_class_names),
    # The same of the classes of annotated objects, also as the TF Object Detection API reads them.
    "object_labels": MetadataFile(
        f"{{objects}}{LABEL.replace('/', '.')}.labels.txt", make=_object_names
    ),
    "label_map": MetadataFile("{objects}label_map.pbtxt", make=_label_map),
    # A line for each image that an annotation file names, and that is not among the inputs: the
    # first thousand of them by name; by `finish`.
    "unmatched": MetadataFile("{objects}metadata/unmatched_annotations.jsonl", resharded=True),
    # A description for catalogues, in the format Croissant 1.1.
    "croissant": MetadataFile("croissant.json", make=_croissant),
    # A description for people.
    "card": MetadataFile("DATASET_CARD.md", make=_card),
    # Options, versions, counts, and a row for each shard; by `finish`.
    "build": MetadataFile("metadata/build.json"),
    # The options of the build, as a file for `imageshards build --config`; by `finish`, and with
    # another number of shards by `reshard`.
    "build_yaml": MetadataFile("metadata/build.yaml"),
    # Sizes, appearance and outliers of each split's images; by `finish`.
    "statistics": MetadataFile("metadata/statistics.json", resharded=True),
    # An HTML page with samples and statistics; by `finish`.
    "report": MetadataFile("metadata/report.html"),
    # A line for each image that is not in the data set; by `finish`, from its parts.
    "rejects": MetadataFile("metadata/rejects.jsonl", check=_has_all_rejects, resharded=True),
    # A line for each image that is in more than one split; by `finish`.
    "leaks": MetadataFile("metadata/leaks.jsonl", resharded=True),
    # Offsets and sizes of a shard's records; by the writer of the shard.
    "index": MetadataFile("metadata/index/{index}"),
    # A shard's report and fingerprint; by its writer, after the shard.
    "shard_state": MetadataFile("metadata/shards/{shard}.json", rewritten=True),
    # Eight bytes per record that identify the image, to find leaks; by the writer of the shard.
    "digests": MetadataFile("metadata/shards/{shard}.digests"),
    # The rejects of a shard or, with --writer=beam, of a split; by its writer. The joined ones of
    # many shards are temporary: `finish` deletes them after it has written dataset_info.json.
    "rejects_part": MetadataFile("metadata/shards/{part}.rejects.jsonl"),
    # Identifies the build that the folder belongs to; by `claim`, before the first shard.
    "plan": MetadataFile("metadata/shards/plan.json", cleared="last"),
    # Why a job failed, for the runner's retries and the next build; by the step that failed.
    # `claim` deletes it.
    "failure": MetadataFile("metadata/shards/failure.json"),
    # Identifies the data set that `reshard` read; replaces the plan.
    "reshard": MetadataFile("metadata/shards/reshard.json", cleared="last"),
    # Marks a published version, with the fingerprint of its inputs; by `publish`.
    "published": MetadataFile("metadata/published.json", cleared="never"),
}
"""Name -> file. Shards themselves are `Layout.shard`."""


def rejects_part_of(shard: ShardId) -> str:
    """Returns the name of the part of rejects.jsonl that the writer of a shard writes."""
    return f"{shard.split}-{shard.index:05d}"


def joined_part(split: str, number: int) -> str:
    """Returns the name of a file with the rejects of many shards, which is deleted at the end."""
    return f"{split}-{number:05d}{_JOINED}"


def is_joined(name: str) -> bool:
    """Whether a file name in the folder of the state is that of a joined part."""
    return name.endswith(f"{_JOINED}.rejects.jsonl")


def _reject_parts(shard: ShardId) -> tuple[str, ...]:
    """Returns the names of the parts of rejects.jsonl that may hold rejects of a shard."""
    joined = joined_part(shard.split, shard.index // SHARDS_PER_MERGE)
    return shard.split, rejects_part_of(shard), joined


@dataclass(frozen=True)
class Layout:
    """The paths of the data set in a folder.

    Attributes:
      root: the folder, local or remote; the constructor makes its one spelling.

    >>> Layout("gs://bucket/birds/").root
    'gs://bucket/birds'
    """

    root: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", storage.folder_uri(self.root))

    def uri(self, name: str, **fields: str) -> str:
        """Returns the path of a file in `METADATA_FILES`.

        Args:
          name: its name in the table.
          fields: values for the braces in its path.

        >>> Layout("/data/birds").uri("build")
        '/data/birds/metadata/build.json'
        """
        path = METADATA_FILES[name].path.format(**{"objects": "", **fields})
        return storage.join(self.root, path)

    def uris(
        self,
        name: str,
        shards: Iterable[ShardId] = (),
        label_keys: Iterable[str] = (),
        with_objects: bool = True,
    ) -> list[str]:
        """Returns every path of a file in `METADATA_FILES`.

        Args:
          name: its name in the table.
          shards: the shards whose files are returned, for files of shards.
          label_keys: keys of the label feature, for files with `{label}`.
          with_objects: whether the data set may have the files with `{objects}`.
        """
        path = METADATA_FILES[name].path
        fields: list[dict[str, str]] = [{}]
        if "{shard}" in path or "{index}" in path:
            fields = [{"shard": shard_name(shard), "index": index_name(shard)} for shard in shards]
        elif "{part}" in path:
            parts = {part for shard in shards for part in _reject_parts(shard)}
            fields = [{"part": part} for part in sorted(parts)]
        elif "{label}" in path:
            fields = [{"label": key.replace("/", ".")} for key in label_keys]
        elif "{objects}" in path and not with_objects:
            fields = []
        return [self.uri(name, **values) for values in fields]

    def uris_cleared(self, when: Cleared, shards: Sequence[ShardId] = ()) -> list[str]:
        """Returns the paths that `--overwrite` deletes at one of its steps, existing or not."""
        keys = [key for schema in SCHEMAS.values() if (key := schema.class_key)]
        return [
            uri
            for name, file in METADATA_FILES.items()
            if file.cleared == when
            for uri in self.uris(name, shards, keys)
        ]

    @property
    def dataset_info(self) -> str:
        """dataset_info.json."""
        return self.uri("dataset_info")

    @property
    def build(self) -> str:
        """build.json."""
        return self.uri("build")

    @property
    def report(self) -> str:
        """report.html."""
        return self.uri("report")

    @property
    def rejects(self) -> str:
        """rejects.jsonl."""
        return self.uri("rejects")

    @property
    def leaks(self) -> str:
        """leaks.jsonl."""
        return self.uri("leaks")

    @property
    def plan(self) -> str:
        """plan.json."""
        return self.uri("plan")

    @property
    def metadata(self) -> str:
        """The folder of the files that are neither shards nor for TensorFlow Datasets."""
        return storage.join(self.root, "metadata")

    @property
    def index_folder(self) -> str:
        """The folder of the index files."""
        return storage.join(self.metadata, "index")

    @property
    def state(self) -> str:
        """The folder of the state of a build, and of unfinished local files."""
        return storage.join(self.metadata, "shards")

    def shard(self, shard: ShardId) -> str:
        """A shard."""
        return storage.join(self.root, shard_name(shard))

    def index(self, shard: ShardId) -> str:
        """The index of a shard; empty if its container has none."""
        return self.uris("index", [shard])[0] if container_of(shard).has_index else ""

    def shard_state(self, shard: ShardId) -> str:
        """The state of a finished shard."""
        return self.uris("shard_state", [shard])[0]

    def digests(self, shard: ShardId) -> str:
        """The digests of a shard's records."""
        return self.uris("digests", [shard])[0]

    def rejects_part(self, part: str) -> str:
        """A part of rejects.jsonl."""
        return self.uri("rejects_part", part=part)

    def files_of(self, facts: DatasetFacts) -> list[tuple[MetadataFile, str]]:
        """Returns (file, path) of each metadata file that belongs to the whole data set."""
        key = facts.schema.class_key
        with_objects = "object_classes" in facts.build
        return [
            (file, uri)
            for name, file in METADATA_FILES.items()
            for uri in self.uris(name, label_keys=[key] if key else [], with_objects=with_objects)
        ]

    def write_derived(self, facts: DatasetFacts) -> None:
        """Writes the files that are computed from build.json and the schema."""
        for file, uri in self.files_of(facts):
            if file.make:
                self.write(uri, file.make(facts))

    def begin_rewrite(self, shard: ShardId) -> None:
        """Deletes the files that are outdated as soon as a shard is written again.

        Every worker that writes a shard needs to know that dataset_info.json does not exist, but
        Cloud Storage changes an object of one name once a second: the first worker deletes it.
        """
        rewritten = [name for name, file in METADATA_FILES.items() if file.rewritten]
        uris = [uri for name in rewritten for uri in self.uris(name, [shard])]
        storage.delete([uri for uri in uris if storage.exists(uri)])

    def read(self, name: str) -> bytes:
        """Returns the content of a file in `METADATA_FILES`; empty if it does not exist."""
        try:
            with storage.open_read(self.uri(name)) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return b""

    def make_folders(self) -> None:
        """Creates the folders, where the store has folders."""
        for folder in (self.root, self.metadata, self.index_folder, self.state):
            storage.make_folder(folder)

    def write_pieces(self, uri: str, pieces: Iterable[bytes]) -> None:
        """Writes a file of this data set piece by piece, completely or not at all."""
        with storage.open_sink(uri, self.state) as sink:
            for piece in pieces:
                sink.write([piece])

    def write(self, uri: str, content: bytes) -> None:
        """Writes a small file of this data set, completely or not at all."""
        with storage.open_sink(uri, self.state) as sink:
            sink.write([content])
