"""Copies record files that imageshards did not write into another format, file by file.

Records keep their order and their bytes, and are not decoded. Each file is a part, whose worker
reads it in order, so that compressed files can be converted, too. A state file for each new shard
lets a later run skip it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, BinaryIO, NamedTuple, cast

from imageshards.pipeline.job.failures import job_error
from imageshards.pipeline.metadata import filepath_template
from imageshards.pipeline.operations.operation import Operation, Run, run_here
from imageshards.reader.files import find
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, ShardId
from imageshards.transforms.records.container import CorruptRecord
from imageshards.transforms.records.containers import (
    CONTAINERS,
    container_of,
    container_of_file,
)
from imageshards.transforms.shards.layout import Layout, read_json, to_json
from imageshards.transforms.shards.write import repeated_if_lost

_NAME = re.compile(r"(?P<split>.+?)(\.[a-z_]+)?-\d{5,}-of-\d{5,}(\..*)?")
_TFDS_FILES = re.compile(r"features\.json|.+\.labels\.txt|metadata\.json")


class Converted(NamedTuple):
    """The result of `convert`.

    Attributes:
      records: in all files.
      bytes: of all new shards.
      shards: split -> number of its shards.
      seconds: wall time.
    """

    records: int
    bytes: int
    shards: dict[str, int]
    seconds: float


def convert(pattern: str, output: Layout, file_format: str, run: Run = run_here) -> Converted:
    """Copies record files into another format.

    Args:
      pattern: a record file, or a glob pattern of record files.
      output: where to write `SPLIT-00000-of-00016` and so on, as many shards as there are files.
        The split is that in a file's name, or `train`.
      file_format: the record container of the new shards.
      run: where to do it.

    Raises:
      BuildError: no file matches, or the output holds something else.
      JobError: a file is damaged, or the runner's job failed.
    """
    begin = perf_counter()
    conversion = Conversion(pattern, output, file_format)
    mine = conversion.mark()
    if problem := storage.folder_problem(output.root):
        raise BuildError(f"{output.root}: {problem}")
    if not read_json(output.uri("reshard")) and (found := storage.names_in(output.root)):
        raise BuildError(
            f"{output.root} is not empty ({found[0]}): name another folder, or empty this one"
        )
    output.make_folders()
    content = (json.dumps(mine) + "\n").encode()
    created = storage.create(output.uri("reshard"), content, output.state)
    if not created and read_json(output.uri("reshard")) != mine:
        raise BuildError(
            f"{output.root} holds a data set of other files: name another folder, or empty this one"
        )
    try:
        outcome = run(conversion)
    except BuildError as error:
        raise job_error(error) from error
    shards = Counter(part.shard.split for part in conversion.parts())
    seconds = perf_counter() - begin
    return Converted(outcome["records"], outcome["bytes"], dict(shards), seconds)


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

    Attributes:
      pattern: the files.
      layout: paths of the new shards.
      file_format: their record container.
    """

    pattern: str
    layout: Layout
    file_format: str

    def parts(self) -> Iterator[File]:
        """Yields the files, in the order of their names."""
        uris = self._uris()
        info = self._info()
        splits = [_split_of(uri, info) for uri in uris]
        totals, seen = Counter(splits), Counter[str]()
        for number, (uri, split) in enumerate(zip(uris, splits, strict=True)):
            shard = ShardId(split, seen[split], totals[split], "", self.file_format)
            seen[split] += 1
            yield File(number, uri, shard)

    def mark(self) -> dict[str, Any]:
        """Returns the content of reshard.json, which identifies the conversion."""
        uris = self._uris()
        sizes = [size for size, _ in storage.stats(uris)]
        files = [[uri, size] for uri, size in zip(uris, sizes, strict=True)]
        return {"from": self.pattern, "files": files, "file_format": self.file_format}

    def process(self, part: File) -> Rows:
        """Copies a file, unless an earlier run has done it."""
        state = read_json(self.layout.shard_state(part.shard)) or {}
        if not state or storage.size(self.layout.shard(part.shard)) != state["bytes"]:
            state = repeated_if_lost(lambda: self._write(part))
            self.layout.write(self.layout.shard_state(part.shard), to_json(state))
        return Rows({part.number: (state["records"], state["bytes"])})

    def empty(self) -> Rows:
        """Returns no shard."""
        return Rows()

    def finish(self, result: Rows) -> dict[str, Any]:
        """Writes dataset_info.json if the files have one."""
        rows = result.of_file
        storage.sweep(self.layout.state)
        if info := self._info():
            self._copy_info(info, [(part.shard, *rows[part.number]) for part in self.parts()])
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
            except CorruptRecord as error:
                hint = f"{records:,} records before it" if records else "is it a record file?"
                raise BuildError(f"{part.uri}: {error}: {hint}") from error
            index = writer.close()
        if index is not None:
            self.layout.write(self.layout.index(part.shard), index)
        return {"records": records, "bytes": sink.size, "crc32c": sink.crc32c}

    def _uris(self) -> list[str]:
        return sorted(file.uri for file in find(self.pattern).files)

    @property
    def _folder(self) -> str:
        return storage.normalize(self.pattern).rpartition("/")[0]

    def _info(self) -> dict[str, Any]:
        """Returns the dataset_info.json of TensorFlow Datasets next to the files, if any."""
        found = read_json(storage.join(self._folder, "dataset_info.json")) or {}
        return found if found.get("splits") else {}

    def _copy_info(self, info: dict[str, Any], rows: list[tuple[ShardId, int, int]]) -> None:
        container = CONTAINERS[self.file_format]
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
        for name in storage.names_in(self._folder):
            if _TFDS_FILES.fullmatch(name):
                with storage.open_read(storage.join(self._folder, name)) as file:
                    self.layout.write(storage.join(self.layout.root, name), file.read())
        new = info | {"fileFormat": container.tfds_format, "splits": splits}
        self.layout.write(self.layout.dataset_info, to_json(new))


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
