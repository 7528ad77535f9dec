"""The profile of a set of images: their sizes, what they look like, and which ones stand out.

A profile has a bounded size, whatever the number of images, and is a sum: profiles of shards are
added in any order, with the same result.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from PIL import Image

from imageshards.transforms.elements import ShardId
from imageshards.transforms.images.measure import (
    LEVEL,
    NEARLY_UNIFORM,
    Appearance,
    Moments,
    decode_file,
    full_moments,
    image_of_pixels,
    measure_image,
)
from imageshards.transforms.images.validate import ImageInfo
from imageshards.transforms.records.schemas import Schema

SIDE_BOUNDS = tuple(side for power in range(3, 17) for side in (1 << power, (3 << power) // 2))
"""Upper bounds of the classes of widths and heights, in pixels: 8, 12, 16, 24, ... 98,304."""
SIDE_CLASSES = len(SIDE_BOUNDS) + 1
ASPECT_BOUNDS = (0.3, 0.42, 0.53, 0.62, 0.71, 0.9, 0.98, 1.02, 1.1, 1.42, 1.6, 1.9, 2.4, 3.3)
"""Bounds between the classes of width / height; 3:4 and 2:3, for example, are in different ones."""
LUMA_CLASSES = 32
SHARPNESS_CLASSES = 32
SHOWN = 8
"""Images that a profile names of each kind that stands out."""

_OF_APPEARANCE = ("brightness", "contrast", "sharpness")
_SAMPLE = "sample_"
_HISTOGRAMS = ("sizes", "aspects", "bytes", *_OF_APPEARANCE,
               *(_SAMPLE + name for name in _OF_APPEARANCE))  # fmt: skip
_MOMENTS = ("reduced", "sample_reduced", "sample_full")
_OUTLIERS = ("uniform", "dark", "bright", "blurred")

Outlier = tuple[int, int, int]
"""(measured value, number of the shard in its split, number of the record in the shard)."""


_FIRST, _EACH, _EACH_UNDECODED = 20, 128, 512


def is_sampled(position: int, num_shards: int, check_decodes: bool) -> bool:
    """Returns whether an image is decoded to its full size for the profile.

    The order of a shard's images is random, and fixed by the seed: so is this sample. Of each split
    it has at least 20 images, and one of 128; one of 512 if others are not decoded at all.

    Args:
      position: number of the image's reference in its shard.
      num_shards: number of shards of the split.
      check_decodes: whether the check decodes every image.
    """
    each = _EACH if check_decodes else _EACH_UNDECODED
    return position < -(-_FIRST // num_shards) or position % each == 0


class Profile:
    """The profile of a set of images."""

    def __init__(self) -> None:
        self._measured = self._sampled = 0
        self._nearly_uniform = self._sample_nearly_uniform = 0
        self._counts: dict[str, Counter[int]] = {name: Counter() for name in _HISTOGRAMS}
        self._moments = dict.fromkeys(_MOMENTS, Moments())
        self._outliers: dict[str, list[Outlier]] = {name: [] for name in _OUTLIERS}

    def add(self, info: ImageInfo, size: int) -> None:
        """Adds the facts of an image that need no decoding.

        Args:
          info: its format and size.
          size: bytes of the image.
        """
        counts = self._counts
        across = bisect_left(SIDE_BOUNDS, info.width)
        counts["sizes"][across * SIDE_CLASSES + bisect_left(SIDE_BOUNDS, info.height)] += 1
        # Division of floats is exact to the last bit on every machine.
        counts["aspects"][bisect_right(ASPECT_BOUNDS, info.width / max(info.height, 1))] += 1
        counts["bytes"][size.bit_length()] += 1

    def add_appearance(self, seen: Appearance, shard: int, row: int) -> None:
        """Adds what an image looks like.

        Args:
          seen: the measured values.
          shard: number of the shard in its split.
          row: number of the record in the shard.
        """
        self._measured += 1
        self._nearly_uniform += seen.contrast < NEARLY_UNIFORM * LEVEL
        self._plus("reduced", seen.moments, seen.reduction**2)
        self._count_appearance(seen, "")
        place = (shard, row)
        self._stands_out("uniform", (seen.contrast, *place))
        self._stands_out("dark", (seen.brightness, *place))
        self._stands_out("bright", (-seen.brightness, *place))
        self._stands_out("blurred", (seen.sharpness, *place))

    def add_sample(self, seen: Appearance, full: Moments) -> None:
        """Adds an image of the sample that is decoded to its full size."""
        self._sampled += 1
        self._sample_nearly_uniform += seen.contrast < NEARLY_UNIFORM * LEVEL
        self._plus("sample_reduced", seen.moments, seen.reduction**2)
        self._plus("sample_full", full)
        self._count_appearance(seen, _SAMPLE)

    def _count_appearance(self, seen: Appearance, prefix: str) -> None:
        counts = self._counts
        counts[f"{prefix}brightness"][seen.brightness * LUMA_CLASSES // (256 * LEVEL)] += 1
        counts[f"{prefix}contrast"][seen.contrast * LUMA_CLASSES // (128 * LEVEL)] += 1
        sharpness = seen.sharpness * SHARPNESS_CLASSES // (64 * LEVEL)
        counts[f"{prefix}sharpness"][min(sharpness, SHARPNESS_CLASSES - 1)] += 1

    def _plus(self, name: str, moments: Moments, weight: int = 1) -> None:
        self._moments[name] = self._moments[name].plus(moments, weight)

    def _stands_out(self, name: str, outlier: Outlier) -> None:
        kept = self._outliers[name]
        if len(kept) < SHOWN or outlier < kept[-1]:
            kept.append(outlier)
            kept.sort()
            del kept[SHOWN:]

    def merge(self, other: Profile) -> None:
        """Adds the profile of other images."""
        self._measured += other._measured
        self._sampled += other._sampled
        self._nearly_uniform += other._nearly_uniform
        self._sample_nearly_uniform += other._sample_nearly_uniform
        for name, counts in self._counts.items():
            counts.update(other._counts[name])
        for name in _MOMENTS:
            self._plus(name, other._moments[name])
        for name in _OUTLIERS:
            for outlier in other._outliers[name]:
                self._stands_out(name, outlier)

    def merge_json(self, part: Mapping[str, Any]) -> None:
        """Adds the profile of other images, a result of `to_json`; {} adds nothing."""
        if not part:
            return
        self._measured += part["measured"]
        self._sampled += part["sampled"]
        self._nearly_uniform += part["nearly_uniform"]
        self._sample_nearly_uniform += part["sample_nearly_uniform"]
        for name, counts in self._counts.items():
            counts.update(dict(part["counts"][name]))
        for name in _MOMENTS:
            pixels, sums, squares = part["moments"][name]
            self._plus(name, Moments(pixels, tuple(sums), tuple(squares)))
        for name in _OUTLIERS:
            for value, shard, row in part["outliers"][name]:
                self._stands_out(name, (value, shard, row))

    def to_json(self) -> dict[str, Any]:
        """Returns the profile as lists and integers, for `merge_json`."""
        return {
            "measured": self._measured,
            "sampled": self._sampled,
            "nearly_uniform": self._nearly_uniform,
            "sample_nearly_uniform": self._sample_nearly_uniform,
            "counts": {
                name: [list(pair) for pair in sorted(counts.items())]
                for name, counts in self._counts.items()
            },
            "moments": {
                name: [found.pixels, list(found.sums), list(found.squares)]
                for name, found in self._moments.items()
            },
            "outliers": {
                name: [list(outlier) for outlier in kept] for name, kept in self._outliers.items()
            },
        }

    def statistics(self) -> dict[str, Any]:
        """Returns the profile for statistics.json, with mean and standard deviation.

        If any image was not measured, all of it but the outliers is that of the sample: the images
        that were measured are those that the check decodes, which is no random choice.
        """
        found = self.to_json()
        sample = {name: found["counts"].pop(_SAMPLE + name) for name in _OF_APPEARANCE}
        nearly_uniform = found.pop("sample_nearly_uniform")
        if not self._all_measured:
            found["measured"] = found["sampled"]
            found["nearly_uniform"] = nearly_uniform
            found["counts"] |= sample
            found["moments"]["reduced"] = found["moments"]["sample_reduced"]
        return {"channels": self.channels(), **found}

    @property
    def _all_measured(self) -> bool:
        return self._measured == self._counts["sizes"].total()

    def channels(self) -> dict[str, list[float]] | None:
        """Returns the mean and the standard deviation of red, green and blue, from 0 to 1.

        The mean is that of all images, or that of the sample if some were not measured. Their
        standard deviation at the reduced size does not include what varies within the reduced
        pixels: the sample's variance at both sizes provides it.
        None if no image was measured.
        """
        every, small, full = (self._moments[name] for name in _MOMENTS)
        if not self._all_measured:
            every = small
        if not every.pixels:
            return None
        means, deviations = [], []
        for channel in range(3):
            variance = _variance(every, channel)
            if full.pixels:
                variance += _variance(full, channel) - _variance(small, channel)
            means.append(round(every.sums[channel] / (255 * every.pixels), 5))
            deviations.append(round(float(max(variance, Fraction(0)) / 255**2) ** 0.5, 5))
        return {"mean": means, "std": deviations}


def _variance(moments: Moments, channel: int) -> Fraction:
    mean = Fraction(moments.sums[channel], moments.pixels)
    return Fraction(moments.squares[channel], moments.pixels) - mean * mean


@dataclass
class Profiler:
    """Adds the images of one shard to a profile.

    Attributes:
      profile: the profile.
      shard: the shard.
      schema: schema of its records. Texts are not added.
      check_decodes: whether the check decodes every image. If not, a sample is decoded here.
    """

    profile: Profile
    shard: ShardId
    schema: Schema
    check_decodes: bool = False

    def add(self, content: bytes, info: ImageInfo, position: int, row: int) -> None:
        """Adds an image.

        Args:
          content: the image file, or the pixels.
          info: its format and size, and its appearance if the check has measured it.
          position: number of the image's reference in the shard, rejects included.
          row: number of its record in the shard.
        """
        if self.schema.holds == "text":
            return
        self.profile.add(info, len(content))
        # Of the images that are decoded although the check does not, all are converted ones.
        seen = info.appearance if self.check_decodes else None
        if is_sampled(position, self.shard.num_shards, self.check_decodes):
            image = self._decode(content, info)
            seen = seen or (measure_image(image) if image else None)
            if image and seen:
                self.profile.add_sample(seen, full_moments(image))
        if seen:
            self.profile.add_appearance(seen, self.shard.index, row)

    def _decode(self, content: bytes, info: ImageInfo) -> Image.Image | None:
        array = self.schema.content.array if self.schema.content else None
        if not array:
            return decode_file(content)
        return image_of_pixels(content, array.dtype, info.height, info.width)
