"""The arguments of reader.load, reader.grain and reader.open."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields

import numpy as np
import pytest

from imageshards import reader
from imageshards.reader.options import (
    ElementOptions,
    GrainOptions,
    LoadOptions,
    OpenOptions,
    ReadOptions,
)
from imageshards.transforms.elements import UsageError

FUNCTIONS = {
    reader.load: LoadOptions.__annotations__,
    reader.grain: GrainOptions.__annotations__,
    reader.open: OpenOptions.__annotations__,
}
BOOL = "must be True or False"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"augment": "yes"}, f"invalid augment 'yes': {BOOL}"),
        ({"augment": 1}, f"invalid augment 1: {BOOL}"),
        ({"augment": None}, f"invalid augment None: {BOOL}"),
        ({"decode": 0}, f"invalid decode 0: {BOOL}"),
        ({"check": "no"}, f"invalid check 'no': {BOOL}"),
        ({"repeat": "false"}, f"invalid repeat 'false': {BOOL}"),
        ({"deterministic": 1}, f"invalid deterministic 1: {BOOL}"),
        ({"drop_remainder": "no"}, f"invalid drop_remainder 'no': {BOOL}"),
        ({"shuffle": "yes"}, "invalid shuffle 'yes': must be True"),
        ({"shuffle": 2.5}, "invalid shuffle 2.5: must be True"),
        ({"shuffle": None}, "invalid shuffle None: must be True"),
        ({"shuffle": -1}, "invalid shuffle -1: must be True"),
        ({"batch_size": 0}, "invalid batch_size 0: must be an integer, at least 1"),
        ({"batch_size": "8"}, "invalid batch_size '8': must be an integer"),
        ({"batch_size": True}, "invalid batch_size True: must be an integer"),
        ({"batch_size": 999}, "120 records do not fill a global batch of 999: use a smaller"),
        ({"batch_size": 333, "num_hosts": 3}, "do not fill a global batch of 999: use a smaller"),
        ({"num_hosts": 2, "host": 2}, "invalid host 2 of 2: must be from 0"),
        ({"num_hosts": 121}, "120 records for 121 hosts: use fewer hosts"),
        ({"num_hosts": 2.0}, "invalid num_hosts 2.0: must be an integer"),
        ({"num_hosts": "2"}, "invalid num_hosts '2': must be an integer"),
        ({"num_hosts": 0}, "invalid num_hosts 0: must be an integer, at least 1"),
        ({"num_hosts": None}, "invalid num_hosts None: must be an integer"),
        ({"num_hosts": 2, "host": 0.5}, "invalid host 0.5: must be an integer"),
        ({"num_hosts": 2, "host": -1}, "invalid host -1: must be an integer"),
        ({"seed": 2**62}, "invalid seed 4611686018427387904: .* at most"),
        ({"seed": -1}, "invalid seed -1: must be an integer, at least 0"),
        ({"parallel_reads": 2.5}, "invalid parallel_reads 2.5: must be an integer"),
        ({"workers": -1}, "invalid workers -1: must be an integer, at least 0"),
        ({"threads": 0}, "invalid threads 0: must be an integer, at least 1"),
        ({"batch_size": 8, "start": 12}, "start 12 is within a batch: use a multiple of 8"),
        ({"start": -1}, "invalid start -1"),
        ({"start": 1000, "deterministic": False}, "start 1000 requires deterministic=True"),
        ({"dtype": "float16"}, "invalid dtype 'float16': must be one of uint8, float32, bfloat16"),
        ({"dtype": np.float32}, "invalid dtype <class 'numpy.float32'>: must be one of"),
        ({"channels": 7}, "invalid channels 7: must be 3(, 1 or 0| or 1)$"),
        ({"channels": 3.0}, r"invalid channels 3\.0: must be 3(, 1 or 0| or 1)$"),
        ({"channels": True}, "invalid channels True: must be 3(, 1 or 0| or 1)$"),
        ({"channels": [3]}, r"invalid channels \[3\]: must be 3(, 1 or 0| or 1)$"),
        ({"crop_fraction": "x"}, "invalid crop_fraction 'x': must be above 0"),
        ({"crop_fraction": True}, "invalid crop_fraction True: must be above 0"),
        ({"crop_fraction": 0}, "invalid crop_fraction 0: must be above 0"),
        ({"crop_fraction": 0.5}, "crop_fraction 0.5 requires an image_size"),
        ({"augment": True}, "augment requires an image_size"),
        ({"image_size": 0}, "invalid image_size 0"),
        ({"image_size": "64"}, "invalid image_size '64'"),
        ({"image_size": 8.0}, "invalid image_size 8.0: must be an integer"),
        ({"image_size": (8, 0)}, "invalid image_size 0"),
        ({"image_size": (8, 8, 3)}, "must be a number or .height, width"),
        ({"image_key": 5}, "invalid image_key 5: must be the key of a feature"),
        ({"image_key": ""}, "invalid image_key '': must be the key of a feature"),
        ({"label_key": ["a"]}, r"invalid label_key \['a'\]: must be the key of a feature"),
        ({"keys": "price"}, "invalid keys 'price': must be a list"),
        ({"keys": [b"price"]}, "invalid keys: b'price' is not the key of a feature"),
        ({"keys": {"price": 1}}, "invalid keys .*: must be a list"),
        ({"features": ["price"]}, r"invalid features \['price'\]: must be a dict"),
        ({"transform": 3}, "invalid transform 3: must be a function"),
        ({"split": 5}, "split 5: write a split such as train"),
        ({"split": "train[_:]"}, r"at 'train\[_:\]'"),
        ({"split": "test"}, "there is no 'test'"),
        ({"decod": False}, "has no option 'decod': did you mean decode?"),
        ({"zzz": 8}, "has no option 'zzz': the options are "),
    ],
)
def test_wrong_arguments_are_one_line(dataset, options: dict, message: str):
    known = [set(its) | {"split", "decod", "zzz"} for its in FUNCTIONS.values()]
    functions = [read for read, its in zip(FUNCTIONS, known, strict=True) if options.keys() <= its]
    assert functions
    for read in functions:
        with pytest.raises(UsageError, match=message) as caught:
            read(dataset, **options)
        assert "\n" not in str(caught.value)


def test_shuffle_of_grain_is_not_a_number(dataset):
    with pytest.raises(UsageError, match="invalid shuffle 100: must be True or False: with random"):
        reader.grain(dataset, shuffle=100)


@pytest.mark.parametrize("read", FUNCTIONS)
def test_a_wrong_place_is_one_line(dataset, read):
    for place in ([dataset], 5, None):
        with pytest.raises(UsageError, match=r"invalid data set .*: must be one folder or glob"):
            read(place)
    if read is reader.open:
        with pytest.raises(UsageError, match=r"reader.load and reader.grain also mix several"):
            read({dataset: 1})


def test_values_of_numpy_are_accepted(dataset):
    options = {"image_size": np.int64(8), "batch_size": np.int32(4), "num_hosts": np.int64(2)}
    options |= {"augment": np.True_, "repeat": np.True_, "shuffle": np.True_, "host": np.int32(1)}
    for read in (reader.load, reader.grain):
        images, _ = next(iter(read(dataset, **options, crop_fraction=np.float32(0.5))))
        assert images.shape == (4, 8, 8, 3)


def test_the_largest_seed_and_integers_of_numpy_are_accepted(dataset):
    data = reader.load(
        dataset, seed=2**62 - 1, image_size=np.int64(8), batch_size=np.int32(4), augment=True,
        num_hosts=np.int64(2), host=np.int32(1), shuffle=np.int64(32), parallel_reads=np.int64(2),
        crop_fraction=np.float32(0.5),
    )  # fmt: skip
    assert next(iter(data))[0].shape == (4, 8, 8, 3)
    assert json.dumps(data.iterator().state())


def test_every_option_is_in_one_group_and_in_the_help():
    names = [field.name for field in (*fields(ElementOptions), *fields(ReadOptions))]
    assert sorted(names) == sorted(LoadOptions.__annotations__)
    # Python 3.13 removes the indentation of docstrings.
    described = inspect.cleandoc(reader.load.__doc__)
    assert all(f"\n  {name}: " in described for name in names)
