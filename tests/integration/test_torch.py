"""PyTorch's DataLoader. `make test-torch` runs these tests, in an environment with torch."""

from __future__ import annotations

import pytest
from conftest import LOCAL
from helpers import write_images

from imageshards import reader
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.run import run

torch_data = pytest.importorskip("torch.utils.data", reason="make test-torch runs it")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> reader.Records:
    folder = tmp_path_factory.mktemp("torch")
    write_images(folder / "in", 6, 20)
    run(
        BuildOptions.of(input=(str(folder / "in"),), output=str(folder / "out"), num_shards="7"),
        LOCAL,
        show_progress=False,
    )
    return reader.open(folder / "out", "train")


def images(loader) -> list[bytes]:
    return [image.numpy().tobytes() for batch, _ in loader for image in batch]


@pytest.mark.parametrize("workers", [0, 2])
def test_records_are_a_map_style_data_set(records: reader.Records, workers: int):
    loader = torch_data.DataLoader(records, batch_size=8, shuffle=True, num_workers=workers)
    batch, labels = next(iter(loader))
    assert tuple(batch.shape) == (8, 16, 24, 3)
    assert tuple(labels.shape) == (8,)
    assert sorted(images(loader)) == sorted(image.tobytes() for image, _ in records)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_iterable_data_set_shuffles_each_epoch(records: reader.Records, workers: int):
    from imageshards.reader.torch import IterableRecords

    data = IterableRecords(records, seed=1, window=32)
    loader = torch_data.DataLoader(data, batch_size=8, num_workers=workers)
    first = images(loader)
    assert sorted(first) == sorted(image.tobytes() for image, _ in records)
    assert images(loader) == first
    data.epoch = 1
    assert images(loader) != first
    assert sorted(images(loader)) == sorted(first)
    assert len(data) == 120


def test_there_may_be_more_workers_than_records(records: reader.Records):
    from imageshards.reader.torch import IterableRecords

    for count in (0, 2):
        loader = torch_data.DataLoader(IterableRecords(records[:count]), num_workers=4)
        assert sorted(images(loader)) == sorted(image.tobytes() for image, _ in records[:count])


def test_without_shuffling_records_are_read_in_order(records: reader.Records):
    from imageshards.reader.torch import IterableRecords

    loader = torch_data.DataLoader(IterableRecords(records, shuffle=False), batch_size=7)
    assert images(loader) == [image.tobytes() for image, _ in records]
