"""What a build would do (`--dry_run`): the first steps of its graph, up to the plan.

The steps run in this process, whichever runner the build would use. They read a sample of the
images, and write only below the system's folder for temporary files.
"""

from __future__ import annotations

import json
import pickle
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsIter, AsSingleton

from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.claim import failed_without_shard, other_build_in
from imageshards.pipeline.graph import choose, read
from imageshards.pipeline.job.failures import job_error
from imageshards.pipeline.job.preflight import prepare
from imageshards.pipeline.job.progress import duration
from imageshards.pipeline.job.sample import ReadSample, read_sample, sampled
from imageshards.pipeline.missing import suggestion_for
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.verdict import truncated
from imageshards.reader.report.page import by_count, left_out_text
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, counted, human_bytes, to_text
from imageshards.transforms.inputs.kind import InputKind
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.plan import Plan
from imageshards.transforms.shuffle import Group, ShuffleReferences

_CLASSES_SHOWN = 8
# References are in random order, so that some of each bucket are a random sample.
_UNSIZED_PER_BUCKET = 4
_LOOKED_AT = 100

_Counts = Counter[tuple[str, str, str]]
"""("label", split, text) or ("reject", split, error type) -> references; ("unsized", URI, name) of
some files whose size the listing does not have, such as those of a manifest."""


@dataclass(frozen=True, kw_only=True)
class SplitForecast:
    """One split of a planned data set.

    Attributes:
      images: references, with those that will be rejected.
      bytes: of the images that may become records; an estimate if sizes are unknown.
      shards: number of shards.
      records_per_shard: smallest and largest number of records of a shard, before rejects.
      classes: name of a class -> images; empty without labels.
    """

    images: int
    bytes: int
    shards: int
    records_per_shard: tuple[int, int]
    classes: dict[str, int]


@dataclass(frozen=True)
class Estimate:
    """The time and the cost of a build.

    Attributes:
      seconds: wall time.
      usd: dollars, without storage; None where there is no price.
      workers: what runs the build, for people.
    """

    seconds: float
    usd: float | None
    workers: str

    def __str__(self) -> str:
        cost = "" if self.usd is None else f", ${self.usd:,.2f}"
        time = duration(self.seconds) if self.seconds >= 1 else "less than a second"
        return f"estimate: {time}{cost}, {self.workers}"


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The result of `--dry_run`.

    Attributes:
      output: the folder of the data set.
      found: what the output holds now, and what the build would do with it.
      inputs: references listed.
      duplicates: references that repeat the URI of another one.
      passed_over: files that are skipped because their names do not have the suffix of an image.
      rejects: images that the listing shows to be rejects; reading the images may find others.
      errors: type of error -> such images.
      splits: name -> split.
      notes: what the build would choose automatically, and why.
      left_out: option that leaves out references -> number of them.
      sample: what reading some of the images showed; None: none could be read.
      estimate: the time and the cost; None: not known.
      would_fail: why the build would fail, as far as the listing shows it; empty if it would not.
      noun: what a record is: "image" or "text".
    """

    output: str
    found: str
    inputs: int
    duplicates: int
    passed_over: int
    rejects: int
    errors: dict[str, int]
    splits: dict[str, SplitForecast]
    notes: tuple[str, ...]
    left_out: dict[str, int] = field(default_factory=dict)
    sample: ReadSample | None = None
    estimate: Estimate | None = None
    would_fail: tuple[str, ...] = ()
    noun: str = "image"

    def to_json(self) -> str:
        """Returns one line of JSON."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        lines = [f"{self.output} (dry run: nothing was written)", f"  {self.found}"]
        images = sum(split.images for split in self.splits.values())
        size = human_bytes(sum(split.bytes for split in self.splits.values()))
        shards = counted(sum(split.shards for split in self.splits.values()), "shard")
        lines.append(f"  {counted(images, self.noun)}, {size}, for {shards}")
        lines += [f"  {name}: {self._split(split)}" for name, split in self.splits.items()]
        errors = ", ".join(f"{count:,} {error}" for error, count in by_count(self.errors))
        lines.append(
            f"  {counted(self.rejects, 'reject')} known before reading{errors and f' ({errors})'}, "
            f"{counted(self.duplicates, 'duplicate')}, {counted(self.passed_over, 'file')} skipped"
            f"{left_out_text(self.left_out)}"
        )
        if self.sample:
            lines.append(f"  {self.sample.note(self.noun)}")
        lines += [f"  {note}" for note in self.notes]
        if self.estimate:
            lines.append(f"  {self.estimate}")
        lines += [f"  WOULD FAIL: {reason}" for reason in self.would_fail]
        return "\n".join(lines)

    def _split(self, split: SplitForecast) -> str:
        least, most = split.records_per_shard
        each = f"{least:,}" if least == most else f"{least:,} or {most:,}"
        text = (
            f"{counted(split.images, self.noun)}, {human_bytes(split.bytes)}, "
            f"{counted(split.shards, 'shard')} of {each}"
        )
        if split.classes:
            ordered = by_count(split.classes)
            shown = ", ".join(f"{name} {count:,}" for name, count in ordered[:_CLASSES_SHOWN])
            more = ", ..." if len(ordered) > _CLASSES_SHOWN else ""
            text += f"; {counted(len(ordered), 'class')}: {shown}{more}"
        return text


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """Files that a manifest names and the listing has not looked at: whether some of them exist.

    Attributes:
      looked_at: number of files looked at.
      missing: (URI, name) of those that do not exist.
      empty: number of those without a byte.
      on_web: whether others are on web servers, which are not asked.
    """

    looked_at: int
    missing: Sequence[tuple[str, str]]
    empty: int
    on_web: bool

    @staticmethod
    def of(files: Sequence[tuple[str, str]]) -> _Sample:
        """Looks at some of the files, given as (URI, name)."""
        listable = sorted(file for file in files if storage.can_list(file[0]))
        some = listable[:: -(-len(listable) // _LOOKED_AT) or 1]
        sizes = [size for size, _ in storage.stats([uri for uri, _ in some])]
        return _Sample(
            looked_at=len(some),
            missing=[file for file, size in zip(some, sizes, strict=True) if size < 0],
            empty=sizes.count(0),
            on_web=len(listable) < len(files),
        )

    def notes(self, spec: BuildSpec) -> Iterator[str]:
        if self.looked_at and not self._would_fail(spec):
            yield self._text(spec)
        if self.on_web:
            yield f"{spec.schema.noun}s on web servers were not looked at"

    def failures(self, spec: BuildSpec) -> Iterator[str]:
        if self._would_fail(spec):
            advice = suggestion_for(self.missing, spec.options.inputs.template_column)
            yield f"{self._text(spec)}{advice and '; '}{advice}"

    def _would_fail(self, spec: BuildSpec) -> bool:
        # It is a sample: a few missing files do not show that there are too many.
        broken = len(self.missing) + self.empty
        share = max(spec.options.output.max_reject_fraction, 0.5)
        return broken > share * self.looked_at

    def _text(self, spec: BuildSpec) -> str:
        are = "is" if len(self.missing) == 1 else "are"
        empty = f", {self.empty:,} empty" if self.empty else ""
        looked_at = counted(self.looked_at, spec.schema.noun)
        return f"{len(self.missing):,} of {looked_at} looked at {are} missing{empty}"


def forecast(options: BuildOptions, *, reads_local_files: bool = True) -> Forecast:
    """Lists and shuffles the references of a build, and plans its shards.

    Args:
      options: the options of the build.
      reads_local_files: whether the workers of the build could read the files of this machine.

    Raises:
      UsageError: the options are wrong.
      BuildError: the build would not start.
      JobError: listing failed, or the build would fail when it plans.
    """
    spec, sources = prepare(options, reads_local_files=reads_local_files)
    try:
        plan, counts, read_images = _plan(spec, sources)
    except Exception as error:
        raise job_error(error) from error
    found = _found(spec, plan)
    sample = _Sample.of([(uri, name) for kind, uri, name in counts if kind == "unsized"])
    errors: Counter[str] = Counter()
    rejects: Counter[str] = Counter()
    classes: dict[str, Counter[str]] = {name: Counter() for name in plan.splits}
    for (kind, split, text), count in sorted(counts.items()):
        if kind == "reject":
            errors[text] += count
            rejects[split] += count
        elif text in plan.labels:
            classes[split][plan.classes[plan.labels[text]]] += count
    return Forecast(
        output=spec.layout.root,
        found=found,
        inputs=plan.listed,
        duplicates=plan.duplicates,
        passed_over=plan.passed_over,
        rejects=errors.total(),
        errors=dict(errors),
        splits={
            name: SplitForecast(
                images=split.images,
                bytes=split.bytes,
                shards=split.num_shards,
                records_per_shard=(
                    split.images // split.num_shards,
                    -(-split.images // split.num_shards),
                ),
                classes=dict(sorted(classes[name].items())),
            )
            for name, split in plan.splits.items()
        },
        notes=(*plan.notes, *_notes(spec), *sample.notes(spec)),
        left_out=dict(plan.left_out),
        sample=read_images,
        would_fail=(
            *_failures(spec, plan, errors, rejects),
            *(list(sample.failures(spec)) or _of_sample(spec, read_images)),
        ),
        noun=spec.schema.noun,
    )


def _plan(spec: BuildSpec, sources: list[InputKind]) -> tuple[Plan, _Counts, ReadSample | None]:
    """Runs the graph of a build up to its plan, and reads a sample of the images."""
    with tempfile.TemporaryDirectory(prefix="imageshards-") as folder:
        result = Path(folder, "result")
        # Compressed tars are unpacked there too.
        listing = replace(spec.listing, scratch=folder)
        with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as root:
            references = read(root, sources, spec, listing)
            chosen = choose(references, spec)
            groups, plan = chosen | "Shuffle" >> ShuffleReferences(spec.planner)
            counts = (
                groups
                | "Count" >> beam.Map(_count, spec.options.images.max_bytes)
                | "Sum" >> beam.CombineGlobally(_sum)
            )
            some = groups | "Sample" >> beam.Map(sampled, spec.options.images.max_bytes)
            _ = (
                root
                | "Once" >> beam.Impulse()
                | "Keep"
                >> beam.Map(
                    _keep, AsSingleton(plan), AsSingleton(counts), AsIter(some), str(result)
                )
            )
        plan, counts, some = pickle.loads(result.read_bytes())
        # Before the folder with unpacked tars is deleted.
        return plan, counts, read_sample(spec, plan, some)


def _count(group: Group, max_bytes: int) -> _Counts:
    found: _Counts = Counter()
    for split, refs in group[1].items():
        acceptable = refs.acceptable(max_bytes)
        labels = refs.rows.column("label").filter(pa.array(acceptable)).value_counts()
        for entry in labels.to_pylist():
            if entry["values"] is not None:
                found["label", split, to_text(entry["values"])] += entry["counts"]
        problems = refs.problems
        for problem in problems.values():
            found["reject", split, problem.error] += 1
        found["reject", split, "TooLarge"] += int((~acceptable).sum()) - len(problems)
        unsized = refs.take(np.flatnonzero(acceptable & (refs.sizes < 0))[:_UNSIZED_PER_BUCKET])
        for uri, name in zip(unsized.uris, unsized.names, strict=True):
            found["unsized", uri, name] += 1
    return +found


def _sum(counts: Iterable[_Counts]) -> _Counts:
    total: _Counts = Counter()
    for found in counts:
        total.update(found)
    return total


def _keep(
    _: bytes,
    plan: Plan,
    counts: Mapping[tuple[str, str, str], int],
    some: Iterable[tuple[int, list[RefBatch]]],
    path: str,
) -> None:
    Path(path).write_bytes(pickle.dumps((plan, counts, list(some))))


def _found(spec: BuildSpec, plan: Plan) -> str:
    """What the output holds.

    Raises:
      BuildError: it holds another build, so that this one would be refused.
    """
    layout = spec.layout
    other = other_build_in(spec, plan.digest)
    if other and not (spec.options.output.overwrite or failed_without_shard(spec)):
        raise BuildError(other)
    if other:
        return "the output holds another build, which would be replaced"
    if storage.exists(layout.dataset_info):
        return "the output holds this build: only shards of changed images would be written"
    if storage.exists(layout.plan):
        return "the output holds a part of this build, which would be resumed"
    return "a new data set"


def _notes(spec: BuildSpec) -> Iterator[str]:
    if spec.options.images.dedupe == "pixels":
        yield "--dedupe pixels finds duplicates only when it reads the images"


def _of_sample(spec: BuildSpec, sample: ReadSample | None) -> Iterator[str]:
    # It is a sample: a few rejects do not show that there are too many.
    share = max(spec.options.output.max_reject_fraction, 0.5)
    # Without any image, the build fails whatever the limit is.
    if sample and (sample.rejected > share * sample.images or sample.rejected == sample.images):
        yield sample.note(spec.schema.noun)


def _failures(
    spec: BuildSpec, plan: Plan, errors: Counter[str], rejects: Counter[str]
) -> Iterator[str]:
    if reason := truncated(errors, spec):
        yield reason
    most = spec.options.output.max_reject_fraction
    if errors.total() > most * plan.images:
        images = counted(plan.images, spec.schema.noun)
        yield (
            f"{errors.total():,} of {images} ({errors.total() / plan.images:.1%}) would be "
            f"rejected, more than --max_reject_fraction {most:g}"
        )
        return
    for name, split in plan.splits.items():
        if rejects[name] == split.images:
            yield f"every {spec.schema.noun} of the split {name!r} would be rejected"
