import json
from pathlib import Path

import pytest
from dataflow_server import JOB_ID, Service, serve
from helpers import imageshards, write_images


@pytest.fixture(scope="module")
def bucket(gcs: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    folder = tmp_path_factory.mktemp("local")
    client = storage.Client(
        project="project", credentials=AnonymousCredentials(),
        client_options={"api_endpoint": gcs["STORAGE_EMULATOR_HOST"]},
    )  # fmt: skip
    objects = client.bucket("bucket")
    for path in write_images(folder, 3, 10):
        objects.blob(f"photos/{path.relative_to(folder)}").upload_from_filename(str(path))
    return gcs


def test_submit(bucket):
    import time
    with serve(Service()) as service:
        t = time.time()
        done = imageshards(
            "build", "--input=gs://bucket/photos", "--output=gs://bucket/out", "--num_shards=2",
            "--runner=DataflowRunner", "--project=my-project", "--region=us-central1",
            "--temp_location=gs://bucket/tmp", f"--dataflow_endpoint={service.endpoint}",
            **bucket,
        )
        print(time.time()-t, done.returncode, done.stdout, done.stderr)
        print(service.requests)
        print(json.dumps(service.job, indent=1)[:6000])
    assert 0
