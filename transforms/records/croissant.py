"""The content of croissant.json, which describes a data set for catalogues and loaders. Pure.

Format: Croissant 1.1 (http://mlcommons.org/croissant/1.1), JSON-LD on top of schema.org.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from imageshards.transforms.elements import counted
from imageshards.transforms.records.containers import container_of_file
from imageshards.transforms.records.schemas import Feature, Schema

MOST_FILES = 1000
"""Shards that croissant.json lists one by one, with their checksums; build.json lists them all."""

_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "arrayShape": "cr:arrayShape",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "containedIn": "cr:containedIn",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"},
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isArray": "cr:isArray",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "name": {"@container": "@language"},
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
_SPDX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")
_SHARDS, _LABELS, _SPLITS, _CLASSES, _EXAMPLES = "shards", "labels", "splits", "classes", "examples"


def croissant_json(build: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Returns the content of croissant.json.

    Args:
      build: the content of build.json.
      schema: the features of a record.
    """
    about = build["about"]
    document: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": build["name"],
        "description": description_of(build, schema),
        "version": "1.0.0",
    }
    if about.get("license"):
        document["license"] = license_url(about["license"])
    if about.get("creator"):
        document["creator"] = {"@type": "sc:Organization", "name": about["creator"]}
    for name, key in (("url", "homepage"), ("datePublished", "date_published"),
                      ("citeAs", "citation")):  # fmt: skip
        if about.get(key):
            document[name] = about[key]
    document["distribution"] = [*_files(build, schema), _file_set(build)]
    document["recordSet"] = [_splits(build), *_classes(build), _examples(build, schema)]
    return document


def description_of(build: Mapping[str, Any], schema: Schema) -> str:
    """Returns the description that was given, or one that is made from the counts."""
    given = build["about"].get("description")
    if given:
        return str(given)
    counts = [counted(build["counts"]["records"], schema.noun)]
    if build["classes"]:
        counts.append(counted(len(build["classes"]), "class"))
    counts.append(counted(len(build["splits"]), "split"))
    return f"{', '.join(counts)}. Built by imageshards {build['imageshards']}."


def license_url(name: str) -> str:
    """Returns the URL of a license.

    >>> license_url("CC-BY-4.0")
    'https://spdx.org/licenses/CC-BY-4.0.html'

    Args:
      name: an SPDX identifier; anything else is returned unchanged.
    """
    return f"https://spdx.org/licenses/{name}.html" if _SPDX.fullmatch(name) else name


def _files(build: Mapping[str, Any], schema: Schema) -> list[dict[str, Any]]:
    files = []
    if schema.class_key:
        names = "".join(f"{name}\n" for name in build["classes"]).encode()
        path = f"{schema.class_key.replace('/', '.')}.labels.txt"
        files.append(_file(_LABELS, path, len(names), "text/plain", sha256(names).hexdigest()))
    shards = build["shards"]
    media_type = container_of_file(shards[0]["name"]).media_type
    if len(shards) <= MOST_FILES and all("sha256" in shard for shard in shards):
        files += [
            _file(shard["name"], shard["name"], shard["bytes"], media_type, shard["sha256"])
            for shard in shards
        ]
    return files


def _file(identity: str, path: str, size: int, encoding: str, digest: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": identity,
        "name": path,
        "contentUrl": path,
        "contentSize": f"{size} B",
        "encodingFormat": encoding,
        "sha256": digest,
    }


def _file_set(build: Mapping[str, Any]) -> dict[str, Any]:
    first = build["shards"][0]["name"]
    container = container_of_file(first)
    return {
        "@type": "cr:FileSet",
        "@id": _SHARDS,
        "name": _SHARDS,
        "description": "Files of serialized tf.train.Example records, in random order.",
        "encodingFormat": container.media_type,
        "includes": [f"{split}-*{container.suffix}" for split in build["splits"]],
    }


def _splits(build: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet",
        "@id": _SPLITS,
        "name": _SPLITS,
        "description": "The splits of the data set.",
        "dataType": "cr:Split",
        "key": {"@id": f"{_SPLITS}/name"},
        "field": [
            _field(_SPLITS, "name", "sc:Text"),
            _field(_SPLITS, "records", "sc:Integer"),
        ],
        "data": [
            {f"{_SPLITS}/name": name, f"{_SPLITS}/records": split["records"]}
            for name, split in build["splits"].items()
        ],
    }


def _classes(build: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not build["classes"]:
        return []
    lines = {"fileObject": {"@id": _LABELS}, "extract": {"fileProperty": "lines"}}
    numbers = {"fileObject": {"@id": _LABELS}, "extract": {"fileProperty": "lineNumbers"}}
    return [
        {
            "@type": "cr:RecordSet",
            "@id": _CLASSES,
            "name": _CLASSES,
            "description": "The classes, in the order of their labels, which begin with 0.",
            "dataType": "sc:Enumeration",
            "key": {"@id": f"{_CLASSES}/label"},
            "field": [
                {**_field(_CLASSES, "label", "sc:Integer"), "source": numbers},
                {**_field(_CLASSES, "name", "sc:Text"), "source": lines},
            ],
        }
    ]


def _examples(build: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    split = {
        **_field(_EXAMPLES, "split", "sc:Text"),
        "source": {
            "fileSet": {"@id": _SHARDS},
            "extract": {"fileProperty": "filename"},
            "transform": {"regex": "^(.+)-[0-9]{5,}-of-[0-9]{5,}"},
        },
        "references": {"field": {"@id": f"{_SPLITS}/name"}},
    }
    fields = [split, *(_example_field(build, feature) for feature in schema.features)]
    return {
        "@type": "cr:RecordSet",
        "@id": _EXAMPLES,
        "name": _EXAMPLES,
        "description": "The records. A column is the key of a feature of tf.train.Example.",
        "field": fields,
    }


def _example_field(build: Mapping[str, Any], feature: Feature) -> dict[str, Any]:
    is_image = feature.tfds in ("Image", "Mask")
    kind = "sc:ImageObject" if is_image else _DATA_TYPES[feature.kind]
    if feature.tfds == "Array":
        kind = "sc:Text"  # raw bytes, for which the format has no type
    field = {
        **_field(_EXAMPLES, feature.key, kind),
        "source": {"fileSet": {"@id": _SHARDS}, "extract": {"column": feature.key}},
    }
    if feature.is_list:
        field |= {"isArray": True, "arrayShape": "-1"}
    if feature.tfds == "ClassLabel" and build["classes"]:
        field["references"] = {"field": {"@id": f"{_CLASSES}/label"}}
    return field


_DATA_TYPES = {"bytes": "sc:Text", "int64": "sc:Integer", "float": "sc:Float"}


def _field(record_set: str, name: str, kind: str) -> dict[str, Any]:
    return {
        "@type": "cr:Field",
        "@id": f"{record_set}/{name}",
        "name": name,
        "dataType": kind,
    }
