"""The bytes of an image, wherever it is: a file, an object, a URL, a range of an archive."""

from __future__ import annotations

from dataclasses import dataclass, field

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

    def read(self, ref: ImageRef) -> bytes:
        """The bytes of one image.

        Raises:
          ReadError: they cannot be had, and trying again would not help.
        """
        if ref.range:
            return ranges.read(ref.range, ref.stamp, self.image_key)
        if storage.is_web(ref.uri):
            return web.read(ref.uri, self.manners)
        return storage.read(ref.uri)
