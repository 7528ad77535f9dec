"""An example DAG that starts when imageshards_dag.py publishes a data set."""

from datetime import datetime
from typing import Any

from airflow.sdk import DAG, Asset, task

photos = Asset("photos")

with DAG(
    "train",
    schedule=[photos],
    start_date=datetime(2026, 1, 1),
    max_active_runs=1,
    tags=["imageshards", "example"],
    default_args={"owner": "research"},
    doc_md="Trains on the published data set. Replace the body of `train` with your training.",
):

    @task
    def train(**context: Any) -> str:
        """Uses the result of `imageshards publish`: uri, records, rejects, splits, report, ..."""
        published = context["triggering_asset_events"][photos][-1].extra
        splits = ", ".join(f"{name} {count:,}" for name, count in published["splits"].items())
        print(f"training on {published['uri']} ({splits}); its report: {published['report']}")
        return published["uri"]

    train()
