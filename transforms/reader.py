"""The bytes of an image, wherever it is: a file, an object, a URL, a range of an archive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from imageshards.transforms import ranges, storage, web
from imageshards.transforms.elements import ImageRef

IMAGE_KEY = "image/encoded"


@dataclass(frozen=True)
class ImageReader:
    """Reads images.

    Attributes:
      image_key: the feature of a tf.train.Example that is the image.
      manners: towards web servers.
    """

    image_key: str = IMAGE_KEY
    manners: web.Manners = field(default_factory=web.Manners)

    def read(self, ref: ImageRef, limit: int = storage.MAX_BYTES) -> bytes:
        """The bytes of one image, of which no more than `limit` are read.

        Raises:
          ReadError: they cannot be had, and trying again would not help.
        """
        return self.read_with_features(ref, limit)[0]

    def read_with_features(
        self, ref: ImageRef, limit: int = storage.MAX_BYTES
    ) -> tuple[bytes, dict[str, list[Any]] | None]:
        """The same, and of a record of a TFRecord file key -> values of all its features.

        Raises:
          ReadError: they cannot be had, and trying again would not help.
        """
        if ref.range and ref.range.codec == "example":
            return ranges.read_record(ref.range, ref.stamp, self.image_key)
        if ref.range:
            return ranges.read(ref.range, ref.stamp, limit), None
        if storage.is_web(ref.uri):
            return web.read(ref.uri, self.manners, limit), None
        return storage.read(ref.uri, limit), None
