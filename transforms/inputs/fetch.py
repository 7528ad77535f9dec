"""The bytes of an image, wherever it is: a file, an object, a URL, a range of an archive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from imageshards.transforms import storage
from imageshards.transforms.elements import ImageRef
from imageshards.transforms.inputs import ranges
from imageshards.transforms.storage.web import WebOptions

IMAGE_KEY = "image/encoded"


class Read(NamedTuple):
    """What was read.

    Attributes:
      image: its bytes.
      features: of a record of a TFRecord file: key -> values of all its features.
      stamp: of the file that is the image, as it was read, or 0.
    """

    image: bytes
    features: dict[str, list[Any]] | None = None
    stamp: int = 0


@dataclass(frozen=True)
class ImageReader:
    """Reads images.

    Attributes:
      image_key: the feature of a tf.train.Example that is the image.
      web: limits of requests to web servers.
    """

    image_key: str = IMAGE_KEY
    web: WebOptions = field(default_factory=WebOptions)

    def read(self, ref: ImageRef, limit: int = storage.MAX_BYTES) -> bytes:
        """The bytes of one image, of which no more than `limit` are read.

        Raises:
          ReadError: they cannot be had, and trying again would not help.
        """
        return self.read_all(ref, limit).image

    def read_all(self, ref: ImageRef, limit: int = storage.MAX_BYTES) -> Read:
        """The same, with what is told beside it.

        Raises:
          ReadError: they cannot be had, and trying again would not help.
        """
        if ref.range and ref.range.codec == "example":
            return Read(*ranges.read_record(ref.range, ref.stamp, self.image_key))
        if ref.range:
            return Read(ranges.read(ref.range, ref.stamp, limit))
        image, stamp = storage.read(ref.uri, limit, ref.stamp, self.web)
        return Read(image, stamp=stamp)
