"""The texts of `imageshards features`: the schemas, and Python code that parses their records."""

from __future__ import annotations

from collections.abc import Iterator

from imageshards.reader.parse import schema_of
from imageshards.transforms.records.schemas import COLUMN, SCHEMAS, SOURCES, Feature, Schema

_TF_TYPES = {"bytes": "tf.string", "int64": "tf.int64", "float": "tf.float32"}
_EXAMPLE_SHAPE = "[32, 32, 3]"


def list_schemas() -> str:
    """Returns the names of all schemas and their uses, one per line."""
    width = max(map(len, SCHEMAS)) + 2
    rows = "\n".join(f"  {schema.name:<{width}}{schema.use}" for schema in SCHEMAS.values())
    return (
        f"Schemas, for --features:\n{rows}\n"
        "To print the features of a schema or data set and code that parses them, run\n"
        "  imageshards features NAME|DIR"
    )


def describe(place: str) -> str:
    """Returns Python code: the features of a schema as comments, and a function that parses them.

    Args:
      place: the name of a schema, or the folder of a data set.

    Raises:
      BuildError: there is no such schema or data set.
    """
    schema = schema_of(place)
    return "\n".join([*_comment(schema), "", *_code(schema)])


def _comment(schema: Schema) -> Iterator[str]:
    yield f"# {schema.name}: {schema.use}" if schema.use else f"# {schema.name}"
    yield "#"
    width = max(len(feature.key) for feature in schema.features) + 2
    for feature in schema.features:
        kind = feature.kind + (" list" if feature.is_list else "")
        yield f"# {feature.key:<{width}}{kind:<12}{_meaning(feature)}"


def _meaning(feature: Feature) -> str:
    if feature.source.startswith(COLUMN):
        return "a column of --features_from; without one an empty list"
    text = SOURCES.get(feature.source, feature.tfds)
    if feature.array:
        text += f": {feature.array.dtype}, little-endian"
    return text


def _code(schema: Schema) -> Iterator[str]:
    yield "import tensorflow as tf"
    yield ""
    content = schema.content
    if content and content.array and not schema.key_of("shape"):
        shape = str(list(content.array.shape)) if content.array.shape else _EXAMPLE_SHAPE
        yield f"SHAPE = {shape}  # height, width, channels" + (
            "" if content.array.shape else "; set by --resize and --channels"
        )
    yield "SPEC = {"
    for feature in schema.features:
        kind = _TF_TYPES[feature.kind]
        is_list = feature.is_list
        parsed = f"RaggedFeature({kind})" if is_list else f"FixedLenFeature([], {kind})"
        yield f'    "{feature.key}": tf.io.{parsed},'
    yield "}"
    yield ""
    yield ""
    yield "def parse(record):"
    yield "    values = tf.io.parse_single_example(record, SPEC)"
    shape_key = schema.key_of("shape")
    for feature in sorted(schema.features, key=lambda feature: feature.key != shape_key):
        value = f'values["{feature.key}"]'
        if feature.tfds == "Image":
            yield f"    {value} = tf.io.decode_image("
            yield f"        {value}, channels=3, expand_animations=False"
            yield "    )"
        elif feature.source == "mask":
            yield f"    {value} = tf.io.decode_png({value}, channels=1)"
        elif feature.array:
            raw = f"tf.io.decode_raw({value}, tf.{feature.array.dtype})"
            if feature.source != "pixels":
                yield f"    {value} = {raw}"
            else:
                shape = f'values["{shape_key}"]' if shape_key else "SHAPE"
                yield f"    {value} = tf.reshape({raw}, {shape})"
    yield "    return values"
