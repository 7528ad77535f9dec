"""The result of `verify`, and what to do about problems."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from imageshards.reader.dataset import Dataset
from imageshards.reader.verification.checks import Checks
from imageshards.reader.verification.findings import Findings
from imageshards.transforms.elements import counted, human_bytes
from imageshards.transforms.images import validate


@dataclass(frozen=True)
class Verdict:
    """The result of `verify`. The data set is sound if there are no problems.

    Attributes:
      output: the folder of the data set.
      shards: the number of shards.
      records: the number of records that were checked and are sound.
      bytes: the size of all existing shards.
      seconds: wall time.
      problems: a line for each of the first problems, and one with the number of the others.
      rejects: the number of images that the build rejected.
      report: the path of report.html.
      sample: the number of records that `verify` was to check; 0 for all.
      damaged: the number of problems that are damage to existing files.
      missing: the number of files that do not exist.
      unsuitable: the number of undamaged records whose images do not decode, or whose boxes are
        not within the image.
      bad_boxes: how many of them have boxes that are not within the image.
      level: how images were decoded: "full", or "lenient" if the build had `--check header`.
      resharded_from: the data set from which `reshard` copied this one; empty if a build wrote it.
    """

    output: str
    shards: int
    records: int
    bytes: int
    seconds: float
    problems: tuple[str, ...]
    rejects: int
    report: str
    sample: int = 0
    damaged: int = 0
    missing: int = 0
    unsuitable: int = 0
    bad_boxes: int = 0
    level: validate.Level = "full"
    resharded_from: str = ""

    def to_json(self) -> str:
        """Returns one line of JSON."""
        return json.dumps({**asdict(self), "seconds": round(self.seconds, 3)})

    def _advice(self) -> Iterator[str]:
        again = "run the build command again to rewrite them"
        if self.resharded_from and (self.damaged or self.missing):
            yield (
                "delete dataset_info.json and the damaged files, and run the reshard command "
                f"again to copy them from {self.resharded_from}"
            )
        elif self.damaged:
            yield f"delete the damaged files and {again}"
        elif self.missing:
            yield again
        if self.bad_boxes:
            yield (
                "the boxes that are not within their images are what the build wrote: build the "
                "data set again, in a new folder, to clip or reject them"
            )
        if self.unsuitable > self.bad_boxes:
            images = "the images that do not decode are what the build wrote"
            if self.level == "full":
                yield f"{images}: build the data set again, in a new folder, to check them again"
            else:
                yield f"{images} with --check header: build with --check full to reject them"

    def __str__(self) -> str:
        if self.problems:
            found = counted(self.damaged + self.missing + self.unsuitable, "problem")
            return (
                f"{self.output}: {found}; {counted(self.records, 'sound record')} "
                f"({'; '.join(self._advice())})"
            )
        checked = "a sample" if self.sample else "all of them"
        return (
            f"{self.output}: no problems; {counted(self.records, 'record')} in "
            f"{counted(self.shards, 'shard')}, {human_bytes(self.bytes)}, "
            f"{checked} read, parsed and decoded in {self.seconds:.1f} s"
        )


def verdict_of(dataset: Dataset, checks: Checks, findings: Findings, seconds: float) -> Verdict:
    """Returns the verdict on a data set, from the findings in all parts."""
    return Verdict(
        dataset.layout.root, len(dataset.shards), findings.records, findings.bytes,
        seconds, findings.lines, dataset.counts["rejects"], dataset.layout.report, checks.sample,
        findings.damaged, findings.missing, findings.unsuitable, findings.bad_boxes, checks.level,
        dataset.build.get("resharded", {}).get("from", ""),
    )  # fmt: skip
