"""Computes the order of a split from its files, the number of its records and their size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b

from imageshards.reader.files import RecordFile, fingerprints
from imageshards.reader.options import ReadOptions
from imageshards.reader.ordering.global_order import (
    GlobalOrder,
    Remainder,
    block_and_run,
    host_slots,
)
from imageshards.reader.splits import Span
from imageshards.transforms.elements import UsageError, counted


def fingerprint(files: Sequence[RecordFile], spans: Sequence[Span]) -> str:
    """Returns a digest of the records of a split and of their order in the files.

    It is equal for copies of the files, and it differs if files of the same names have other
    contents.
    """
    used = [files[number] for number in sorted({span.file for span in spans})]
    names = [file.uri.rpartition("/")[2] for file in used]
    parts = [(span.file, span.begin, span.end) for span in spans]
    text = json.dumps([names, fingerprints(used), parts])
    return blake2b(text.encode(), digest_size=6).hexdigest()


def order_of(
    files: Sequence[RecordFile],
    spans: Sequence[Span],
    options: ReadOptions,
    permuted: bool = False,
) -> GlobalOrder:
    """Returns the order of the records of a split.

    Record i of the order is record i of the spans, one after the other.

    Args:
      files: the files to which the spans refer.
      spans: the records of the split.
      options: the batch of a host, the number of hosts, the seed, the window and the remainder.
      permuted: whether an epoch is a permutation of single records, also of files that are read
        faster sequentially.

    Raises:
      UsageError: there are fewer records than hosts, or than a batch has, or there is no such host.
    """
    records = sum(span.records for span in spans)
    batch = global_batch_of(options)
    if records < options.num_hosts:
        raise UsageError(
            f"{counted(records, 'record')} for {options.num_hosts:,} hosts: use fewer hosts"
        )
    first = spans[0]
    file = files[first.file]
    mean = float(file.index.sizes[first.begin : first.end].mean())
    lanes = 0
    block, run = block_and_run(records, mean, batch, options.window)
    if permuted or file.container.permuted:
        block = 1
    if not file.container.random_access:
        lanes, block = 1, -(-records // len(spans))
        # Whole batches, so that the files of a run are decompressed for its steps alone.
        run = max(run, -(-block // batch)) * batch
    return GlobalOrder(
        records, batch, options.seed, bool(options.shuffle), block, run, lanes,
        remainder_of(options), fingerprint(files, spans),
    )  # fmt: skip


def global_batch_of(options: ReadOptions) -> int:
    """Returns the number of records of a global batch.

    Raises:
      UsageError: there is no such host.
    """
    batch = (options.batch_size or 1) * options.num_hosts
    host_slots(batch, options.host, options.num_hosts)
    return batch


def remainder_of(options: ReadOptions) -> Remainder:
    """Returns what happens to the records of an epoch that fill no global batch."""
    drop = options.repeat if options.drop_remainder is None else options.drop_remainder
    if drop:
        return "drop"
    # Where epochs repeat, all batches have one shape.
    return "pad" if options.repeat else "keep"
