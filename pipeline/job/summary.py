"""The result of a build, as the command prints it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from imageshards.pipeline.job.progress import duration, rate
from imageshards.pipeline.metadata import classes_not_in_train
from imageshards.reader.report.page import (
    annotations_text,
    by_count,
    left_out_text,
)
from imageshards.transforms.elements import counted, human_bytes
from imageshards.transforms.images.convert import EXIF_KEPT
from imageshards.transforms.shards.annotations import BOXES, DROPPED, OUTSIDE

_NAMES_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The result of a build.

    Attributes:
      output: the folder of the data set.
      records: records in the data set.
      bytes: size of all shards.
      shards: number of shards.
      resumed: number of shards that an earlier run had finished.
      written: records of the other shards, which this run wrote.
      rejects: rejected images; each is a line of rejects.jsonl.
      errors: type of error -> rejects.
      duplicates: references that repeat the URI of another one.
      passed_over: files that were skipped because their names do not have the suffix of an image.
      left_out: option that leaves out references -> number of them.
      leaks: images that are in more than one split.
      classes_not_in_train: split -> names of its classes of which train has no record.
      can_stratify: whether `--stratify` would put images of each class into train.
      converted: images whose bytes differ from those of their file.
      conversions: kind of conversion -> images.
      annotations: kind of annotation -> number of them; empty without boxes.
      unmatched: images of annotation files that are not among the inputs, and their objects.
      splits: name -> (records, shards).
      notes: what the build chose automatically, and why.
      seconds: wall time, start-up included.
      startup_seconds: the part of it before the pipeline ran: loading Beam, checking the inputs and
        the output; None on services and clusters, which start workers of their own.
      noun: what a record is: "image" or "text".
    """

    output: str
    records: int
    bytes: int
    shards: int
    resumed: int
    written: int
    rejects: int
    errors: dict[str, int]
    duplicates: int
    passed_over: int
    left_out: dict[str, int]
    leaks: int
    classes_not_in_train: dict[str, list[str]]
    can_stratify: bool
    converted: int
    conversions: dict[str, int]
    annotations: dict[str, int]
    unmatched: tuple[int, int]
    splits: dict[str, tuple[int, int]]
    notes: tuple[str, ...]
    seconds: float
    startup_seconds: float | None = None
    noun: str = "image"

    @classmethod
    def of(
        cls,
        build: Mapping[str, Any],
        *,
        output: str,
        noun: str,
        resumed: Collection[str],
        **times: Any,
    ) -> Summary:
        """Returns the summary of a data set from its build.json and further attributes.

        Args:
          build: the content of build.json.
          output: the folder of the data set.
          noun: what a record is.
          resumed: names of shards that an earlier run had finished.
          **times: `seconds` and `startup_seconds`.
        """
        counts = build["counts"]
        names = ("records", "bytes", "rejects", "duplicates", "passed_over", "leaks", "converted")
        return cls(
            **{name: counts[name] for name in names},
            output=output,
            shards=len(build["shards"]),
            resumed=len(resumed),
            written=sum(
                shard["records"] for shard in build["shards"] if shard["name"] not in resumed
            ),
            errors=build["rejects"],
            left_out=build.get("left_out", {}),
            classes_not_in_train=classes_not_in_train(build["splits"], build["classes"]),
            can_stratify="=" in build["options"]["splits"]
            and build["options"]["group_by"] == "uri"
            and not build["options"].get("stratify"),
            conversions=build["conversions"],
            annotations=build.get("annotations", {}),
            unmatched=_unmatched(build),
            splits={
                name: (split["records"], split["shards"]) for name, split in build["splits"].items()
            },
            notes=tuple(build["notes"]),
            **times,
            noun=noun,
        )

    def to_json(self) -> str:
        """Returns one line of JSON."""
        startup = self.startup_seconds
        times = {
            "seconds": round(self.seconds, 3),
            "startup_seconds": None if startup is None else round(startup, 3),
        }
        return json.dumps({**asdict(self), **times})

    def __str__(self) -> str:
        lines = [
            *self._counts(), *self.warnings, *self._conversions(), *self.notes, self._work(),
        ]  # fmt: skip
        return "\n".join([self.output, *(f"  {line}" for line in lines)])

    def _counts(self) -> Iterator[str]:
        splits = ", ".join(
            f"{name} {records:,} in {shards:,}" for name, (records, shards) in self.splits.items()
        )
        yield (
            f"{counted(self.records, self.noun)} in {counted(self.shards, 'shard')}, "
            f"{human_bytes(self.bytes)}  "
            f"({splits if len(self.splits) > 1 else next(iter(self.splits))})"
        )
        errors = ", ".join(f"{count:,} {error}" for error, count in by_count(self.errors))
        yield (
            counted(self.rejects, "reject")
            + (f" ({errors}; metadata/rejects.jsonl)" if self.rejects else "")
            + f", {counted(self.duplicates, 'duplicate')}, "
            f"{counted(self.passed_over, 'file')} skipped{left_out_text(self.left_out)}"
        )

    @property
    def warnings(self) -> list[str]:
        """What may be wrong with the data set, one line each."""
        return list(self._warnings())

    def _warnings(self) -> Iterator[str]:
        if self.leaks:
            are = "is" if self.leaks == 1 else "are"
            remedy = "; --dedupe pixels keeps one of each" if self.noun == "image" else ""
            yield (
                f"LEAK: {counted(self.leaks, self.noun)} {are} in more than one split "
                f"(metadata/leaks.jsonl){remedy}"
            )
        for split, names in self.classes_not_in_train.items():
            shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if names[_NAMES_SHOWN:] else "")
            remedy = "; --stratify divides each class" if self.can_stratify else ""
            yield f"NOT IN TRAIN: {counted(len(names), 'class')} of {split}: {shown}{remedy}"

        outside = self.annotations.get(OUTSIDE, 0)
        boxes = sum(self.annotations.get(kind, 0) for kind in (BOXES, DROPPED))
        if outside * 2 > boxes:
            yield (
                f"BEYOND THE EDGES: {outside:,} of {counted(boxes, 'annotated box')} exceed their "
                "images: check the order and the unit of the sides in the files"
            )

    def _conversions(self) -> Iterator[str]:
        kinds = dict(self.conversions)
        kept = kinds.pop(EXIF_KEPT, 0)
        if kinds:
            done = ", ".join(f"{count:,} {kind}" for kind, count in by_count(kinds))
            yield f"{self.converted:,} converted: {done}"
        if kept:
            yield f"{kept:,} with an EXIF orientation that readers have to apply"
        if self.annotations:
            yield annotations_text(self.annotations)
        images, objects = self.unmatched
        if images:
            where = " that --where selects" if "--where" in self.left_out else ""
            yield (
                f"{counted(images, 'annotated image')} not among the inputs{where}, with "
                f"{counted(objects, 'object')} (metadata/unmatched_annotations.jsonl)"
            )

    def _work(self) -> str:
        if self.resumed == self.shards:
            return "all shards were complete; the metadata are written again"
        if self.resumed:
            were = "was" if self.resumed == 1 else "were"
            done = f"{counted(self.resumed, 'shard')} {were} complete; the rest "
        else:
            done = ""
        speed = rate(self.written / max(self.seconds - (self.startup_seconds or 0), 1e-9))
        started = (
            " with the start of the workers"
            if self.startup_seconds is None
            else f" ({self.startup_seconds:.1f} s to start)"
        )
        pace = f"{speed} {self.noun}s/s"
        return f"{done}in {_time(self.seconds)}{started}; {pace}; see metadata/report.html"


def _unmatched(build: Mapping[str, Any]) -> tuple[int, int]:
    files = build.get("annotation_files", {}).values()
    return (
        sum(file["unmatched_images"] for file in files),
        sum(file["unmatched_objects"] for file in files),
    )


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)
