"""The failure of a job, recorded in the output for the runner's retries and for the next build.

Services such as Dataflow and Flink retry whatever fails, several times. After an error that its
user has to mend, such as a bad manifest, they would list all inputs again for each retry:
the record ends those at once. It also tells a build that has failed from one that is running.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, OutputTaken
from imageshards.transforms.references.plan import Plan
from imageshards.transforms.shards.layout import Layout, read_json, to_json
from imageshards.transforms.storage import StoreError


@dataclass(frozen=True)
class Failures:
    """Records the failure of one job.

    Attributes:
      layout: paths of the data set; None: nothing is recorded.
      job: identifies the job; the next one has another. Empty: the runner does not retry, and
        only a failure of a build that has claimed the output is recorded.
      plan: digest of the plan with which the build has claimed the output; empty: it has not yet.
    """

    layout: Layout | None = None
    job: str = ""
    plan: str = ""

    def of(self, plan: Plan) -> Failures:
        """Returns the failures of this job after it has claimed the output with a plan."""
        return replace(self, plan=plan.digest)

    def check(self) -> None:
        """Raises the recorded error again, if this job has failed."""
        found = self._read() if self.job else {}
        if found and found.get("job") == self.job:
            raise BuildError(str(found.get("reason")))

    def is_of(self, plan: str) -> bool:
        """Returns whether the build that claimed the output with a plan has failed since."""
        return bool(plan) and self._read().get("plan") == plan

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records an error that a retry cannot mend. Stores may work again: theirs are not."""
        try:
            yield
        except (StoreError, OutputTaken):
            raise
        except BuildError as error:
            if self.layout and (self.job or self.plan):
                with suppress(BuildError, OSError):  # the job fails with its own error
                    storage.make_folder(self.layout.state)
                    record = {"job": self.job, "plan": self.plan, "reason": str(error)}
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
        if self.layout:
            storage.delete([self.layout.uri("failure")])

    def _read(self) -> dict[str, Any]:
        return (self.layout and read_json(self.layout.uri("failure"))) or {}
