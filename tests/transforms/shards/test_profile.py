"""Profiles of images: a sum in any order, of bounded size, and true to the pixels."""

import io
import json
import random

import numpy as np
import pytest
from helpers import image_bytes
from PIL import Image

from imageshards.transforms.elements import ShardId
from imageshards.transforms.images.validate import inspect
from imageshards.transforms.records.schemas import SLIM
from imageshards.transforms.shards.profile import Profile, Profiler, is_sampled


def profile_of(files: list[bytes], shard: int = 0, check: str = "full") -> Profile:
    profiler = Profiler(Profile(), ShardId("train", shard, 4), SLIM, check == "full")
    for row, data in enumerate(files):
        profiler.add(data, inspect(data, check), row, row)  # type: ignore[arg-type]
    return profiler.profile


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    """Photo-like images of several sizes, and one of a single color."""
    made = []
    for number in range(60):
        rng = np.random.default_rng(number)
        smooth = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        size = (400 + 8 * number, 500 - 4 * number)
        pixels = np.asarray(smooth.resize(size, Image.Resampling.BICUBIC)).astype(int)
        noisy = np.clip(pixels + rng.normal(0, 20, pixels.shape), 0, 255).astype(np.uint8)
        out = io.BytesIO()
        Image.fromarray(noisy).save(out, "JPEG")
        made.append(out.getvalue())
    out = io.BytesIO()
    Image.new("RGB", (300, 300), "#402010").save(out, "JPEG")
    return [*made, out.getvalue()]


@pytest.mark.slow
def test_the_channels_are_those_of_all_pixels(files: list[bytes]):
    channels = profile_of(files).channels()
    pixels = [np.asarray(Image.open(io.BytesIO(data))).reshape(-1, 3) for data in files]
    every = np.concatenate(pixels) / 255
    assert channels
    assert channels["mean"] == pytest.approx(every.mean(0), abs=0.002)
    assert channels["std"] == pytest.approx(every.std(0), abs=0.006)


def test_small_images_are_measured_without_any_loss():
    small = [image_bytes(number, "PNG", (40, 30)) for number in range(100)]
    every = np.concatenate(
        [np.asarray(Image.open(io.BytesIO(data))).reshape(-1, 3) for data in small]
    )
    channels = profile_of(small).channels()
    assert channels
    assert channels["mean"] == pytest.approx(every.mean(0) / 255, abs=1e-5)
    assert channels["std"] == pytest.approx(every.std(0) / 255, abs=1e-5)


def _of_one_color(level: int, kind: str, mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new("L", (40, 30), level).convert(mode).save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize(("kind", "mode"), [("PNG", "P"), ("GIF", "P"), ("PNG", "L")])
def test_images_of_every_mode_count_alike(kind: str, mode: str):
    white, black = _of_one_color(255, kind, mode), _of_one_color(0, "PNG")
    profile = profile_of([black] * 100 + [white] * 100)
    found = profile.statistics()
    assert found["measured"] == 200
    assert found["channels"] == {"mean": [0.5] * 3, "std": [0.5] * 3}


def test_statistics_are_those_of_the_sample_if_an_image_is_not_measured():
    profile, positions = Profile(), range(2000)
    profiler = Profiler(profile, ShardId("train", 0, 4), SLIM, check_decodes=True)
    black, white = _of_one_color(0, "PNG"), _of_one_color(255, "PNG")
    for row in positions:
        data = white if row % 3 else black
        info = inspect(data, "full" if row % 3 else "header")
        profiler.add(data, info, row, row)
    found = profile.statistics()
    sampled = [row for row in positions if is_sampled(row, 4, check_decodes=True)]
    whites = sum(row % 3 > 0 for row in sampled)
    assert found["measured"] == found["sampled"] == len(sampled) == found["nearly_uniform"]
    assert found["channels"]["mean"] == [round(whites / len(sampled), 5)] * 3
    assert sum(count for _, count in found["counts"]["brightness"]) == len(sampled)


def test_profiles_add_up_in_any_order(files: list[bytes]):
    parts = [profile_of(files[shard::4], shard) for shard in range(4)]
    expected = None
    for seed in range(4):
        random.Random(seed).shuffle(parts)
        total = Profile()
        for number, part in enumerate(parts):
            if number % 2:
                total.merge(part)
            else:  # as a resumed run reads it from a file
                total.merge_json(json.loads(json.dumps(part.to_json())))
        found = json.dumps(total.to_json())
        assert expected in (None, found)
        expected = found
    assert expected
    assert json.loads(expected)["measured"] == len(files)


def test_the_size_of_a_profile_is_bounded():
    profile, rng = Profile(), random.Random(1)
    data = inspect(image_bytes(1, size=(640, 480)))
    for row in range(20_000):
        info = type(data)("JPEG", rng.randrange(1, 65_536), rng.randrange(1, 65_536))
        profile.add(info, rng.randrange(1 << 28))
        assert data.appearance
        seen = data.appearance._replace(brightness=rng.randrange(4096), contrast=row % 2048)
        profile.add_appearance(seen, 0, row)
    found = profile.to_json()
    assert len(json.dumps(found)) < 20_000
    assert [row for _, _, row in found["outliers"]["uniform"]][:3] == [0, 2048, 4096]


def test_an_image_of_one_color_is_counted_and_named(files: list[bytes]):
    found = profile_of(files, shard=2).to_json()
    assert found["nearly_uniform"] == 1
    assert found["outliers"]["uniform"][0] == [0, 2, len(files) - 1]


def test_the_header_check_decodes_a_sample_only(files: list[bytes]):
    found = profile_of(files, check="header").to_json()
    sampled = sum(is_sampled(position, 4, check_decodes=False) for position in range(len(files)))
    assert found["measured"] == found["sampled"] == sampled == 5
    assert sum(count for _, count in found["counts"]["sizes"]) == len(files)


def test_every_split_has_a_sample_and_a_large_one_a_small_share():
    for shards in (1, 7, 1000):
        assert sum(is_sampled(at, shards, True) for at in range(100)) * shards >= 20
    assert sum(is_sampled(position, 1, True) for position in range(64_000)) < 64_000 / 100
