"""Reads the bytes of an image from a file, an object, a URL, or a byte range of a file."""

from __future__ import annotations

from dataclasses import dataclass, field

from imageshards.transforms import storage
from imageshards.transforms.elements import ImageRef
from imageshards.transforms.inputs.kind import IMAGE_KEY, InputKind, Read
from imageshards.transforms.inputs.sources import kind_of_codec
from imageshards.transforms.storage.web import WebOptions


@dataclass(frozen=True)
class ImageReader:
    """Reads images.

    Attributes:
      image_key: key of the feature of a tf.train.Example that is the image.
      web: limits of requests to web servers.

    >>> ImageReader().read(ImageRef("photos/class00/0000.jpg"))[6:10]
    b'JFIF'
    """

    image_key: str = IMAGE_KEY
    web: WebOptions = field(default_factory=WebOptions)

    def read(self, ref: ImageRef, limit: int = storage.MAX_BYTES) -> bytes:
        """The bytes of one image; see `read_all`."""
        return self.read_all(ref, limit).image

    def read_all(self, ref: ImageRef, limit: int = storage.MAX_BYTES) -> Read:
        """The bytes of one image, and values that are stored with them.

        Args:
          ref: the image.
          limit: largest size of an image, in bytes.

        Raises:
          ReadError: they cannot be read, and a retry would not help.
        """
        kind = kind_of_codec(ref.range.codec) if ref.range else InputKind
        return kind.read(ref, limit, self)
