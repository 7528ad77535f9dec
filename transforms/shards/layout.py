"""Where everything lies in a data set's folder. Pure but for the writing of small files."""

from __future__ import annotations

from dataclasses import dataclass

from imageshards.transforms import storage
from imageshards.transforms.elements import ShardId
from imageshards.transforms.records.tfrecord import index_name, shard_name

REJECTS_SUFFIX = ".rejects.jsonl"
DIGESTS_SUFFIX = ".digests"


@dataclass(frozen=True)
class Layout:
    """The files of the data set in a folder, local or remote.

    Attributes:
      root: the folder, as `storage.normalize` gives it.
    """

    root: str

    @property
    def dataset_info(self) -> str:
        """Written last: its presence means that the data set is complete."""
        return storage.join(self.root, "dataset_info.json")

    @property
    def features(self) -> str:
        """With dataset_info, what `tfds.builder_from_directory` reads."""
        return storage.join(self.root, "features.json")

    def labels(self, key: str) -> str:
        """Class names of the feature `key`, in label order, as tensorflow_datasets names it."""
        return storage.join(self.root, key.replace("/", ".") + ".labels.txt")

    @property
    def metadata(self) -> str:
        """The folder of all that is neither a shard nor for tensorflow_datasets."""
        return storage.join(self.root, "metadata")

    @property
    def build(self) -> str:
        """Options, versions, counts, a row per shard."""
        return storage.join(self.metadata, "build.json")

    @property
    def report(self) -> str:
        """The page to look at."""
        return storage.join(self.metadata, "report.html")

    @property
    def rejects(self) -> str:
        """A line for every image that is not in the data set."""
        return storage.join(self.metadata, "rejects.jsonl")

    @property
    def index_folder(self) -> str:
        """The folder of the index files."""
        return storage.join(self.metadata, "index")

    @property
    def state(self) -> str:
        """The folder of what a resumed run needs, where also local files grow."""
        return storage.join(self.metadata, "shards")

    @property
    def plan(self) -> str:
        """Which build the folder belongs to."""
        return storage.join(self.state, "plan.json")

    @property
    def reshard(self) -> str:
        """Of which data set `reshard` filled the folder, in place of a plan."""
        return storage.join(self.state, "reshard.json")

    def shard(self, shard: ShardId) -> str:
        """A TFRecord file."""
        return storage.join(self.root, shard_name(shard))

    def index(self, shard: ShardId) -> str:
        """The index of a TFRecord file."""
        return storage.join(self.index_folder, index_name(shard))

    def shard_state(self, shard: ShardId) -> str:
        """Written after a shard: its report, and of which references it was made."""
        return storage.join(self.state, shard_name(shard) + ".json")

    def digests(self, shard: ShardId) -> str:
        """Eight bytes a record, by which images in more than one split are found."""
        return storage.join(self.state, shard_name(shard) + DIGESTS_SUFFIX)

    @property
    def leaks(self) -> str:
        """A line for every image that is in more than one split."""
        return storage.join(self.metadata, "leaks.jsonl")

    def rejects_part(self, part: str) -> str:
        """A part of rejects.jsonl."""
        return storage.join(self.state, part + REJECTS_SUFFIX)

    def make_folders(self) -> None:
        """Makes the folders, where the filesystem has folders."""
        for folder in (self.root, self.metadata, self.index_folder, self.state):
            storage.make_folder(folder)

    def write(self, uri: str, data: bytes) -> None:
        """Writes a small file of this data set, whole or not at all."""
        with storage.open_sink(uri, self.state) as sink:
            sink.write([data])
