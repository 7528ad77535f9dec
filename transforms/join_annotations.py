"""PTransform `JoinAnnotations` (`--annotations`): adds the annotations of files to references.

Both are grouped by the base names of the images, in as many groups as their number requires.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import apache_beam as beam
import numpy as np

from imageshards.transforms.annotations.match import (
    by_stem,
    has_same_folder,
    is_path_of,
    match,
    normalized,
    stem,
)
from imageshards.transforms.annotations.source import (
    Annotated,
    AnnotationBatch,
    AnnotationSource,
    Category,
)
from imageshards.transforms.elements import BuildError, Problem, quoted, to_bytes
from imageshards.transforms.failure import Failures
from imageshards.transforms.grouping import Divide, merged
from imageshards.transforms.records.columns import FeatureColumn
from imageshards.transforms.records.objects import FACTS
from imageshards.transforms.records.schemas import COLUMN
from imageshards.transforms.references.annotated import (
    AnnotationCount,
    Unmatched,
    first_unmatched,
)
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.keys import group_bits, hash_keys
from imageshards.transforms.references.order import partition
from imageshards.transforms.references.tally import Tally, bits_of

_MOST_IMAGES = 1 << 20
"""References of a group, which has 250,000 at most if their base names differ: each of them takes
1.5 kB of memory and more while it is joined."""
_ANNOTATION_BYTES = 1 << 25
"""Memory of annotations that are divided at a time."""
_NAME = FACTS.removeprefix(COLUMN)
_FACTS = FeatureColumn(_NAME, _NAME, "int_list")
Listed: TypeAlias = tuple[beam.PCollection[tuple[int, RefBatch]], beam.PCollection[Tally]]
_Part = tuple[AnnotationSource, tuple[str, ...]]


@dataclass
class JoinAnnotations(beam.PTransform):  # type: ignore[misc]
    """Adds columns with the annotations of images, and counts them.

    Attributes:
      sources: files and folders of annotations.
      columns: the features that they fill.
      failures: where an error that a retry cannot mend is recorded.
    """

    sources: Sequence[AnnotationSource]
    columns: tuple[FeatureColumn, ...]
    failures: Failures = field(default_factory=Failures)

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, listed: Listed) -> Listed:
        """Takes and returns (batches, tallies), as `ReadReferences` returns them."""
        batches, tallies = listed
        sizes = merged(tallies, "Sizes", only_sizes=True)
        annotations = (
            batches.pipeline
            | "Once" >> beam.Impulse()
            | "Parts" >> beam.FlatMap(_parts, self.sources, self.failures)
            | "Distribute" >> beam.Reshuffle()
            | "Read" >> beam.ParDo(_Read(self), sizes).with_outputs("tallies", main="batches")
        )  # (group of stems, annotations)
        divided = beam.ParDo(Divide(_keys_of_stems, self._bits()), sizes)
        images = batches | "ByStem" >> divided  # (group of stems, references)
        joined = (
            {"images": images, "annotations": annotations.batches}
            | "GroupByStem" >> beam.CoGroupByKey()
            | "Join" >> beam.ParDo(_Join(self)).with_outputs("tallies", main="batches")
        )  # (bucket, references)
        others = tallies | "ExceptListed" >> beam.Map(Tally.without_listed)
        counts = (others, annotations.tallies, joined.tallies) | "Counts" >> beam.Flatten()
        return joined.batches, counts

    def _bits(self) -> int:
        """Returns the fewest bits for groups of stems."""
        return group_bits(0, sum(source.num_bytes() for source in self.sources))


def _parts(_: bytes, sources: Sequence[AnnotationSource], failures: Failures) -> Iterator[_Part]:
    with failures.recording():
        for source in sources:
            for files in source.parts():
                yield source, files


def _stem_keys(names: Iterable[str]) -> np.ndarray:
    """Returns a uint64 for each name, which is equal for equal stems."""
    return hash_keys(0, (to_bytes(stem(name)) for name in names))[0]


def _keys_of_stems(batch: RefBatch) -> np.ndarray:
    return _stem_keys(batch.uris)


class _Read(beam.DoFn):  # type: ignore[misc]
    """Reads a part of a source -> (group of stems, annotations)."""

    def __init__(self, join: JoinAnnotations) -> None:
        self._failures = join.failures
        self._least_bits = join._bits()
        self._bits = 0

    def process(
        self, part: _Part, tallies: Iterable[Tally]
    ) -> Iterator[tuple[int, AnnotationBatch] | beam.pvalue.TaggedOutput]:
        self._bits = self._bits or max(self._least_bits, bits_of(tallies))
        source, files = part
        classes: dict[str, int] = {}
        held: list[Annotated] = []
        objects = num_bytes = 0
        with self._failures.recording():
            for found in source.read(files):
                if isinstance(found, Category):
                    classes[found.name] = min(found.order, classes.get(found.name, found.order))
                    continue
                held.append(replace(found, name=normalized(found.name)))
                objects += found.objects
                num_bytes += found.num_bytes
                if num_bytes >= _ANNOTATION_BYTES:
                    yield from self._divided(source, held)
                    held, num_bytes = [], 0
            yield from self._divided(source, held)
        tally = Tally(annotated={source.uri: AnnotationCount(read=objects)}, object_classes=classes)
        yield beam.pvalue.TaggedOutput("tallies", tally)

    def _divided(
        self, source: AnnotationSource, held: Sequence[Annotated]
    ) -> Iterator[tuple[int, AnnotationBatch]]:
        if not held:
            return
        groups = _stem_keys(row.name for row in held) >> np.uint64(64 - self._bits)
        rows: dict[int, list[Annotated]] = {}
        for group, row in zip(groups.tolist(), held, strict=True):
            rows.setdefault(group, []).append(row)
        for group, found in rows.items():
            yield group, AnnotationBatch(source, found)


class _Join(beam.DoFn):  # type: ignore[misc]
    """Adds the annotations of a group of stems to its references."""

    def __init__(self, join: JoinAnnotations) -> None:
        self._columns = join.columns
        self._failures = join.failures

    def process(
        self, element: tuple[int, Mapping[str, Iterable[Any]]]
    ) -> Iterator[tuple[int, RefBatch] | beam.pvalue.TaggedOutput]:
        _, group = element
        with self._failures.recording():
            images = _few(group["images"])
        refs = RefBatch.concat(images) if images else None
        uris = refs.uris if refs else []
        uris_of = by_stem(dict.fromkeys(uris))
        found: dict[str, list[tuple[str, Annotated]]] = {}
        counts: dict[str, AnnotationCount] = {}
        unmatched: list[Unmatched] = []
        sources: dict[str, AnnotationSource] = {}
        rows: dict[str, dict[str, list[Annotated]]] = {}
        for batch in group["annotations"]:
            sources[batch.source.uri] = batch.source
            names = rows.setdefault(batch.source.uri, {})
            for row in batch.rows:
                names.setdefault(row.name, []).append(row)
        with self._failures.recording():
            for uri, names in sorted(rows.items()):
                matched: dict[str, str] = {}
                for key, same in by_stem(sorted(names)).items():
                    matched |= match(uris_of.get(key, ()), same, sources[uri].folder, uri)
                for name, parts in names.items():
                    objects = sum(part.objects for part in parts)
                    if name in matched:
                        image = matched[name]
                        if len(parts) > 1 and sources[uri].has_file_of_each:
                            reason = f"{len(parts)} files of {uri} name this image: correct them"
                            parts = [replace(part, problem=reason) for part in parts]
                        found.setdefault(image, []).extend((uri, part) for part in parts)
                        count = _matched(name, image, objects)
                    else:
                        count = AnnotationCount(unmatched_images=1, unmatched_objects=objects)
                        unmatched.append(Unmatched(uri, name, objects))
                    counts[uri] = counts.get(uri, AnnotationCount()) + count
        tally = Tally(annotated=counts, unmatched=first_unmatched(unmatched))
        if refs:
            refs = _with_annotations(refs, uris, found, self._columns)
            unannotated = sum(uri not in found for uri in uris)
            tally = replace(
                tally, listed=len(refs), ref_bytes=refs.value_bytes, unannotated=unannotated
            )
            yield from partition(refs)
        yield beam.pvalue.TaggedOutput("tallies", tally)


def _few(images: Iterable[RefBatch]) -> list[RefBatch]:
    """Returns the references of a group.

    Raises:
      BuildError: they are too many, because many images have the same base name.
    """
    found: list[RefBatch] = []
    count = 0
    for refs in images:
        found.append(refs)
        count += len(refs)
        if count > _MOST_IMAGES:
            stems = Counter(stem(uri) for refs in found for uri in refs[:100].uris)
            raise BuildError(
                f"--annotations: more than {_MOST_IMAGES:,} images have the same base name, such "
                f"as {quoted(stems.most_common(1)[0][0])}, and one worker would have to hold all "
                "of them: give the images different names, or build from fewer of them"
            )
    return found


def _matched(name: str, image: str, objects: int) -> AnnotationCount:
    """Returns the counts of an image, by its name in the annotation file and its URI."""
    in_same = has_same_folder(name, image)
    return AnnotationCount(
        images=1,
        other_folders=int(not is_path_of(name, image)),
        objects=objects,
        same_folders=int(in_same is True),
        moved="" if in_same is not False else f"{name} is {image}",
    )


def _with_annotations(
    refs: RefBatch,
    uris: Sequence[str],
    found: Mapping[str, list[tuple[str, Annotated]]],
    columns: Sequence[FeatureColumn],
) -> RefBatch:
    """Returns references with columns of their annotations.

    Args:
      refs: the references.
      uris: their URIs.
      found: URI -> the parts of its annotations, each with its source.
      columns: the columns.
    """
    values: dict[FeatureColumn, list[Sequence[Any]]] = {key: [] for key in (*columns, _FACTS)}
    problems = refs.problems
    has_captions = any(column.role == "captions" for column in columns)
    for row, uri in enumerate(uris):
        parts = [part for _, part in sorted(found.get(uri, ()), key=_place)]
        for column in columns:
            values[column].append([v for part in parts for v in part.values.get(column.key, ())])
        sizes = list(dict.fromkeys(part.size for part in parts if part.objects))
        objects = sum(part.objects for part in parts)
        values[_FACTS].append([objects, *(sizes[0] or ())] if objects else [])
        reason = next((part.problem for part in parts if part.problem), "")
        if len(sizes) > 1:
            reason = f"its annotations have different sizes of the image: {sizes[0]}, {sizes[1]}"
        if reason and row not in problems:
            problems[row] = Problem("annotations", "BadAnnotation", reason)
        if has_captions and not objects and row not in problems:
            reason = "no annotation file has a caption of it"
            problems[row] = Problem("annotations", "MissingCaption", reason)
    refs = refs.with_features(values)
    return refs.with_problems(problems) if problems else refs


def _place(item: tuple[str, Annotated]) -> tuple[str, int]:
    return item[0], item[1].place
