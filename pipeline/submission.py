"""A job that goes on without us, at a service."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions


@dataclass(frozen=True)
class Submission:
    """What is known of a job when a service has taken it.

    Attributes:
      output: the folder of the data set, complete when its dataset_info.json is there.
      job: the id that the service gave it; empty if it was only described.
      link: where to look at it; empty if there is no such page.
      template: the file that describes it, with --template_location; else empty.
    """

    output: str
    job: str
    link: str
    template: str = ""

    def to_json(self) -> str:
        """One line for machines."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        if self.template:
            return f"{self.output}\n  the job is described in {self.template}; it was not started"
        # The words are Beam's: Airflow's operators look for them.
        lines = [self.output, f"  Created job with id: [{self.job}]", f"  {self.link}"]
        return "\n".join(filter(str.strip, lines))


def submission_of(result: Any, options: PipelineOptions, output: str) -> Submission | None:
    """What a runner's result says of the job; None if it runs on this machine.

    Args:
      result: what `pipeline.run()` returned.
      options: of the pipeline.
      output: the folder of the data set.
    """
    job_id = getattr(result, "job_id", None)
    if job_id is None:
        return None
    cloud = options.view_as(GoogleCloudOptions)
    if cloud.template_location:
        return Submission(output, "", "", cloud.template_location)
    job = str(job_id() if callable(job_id) else job_id)
    return Submission(
        output,
        job,
        f"https://console.cloud.google.com/dataflow/jobs/{cloud.region}/{job}"
        f"?project={cloud.project}",
    )
