"""An iterable data set of PyTorch, which reads files in order. Imports torch.

A map-style one is `reader.open(...)` itself: a sequence is all that a DataLoader asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.utils.data

from imageshards.reader.random_access import Records


class IterableRecords(torch.utils.data.IterableDataset[Any]):  # type: ignore[misc]
    """Records as a DataLoader streams them, each worker its own share.

    With `persistent_workers=True`, `epoch` does not reach the workers, which keep the one they
    began with. `len(loader)` is that of one worker: of several, each ends with a batch of its own
    that may not be full.

    Attributes:
      epoch: of which the order is a function; set it before each epoch.
    """

    def __init__(
        self, records: Records, *, shuffle: bool = True, seed: int = 0, window: int | None = None
    ) -> None:
        """Arguments are those of `Records.shuffled`.

        Args:
          records: what `reader.open` gives, or a host's `share` of it.
          shuffle: in another order each epoch; else in that of the files.
          seed: of the shuffling.
          window: records that each worker shuffles together.
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
        """The share of this worker, or all."""
        worker = torch.utils.data.get_worker_info()
        records = self._records
        if worker is not None:
            workers = min(worker.num_workers, len(records))
            if worker.id >= workers:  # there are fewer records than workers
                return iter(())
            records = records.share(workers, worker.id)
        if self._shuffle:
            return records.shuffled(self._seed, self.epoch, self._window)
        return iter(records)
