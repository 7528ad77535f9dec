"""A job that a service runs after the command has ended."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions


@dataclass(frozen=True)
class Submission:
    """A job that a service has accepted.

    Attributes:
      output: the folder of the data set; it is complete when dataset_info.json exists.
      job: the id of the job; empty with --template_location, which starts no job.
      link: a web page about the job, or empty.
      template: with --template_location, the file that describes the job; otherwise empty.
    """

    output: str
    job: str
    link: str
    template: str = ""

    def to_json(self) -> str:
        """Returns one line of JSON."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        if self.template:
            return f"{self.output}\n  the job was written to {self.template}; it was not started"
        # This is Beam's wording, for which Airflow's operators search the log.
        lines = [self.output, f"  Created job with id: [{self.job}]", f"  {self.link}"]
        return "\n".join(filter(str.strip, lines))


def submission_of(result: Any, options: PipelineOptions, output: str) -> Submission | None:
    """Returns the job of a service; None if the pipeline runs on this machine.

    Args:
      result: the value that `pipeline.run()` returned.
      options: the options of the pipeline.
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
