"""The order of the records of a split: of its files, their number and the size of their records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b

from imageshards.reader.files import RecordFile, fingerprints
from imageshards.reader.options import ReadOptions
from imageshards.reader.ordering.global_order import GlobalOrder, Remainder, block_and_run
from imageshards.reader.splits import Span


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
    remainder: Remainder,
) -> GlobalOrder:
    """Returns the order of the records of a split.

    Record i of the order is record i of the spans, one after the other.

    Args:
      files: the files to which the spans refer.
      spans: the records of the split.
      options: the batch of a host, the number of hosts, the seed and the window.
      remainder: see `GlobalOrder`.

    Raises:
      UsageError: there are fewer records than the order needs.
    """
    records = sum(span.records for span in spans)
    batch = (options.batch_size or 1) * options.num_hosts
    first = spans[0]
    sizes = files[first.file].index[first.begin : first.end, 1]
    block, run = block_and_run(records, float(sizes.mean()), batch, options.window)
    return GlobalOrder(
        records, batch, options.seed, bool(options.shuffle), block, run, remainder,
        fingerprint(files, spans),
    )  # fmt: skip
