import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from imageshards.transforms.records import example
from imageshards.transforms.records.schemas import SLIM, Feature, Schema, Value

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(width=32, allow_nan=False)
KINDS = {
    "bytes": st.lists(st.binary(max_size=9000), max_size=3),
    "int64": st.lists(INT64, max_size=5),
    "float": st.lists(FLOAT, max_size=5),
}


def with_tensorflow(values: dict[str, tuple[str, list]]) -> bytes:
    features = {}
    for key, (kind, items) in values.items():
        feature = tf.train.Feature()
        getattr(feature, f"{kind}_list").value.extend(items)
        if not items:
            getattr(feature, f"{kind}_list").SetInParent()
        features[key] = feature
    message = tf.train.Example(features=tf.train.Features(feature=features))
    return message.SerializeToString(deterministic=True)


@st.composite
def features(draw: st.DrawFn) -> dict[str, tuple[str, list]]:
    keys = draw(st.lists(st.text(max_size=200), unique=True, max_size=6))
    kinds = [draw(st.sampled_from(sorted(KINDS))) for _ in keys]
    return {key: (kind, draw(KINDS[kind])) for key, kind in zip(keys, kinds, strict=True)}


@given(features())
def test_bytes_are_those_of_tensorflow(values: dict[str, tuple[str, list]]):
    schema = Schema(
        "any", tuple(Feature(key, kind, key, "Scalar") for key, (kind, _) in values.items())
    )
    parts = example.encode(schema, {key: items for key, (_, items) in values.items()})
    assert b"".join(parts) == with_tensorflow(values)


@given(features())
def test_decode_reads_what_tensorflow_wrote(values: dict[str, tuple[str, list]]):
    decoded = example.decode(with_tensorflow(values))
    assert decoded == {key: items for key, (_, items) in values.items()}


def slim_values(payload: bytes) -> dict[str, Value]:
    return {
        "encoded": payload, "label": 7, "class_text": b"owl", "filename": b"a/b.jpg",
        "format": b"JPEG", "height": 3, "width": 300,
    }  # fmt: skip


def test_the_payload_is_not_copied():
    payload = bytes(100_000)
    parts = example.encode(SLIM, slim_values(payload))
    assert len(parts) == 3
    assert parts[1] is payload


def test_scalars_and_lists_are_the_same():
    one = {key: [value] for key, value in slim_values(b"x" * 5000).items()}
    assert b"".join(example.encode(SLIM, one)) == b"".join(
        example.encode(SLIM, slim_values(b"x" * 5000))
    )


def test_bytes_that_are_no_example_are_an_error():
    with pytest.raises(example.CorruptExample, match="not a serialized"):
        example.decode(b"\xff\xff\xff")
