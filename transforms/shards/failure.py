"""The failure of a job, recorded in the output so that a runner's retries of it end at once.

Services such as Dataflow and Flink retry whatever fails, several times. After an error that its
user has to mend, such as a bad manifest, they would list all inputs again for each retry.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError
from imageshards.transforms.shards.layout import Layout, read_json, to_json
from imageshards.transforms.storage import StoreError


@dataclass(frozen=True)
class Failures:
    """Records the failure of one job.

    Attributes:
      layout: paths of the data set.
      job: identifies the job; the next one has another. Empty: the runner does not retry, and
        nothing is recorded.
    """

    layout: Layout
    job: str = ""

    def check(self) -> None:
        """Raises the recorded error again, if this job has failed."""
        found = read_json(self.layout.uri("failure")) if self.job else None
        if found and found.get("job") == self.job:
            raise BuildError(str(found.get("reason")))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records an error that a retry cannot mend. Stores may work again: theirs are not."""
        try:
            yield
        except StoreError:
            raise
        except BuildError as error:
            if self.job:
                with suppress(BuildError, OSError):  # the job fails with its own error
                    storage.make_folder(self.layout.state)
                    record = {"job": self.job, "reason": str(error)}
                    self.layout.write(self.layout.uri("failure"), to_json(record))
            raise

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Raises the recorded error if this job has failed; records an error of the block."""
        self.check()
        with self.recording():
            yield

    def clear(self) -> None:
        """Deletes the record of an earlier job."""
        storage.delete([self.layout.uri("failure")])
