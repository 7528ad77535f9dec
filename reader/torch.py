"""An iterable data set for PyTorch that reads files in order. This module imports torch.

`reader.open(...)` itself is a map-style data set: a DataLoader accepts any sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.utils.data

from imageshards.reader.random_access import Records


class IterableRecords(torch.utils.data.IterableDataset[Any]):  # type: ignore[misc]
    """Records that a DataLoader streams; each of its workers reads its own share.

    With `persistent_workers=True`, workers keep the `epoch` with which they started. `len(loader)`
    assumes a single worker: with several, each ends with a batch that may be incomplete.

    Attributes:
      epoch: selects the order of the records; set it before each epoch.
    """

    def __init__(
        self, records: Records, *, shuffle: bool = True, seed: int = 0, window: int | None = None
    ) -> None:
        """Reads `records` in the order of `Records.shuffled`.

        Args:
          records: the result of `reader.open`, or of its `share` for one host.
          shuffle: use another order in each epoch; False: the order of the files.
          seed: the seed of the shuffling.
          window: the number of records that each worker shuffles together.
        """
        super().__init__()
        self.epoch = 0
        self._records = records
        self._shuffle = shuffle
        self._seed = seed
        self._window = window

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Any]:
        """Iterates over the share of this worker, or over all records without workers."""
        worker = torch.utils.data.get_worker_info()
        records = self._records
        if worker is not None:
            workers = min(worker.num_workers, len(records))
            if worker.id >= workers:  # there are more workers than records
                return iter(())
            records = records.share(workers, worker.id)
        if self._shuffle:
            return records.shuffled(self._seed, self.epoch, self._window)
        return iter(records)
