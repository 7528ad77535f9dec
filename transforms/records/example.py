"""Encodes and decodes tf.train.Example without TensorFlow. Pure.

Importing TensorFlow takes 3-4 s and 400 MB per process, and a protobuf message in Python copies
the image twice. `encode` writes the wire format of tensorflow/core/example/example.proto directly,
with sorted map keys and without copying large values. The bytes are equal to those of
`tf.train.Example(...).SerializeToString(deterministic=True)`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from imageshards.transforms.records.schemas import Kind, Schema, Value

# Field numbers of example.proto, all of wire type 2 (length-delimited).
_LIST_TAGS: dict[Kind, bytes] = {"bytes": b"\x0a", "float": b"\x12", "int64": b"\x1a"}
_FIELD_1 = b"\x0a"
_FIELD_2 = b"\x12"

# Values of at least this many bytes become parts of their own. To copy a smaller one is cheaper
# than another buffer in writev.
_APART_BYTES = 4096


def _varint(value: int) -> bytes:
    if value < 0:
        value += 1 << 64  # protobuf encodes negative int64 as ten bytes of two's complement
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _sized(tag: bytes, payload: bytes) -> bytes:
    return tag + _varint(len(payload)) + payload


@cache
def _key(key: str) -> bytes:
    return _sized(_FIELD_1, key.encode())


def _entry_head(key: str, kind: Kind, list_bytes: int) -> bytes:
    """Returns the bytes of a map entry before its list's content, which has `list_bytes` bytes."""
    feature = _LIST_TAGS[kind] + _varint(list_bytes)
    named = _key(key) + _FIELD_2 + _varint(len(feature) + list_bytes) + feature
    return _FIELD_1 + _varint(len(named) + list_bytes) + named


def _list_content(kind: Kind, value: Value) -> bytes:
    values: Any = value if isinstance(value, (list, tuple)) else (value,)
    if kind == "bytes":
        return b"".join(_sized(_FIELD_1, item) for item in values)
    if not values:
        return b""
    if kind == "int64":
        return _sized(_FIELD_1, b"".join(map(_varint, values)))
    return _sized(_FIELD_1, struct.pack(f"<{len(values)}f", *values))


def _entry(key: str, kind: Kind, value: Value) -> bytes:
    content = _list_content(kind, value)
    return _entry_head(key, kind, len(content)) + content


# Labels, class names, formats, heights and widths repeat in many records; file names do not.
_cached_entry = lru_cache(maxsize=1 << 14)(_entry)


def encode(schema: Schema, values: Mapping[str, Value]) -> list[bytes]:
    """Returns a serialized Example as a list of parts to concatenate.

    Args:
      schema: the features.
      values: source -> value, for every feature of the schema.

    Returns:
      The parts. A large bytes value is a part of its own: the same object, not a copy.

    >>> from imageshards.transforms.records.schemas import TEXT
    >>> parts = encode(TEXT, {"text": b"owl", "source": b"birds.txt", "label": 2})
    >>> sorted(decode(b"".join(parts)).items())
    [('label', [2]), ('source', [b'birds.txt']), ('text', [b'owl'])]
    """
    parts: list[bytes] = []
    small: list[bytes] = []
    length = 0
    for feature in schema.in_order:
        value = values[feature.source]
        if isinstance(value, bytes) and len(value) >= _APART_BYTES:
            item = _FIELD_1 + _varint(len(value))
            head = _entry_head(feature.key, feature.kind, len(item) + len(value)) + item
            small.append(head)
            parts += [b"".join(small), value]
            small = []
            length += len(head) + len(value)
        else:
            # A list is not hashable, and so not a key of the cache.
            cached = feature.repeats and isinstance(value, (int, bytes))
            entry = (_cached_entry if cached else _entry)(feature.key, feature.kind, value)
            small.append(entry)
            length += len(entry)
    if small:
        parts.append(b"".join(small))
    head = _FIELD_1 + _varint(length)
    return [head + parts[0], *parts[1:]] if parts else [head]


@cache
def _message_class() -> Any:
    # The messages of example.proto, declared here to decode them without TensorFlow.
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="imageshards/example.proto", package="imageshards", syntax="proto3"
    )

    one, many = proto.LABEL_OPTIONAL, proto.LABEL_REPEATED

    def add(message: Any, label: int, **types: int | str) -> None:
        for number, (name, kind) in enumerate(types.items(), 1):
            field = message.field.add(name=name, number=number, label=label)
            if isinstance(kind, str):
                field.type, field.type_name = proto.TYPE_MESSAGE, f".imageshards.{kind}"
            else:
                field.type = kind

    add(file.message_type.add(name="BytesList"), many, value=proto.TYPE_BYTES)
    add(file.message_type.add(name="FloatList"), many, value=proto.TYPE_FLOAT)
    add(file.message_type.add(name="Int64List"), many, value=proto.TYPE_INT64)
    feature = file.message_type.add(name="Feature")
    add(feature, one, bytes_list="BytesList", float_list="FloatList", int64_list="Int64List")
    feature.oneof_decl.add(name="kind")
    for item in feature.field:
        item.oneof_index = 0
    features = file.message_type.add(name="Features")
    add(features, many, feature="Features.Entry")
    entry = features.nested_type.add(name="Entry")
    entry.options.map_entry = True
    add(entry, one, key=proto.TYPE_STRING, value="Feature")
    add(file.message_type.add(name="Example"), one, features="Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("imageshards.Example"))


class CorruptExample(Exception):
    """Bytes that are not a serialized tf.train.Example."""


def decode(data: bytes) -> dict[str, list[Any]]:
    """Parses a serialized tf.train.Example.

    Returns:
      key -> list of values: bytes, int or float.

    Raises:
      CorruptExample: the data is not such a message.
    """
    from google.protobuf.message import DecodeError

    try:
        message = _message_class().FromString(data)
    except DecodeError as error:
        raise CorruptExample("not a serialized tf.train.Example") from error
    values = {}
    for key, feature in message.features.feature.items():
        kind = feature.WhichOneof("kind")
        values[key] = list(getattr(feature, kind).value) if kind else []
    return values
