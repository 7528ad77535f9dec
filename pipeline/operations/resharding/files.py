"""Copies record files that imageshards did not write into another format, file by file.

Records keep their order and their bytes, and are not decoded. Each file is a part, whose worker
reads it in order, so that compressed files can be copied, too. A state file for each new shard
lets a later run skip it, unless the file has changed since.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple, cast

from imageshards.pipeline.metadata import filepath_template
from imageshards.pipeline.operations.operation import Operation
from imageshards.pipeline.operations.resharding.claim import claimed, complete
from imageshards.pipeline.operations.resharding.target import Format
from imageshards.reader.files import find
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, ShardId, UsageError
from imageshards.transforms.records.container import CorruptRecord
from imageshards.transforms.records.containers import container_of, container_of_file
from imageshards.transforms.shards.layout import Layout, read_json, to_json
from imageshards.transforms.shards.write import repeated_if_lost

_NAME = re.compile(r"(?P<split>.+?)(\.[a-z_]+)?-\d{5,}-of-\d{5,}(\..*)?")
_TFDS_FILES = re.compile(r"features\.json|.+\.labels\.txt|metadata\.json")


class FilesToCopy(NamedTuple):
    """Record files, and the shards that `reshard` writes for them.

    Attributes:
      pattern: the pattern that they match.
      uris: the files, in the order of their names.
      splits: the split of each: that in its name, or `train`.
      format: of the new shards.
    """

    pattern: str
    uris: list[str]
    splits: list[str]
    format: Format

    @property
    def shards(self) -> list[ShardId]:
        """The new shard of each file."""
        totals, seen = Counter(self.splits), Counter[str]()
        shards = []
        for split in self.splits:
            shards.append(self.format.shard(split, seen[split], totals[split]))
            seen[split] += 1
        return shards

    @property
    def claim(self) -> dict[str, Any]:
        """What identifies the copy; with it, workers and later runs copy the same files."""
        return {
            "from": self.pattern,
            "files": self.uris,
            "num_shards": dict(Counter(self.splits)),
            **self.format.claimed,
        }


def files_to_copy(pattern: str, new_format: Format, output: Layout) -> FilesToCopy:
    """Finds the files that match a pattern.

    Args:
      pattern: a record file, or a glob pattern of record files.
      new_format: of the new shards.
      output: paths of the new folder.

    Raises:
      BuildError: no file matches.
      UsageError: a file is in the output folder.
    """
    pattern = storage.normalize(pattern)
    uris = sorted(file.uri for file in find(pattern).files)
    inside = storage.join(output.root, "")
    if claimed(output).get("files") != uris:  # those of the same command were outside of it
        for uri in uris:
            if uri.startswith(inside):
                raise UsageError(
                    f"{uri}: the output folder {output.root} contains files to copy: name another "
                    "output folder"
                )
    info = _info_in(_folder_of(pattern))
    return FilesToCopy(pattern, uris, [_split_of(uri, info) for uri in uris], new_format)


class File(NamedTuple):
    """A file to copy.

    Attributes:
      number: its position in the order of the names.
      uri: the file.
      shard: the new shard.
    """

    number: int
    uri: str
    shard: ShardId


@dataclass
class Rows:
    """Written shards: number of the file -> records, bytes."""

    of_file: dict[int, tuple[int, int]] = field(default_factory=dict)

    def merge(self, other: Rows) -> None:
        """Adds other shards."""
        self.of_file |= other.of_file


@dataclass(frozen=True)
class Conversion(Operation[File, Rows]):
    """Copies each file, and then what TensorFlow Datasets needs, if it is next to the files.

    The files are those of the claim, also if others match the pattern since.

    Attributes:
      layout: paths of the new shards.
      format: how they store records.
      is_complete: whether an earlier run has copied all files. Missing shards are written again,
        but only from the files that were copied then.
    """

    layout: Layout
    format: Format
    is_complete: bool = False

    def parts(self) -> Iterator[File]:
        """Yields the files, in the order of their names."""
        files = self._files()
        for number, (uri, shard) in enumerate(zip(files.uris, files.shards, strict=True)):
            yield File(number, uri, shard)

    def process(self, part: File) -> Rows:
        """Copies a file, unless an earlier run has done it."""
        state = read_json(self.layout.shard_state(part.shard)) or {}
        now = list(storage.stat(part.uri))
        is_same = state.get("source") == now
        if state and self.is_complete and not is_same:
            raise BuildError(
                f"{part.uri}: missing, or changed since it was copied to {self.layout.root}: name "
                "another output folder to copy it again"
            )
        written = state and storage.size(self.layout.shard(part.shard)) == state["bytes"]
        if not (written and is_same):
            state = repeated_if_lost(lambda: self._write(part))
            if list(storage.stat(part.uri)) != now:
                raise BuildError(
                    f"{part.uri}: changed while it was copied: run the same command again"
                )
            self.layout.write(self.layout.shard_state(part.shard), to_json(state | {"source": now}))
        return Rows({part.number: (state["records"], state["bytes"])})

    def empty(self) -> Rows:
        """Returns no shard."""
        return Rows()

    def finish(self, result: Rows) -> dict[str, Any]:
        """Writes dataset_info.json if the files have one."""
        rows = result.of_file
        files = self._files()
        storage.sweep(self.layout.state)
        folder = _folder_of(files.pattern)
        if info := _info_in(folder):
            written = [(shard, *rows[number]) for number, shard in enumerate(files.shards)]
            self._copy_info(folder, info, written)
        complete(self.layout, files.claim)
        return {
            "records": sum(records for records, _ in rows.values()),
            "bytes": sum(size for _, size in rows.values()),
        }

    def _write(self, part: File) -> dict[str, Any]:
        records = 0
        with storage.open_sink(self.layout.shard(part.shard), self.layout.state) as sink:
            writer = container_of(part.shard).writer(sink)
            try:
                with storage.open_read(part.uri) as file:
                    for record in container_of_file(part.uri).read(cast(BinaryIO, file)):
                        writer.write([record.data])
                        records += 1
            except FileNotFoundError as error:
                raise BuildError(f"{part.uri}: no such file") from error
            except CorruptRecord as error:
                hint = f"{records:,} records before it" if records else "is it a record file?"
                raise BuildError(f"{part.uri}: {error}: {hint}") from error
            index = writer.close()
        if index is not None:
            self.layout.write(self.layout.index(part.shard), index)
        return {"records": records, "bytes": sink.size, "crc32c": sink.crc32c}

    def _files(self) -> FilesToCopy:
        found = claimed(self.layout)
        if "files" not in found:
            raise BuildError(f"{self.layout.root}: another reshard has claimed this folder")
        pattern, uris = found["from"], found["files"]
        info = _info_in(_folder_of(pattern))
        return FilesToCopy(pattern, uris, [_split_of(uri, info) for uri in uris], self.format)

    def _copy_info(
        self, folder: str, info: dict[str, Any], rows: list[tuple[ShardId, int, int]]
    ) -> None:
        container = self.format.container
        splits = []
        for split in info["splits"]:
            mine = [row for row in rows if row[0].split == split["name"]]
            if mine:
                split |= {
                    "numBytes": str(sum(size for _, _, size in mine)),
                    "shardLengths": [str(records) for _, records, _ in mine],
                    "filepathTemplate": filepath_template(container),
                }
                splits.append(split)
        for name in storage.names_in(folder):
            if _TFDS_FILES.fullmatch(name):
                with storage.open_read(storage.join(folder, name)) as file:
                    self.layout.write(storage.join(self.layout.root, name), file.read())
        new = info | {"fileFormat": container.tfds_format, "splits": splits}
        self.layout.write(self.layout.dataset_info, to_json(new))


def _folder_of(pattern: str) -> str:
    return pattern.rpartition("/")[0]


def _info_in(folder: str) -> dict[str, Any]:
    """Returns the dataset_info.json of TensorFlow Datasets in a folder, if any."""
    found = read_json(storage.join(folder, "dataset_info.json")) or {}
    return found if found.get("splits") else {}


def _split_of(uri: str, info: Mapping[str, Any]) -> str:
    """Returns the split that a file's name has.

    >>> _split_of("old/train-00003-of-00016.tfrecord", {})
    'train'
    >>> _split_of("mnist-test.tfrecord-00000-of-00001", {"name": "mnist"})
    'test'
    """
    name = uri.rpartition("/")[2]
    match = _NAME.fullmatch(name)
    if not match:
        return "train"
    return match["split"].removeprefix(f"{info['name']}-") if info else match["split"]
