"""Checks and completes the arguments of Beam for --runner=DataflowRunner."""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from imageshards.launch.dataflow.package import NAME, write_wheel
from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.metadata import version
from imageshards.pipeline.options.parser import Parser
from imageshards.transforms import extras, storage
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.storage.gcs_auth import IMPERSONATE

_NEEDED = {
    "project": "the project that is billed",
    "region": "the region of the job and of the buckets, such as us-central1",
    "temp_location": "a folder for temporary files of the job, such as gs://BUCKET/tmp",
}
_OPTIONAL = (
    "staging_location", "job_name", "setup_file", "sdk_container_image",
    "number_of_worker_harness_threads", "impersonate_service_account",
)  # fmt: skip
_HARNESS_THREADS = 2
"""Shards that the process of each vCPU writes concurrently, each with its own concurrent reads.
With Beam's default of 12, hundreds of images would wait in memory for one core to check them."""
_JOB_NAME_LENGTH = 63
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_REQUEST_SECONDS = 10


def completed(arguments: Sequence[str], spec: BuildSpec) -> AbstractContextManager[list[str]]:
    """Returns `completed_for` of a build."""
    inputs, output = spec.options.inputs.input, spec.options.output.output
    uris = [*(("--input", uri) for uri in inputs), ("--output", output)]
    return completed_for(arguments, uris, spec.dataset_name)


@contextmanager
def completed_for(
    arguments: Sequence[str], uris: Sequence[tuple[str, str]], name: str
) -> Iterator[list[str]]:
    """Yields Beam's arguments with missing ones added; contacts no service.

    A build's job is named after the data set, so that the service rejects a second job of the same
    build. Unless an image, a setup file or a package installs imageshards on the workers, a wheel
    of the running version is added. It exists until the context ends.

    Args:
      arguments: Beam's arguments from the user.
      uris: (argument, value) of the files and folders that workers must be able to reach.
      name: the name of the job, after a prefix.

    Raises:
      UsageError: a required argument or package is missing, or workers could not reach a path.
    """
    extras.require("dataflow", "--runner=DataflowRunner")
    given = _parse(arguments)
    for option, what in _NEEDED.items():
        if not getattr(given, option):
            raise UsageError(f"--{option} is missing: --runner=DataflowRunner requires {what}")
    for option in ("temp_location", "staging_location"):
        _check_bucket(option, getattr(given, option))
    for argument, uri in uris:
        if storage.is_local(storage.normalize(uri)):
            raise UsageError(
                f"{argument} {uri}: Dataflow's workers cannot read files of this machine; use a "
                "URI such as gs://BUCKET/FOLDER"
            )
        if not storage.beam_writes(uri):
            raise UsageError(
                f"{argument} {uri}: Dataflow's workers have no credentials for it; copy it to "
                "gs://BUCKET/FOLDER, or run the command on a machine"
            )
    if given.setup_file and not os.path.isfile(given.setup_file):
        raise UsageError(f"--setup_file {given.setup_file}: no such file")
    temp = storage.folder_uri(given.temp_location)
    added = [f"--labels={NAME}-version={re.sub('[^a-z0-9]', '-', version().lower())}"]
    if temp.count("/") == 2:  # Beam accepts a bucket as a folder only with a slash
        added.append(f"--temp_location={storage.join(temp, '')}")
    if not given.staging_location:
        added.append(f"--staging_location={storage.join(temp, 'staging')}")
    if not given.job_name:
        added.append(f"--job_name={_job_name(name)}")
    if not given.number_of_worker_harness_threads:
        added.append(f"--number_of_worker_harness_threads={_HARNESS_THREADS}")
    with tempfile.TemporaryDirectory() as folder:
        if not _has_package(given):
            added.append(f"--extra_package={write_wheel(Path(folder))}")
        yield [*arguments, *added]


def check_access(arguments: Sequence[str]) -> None:
    """Checks the Google credentials and the buckets of the job's temporary files, within seconds.

    Without this check Beam and its clients search for credentials repeatedly and continue without
    them, and Beam tries for ten minutes to write to a bucket that does not exist.

    Raises:
      UsageError: there are no valid credentials, a bucket does not exist, or the credentials do
        not permit access to it.
      BuildError: a bucket cannot be reached.
    """
    # Elsewhere than on Google's machines, the search for a metadata server takes 9 s by default.
    os.environ.setdefault("GCE_METADATA_TIMEOUT", "1")
    os.environ.setdefault("GCE_METADATA_DETECT_RETRIES", "2")
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage as cloud_storage

    given = _parse(arguments)
    credentials = AnonymousCredentials() if given.no_auth else _credentials()  # type: ignore[no-untyped-call]
    if given.impersonate_service_account:
        # The impersonated account accesses the buckets, also for imageshards itself.
        os.environ[IMPERSONATE] = given.impersonate_service_account
        return
    client = cloud_storage.Client(project=given.project, credentials=credentials)
    for option in ("temp_location", "staging_location"):
        _check_exists(client, option, getattr(given, option))


def _credentials() -> Any:
    import google.auth
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of quota projects
            credentials, _ = google.auth.default(scopes=[_SCOPE])
        if not credentials.valid:
            credentials.refresh(partial(Request(), timeout=_REQUEST_SECONDS))  # type: ignore[no-untyped-call]
    except GoogleAuthError as error:
        reason = re.split(r"\.\s|\n", str(error.args[0] if error.args else error))[0].rstrip(".")
        raise UsageError(
            f"no Google credentials: {reason}; run `gcloud auth application-default login`, or set "
            "GOOGLE_APPLICATION_CREDENTIALS to the file of a service account"
        ) from error
    return credentials


def _check_exists(client: Any, option: str, uri: str) -> None:
    from google.api_core.exceptions import Forbidden, NotFound, Unauthorized
    from google.cloud.storage.retry import DEFAULT_RETRY

    bucket = uri.split("/")[2]
    retry = DEFAULT_RETRY.with_timeout(2 * _REQUEST_SECONDS)
    try:
        client.get_bucket(bucket, timeout=_REQUEST_SECONDS, retry=retry)
    except NotFound as error:
        raise UsageError(f"--{option} {uri}: bucket {bucket!r} does not exist") from error
    except (Forbidden, Unauthorized) as error:
        raise UsageError(
            f"--{option} {uri}: the credentials do not permit access to bucket {bucket!r}: grant "
            "roles/storage.legacyBucketReader, and roles/storage.objectAdmin for writing"
        ) from error
    except Exception as error:
        raise BuildError(f"--{option} {uri}: cannot be reached: {error}") from error


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="imageshards build", add_help=False, allow_abbrev=False)
    for option in (*_NEEDED, *_OPTIONAL):
        parser.add_argument(f"--{option}", default="")
    parser.add_argument("--worker_harness_container_image", dest="sdk_container_image")
    parser.add_argument("--extra_package", "--extra_packages", action="append", default=[])
    parser.add_argument("--no_auth", action="store_true")
    return parser.parse_known_args(arguments)[0]


def _check_bucket(option: str, uri: str) -> None:
    if uri and not re.match(r"gs://[a-z0-9][-_.a-z0-9]+[a-z0-9](/|$)", uri):
        raise UsageError(f"invalid --{option} {uri!r}: expected gs://BUCKET/FOLDER")


def _has_package(given: argparse.Namespace) -> bool:
    packages = (os.path.basename(package) for package in given.extra_package)
    return bool(
        given.sdk_container_image
        or given.setup_file
        or any(package.startswith(NAME) for package in packages)
    )


def _job_name(name: str) -> str:
    """Returns a name that the service accepts: lower-case letters, digits and inner hyphens."""
    letters = re.sub("[^a-z0-9]+", "-", name.lower())
    return f"{NAME}-{letters}"[:_JOB_NAME_LENGTH].rstrip("-")
