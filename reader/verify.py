"""Verifies a data set: reads, parses and decodes its records, and compares the metadata."""

from __future__ import annotations

import time

from imageshards.reader.dataset import open_dataset
from imageshards.reader.verification.checks import Checks, parts_of
from imageshards.reader.verification.decoders import Decoders
from imageshards.reader.verification.findings import Findings
from imageshards.reader.verification.record import Decoder
from imageshards.reader.verification.verdict import Verdict, verdict_of
from imageshards.transforms.shards.cores import cores


def verify(folder: str, sample: int = 0, decoder: Decoder = "build") -> Verdict:
    """Reads a data set and compares it with its metadata, in this process.

    `imageshards.pipeline.operations.verify` does the same on many workers.

    Args:
      folder: the folder of the data set.
      sample: the number of records to check, spread evenly over all shards; 0 for all. The sizes of
        shards and all metadata files are always compared. Shards without random access are always
        read to their end.
      decoder: "build" decodes images as the build did, except that JPEGs of a build with
        `--check header` may have damage that TensorFlow's decoder accepts; "tensorflow" decodes
        them with TensorFlow.

    Raises:
      BuildError: there is no complete data set.
      UsageError: TensorFlow is not installed.

    >>> verify("dataset").problems
    ()
    """
    begin = time.perf_counter()
    dataset = open_dataset(folder)
    checks = Checks.of(dataset, sample, decoder)
    findings = Findings()
    with Decoders(cores()) as executor:
        for part in parts_of(dataset):
            findings.merge(checks.check(part, executor))
    return verdict_of(dataset, checks, findings, time.perf_counter() - begin)
