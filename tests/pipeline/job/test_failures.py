"""The reason of a failure is found however a runner reports it."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from imageshards.pipeline.job.failures import JobEnded, job_error, reason_in
from imageshards.transforms.elements import BuildError


def errors_of_ours(kind: type[BuildError] = BuildError) -> Iterator[type[BuildError]]:
    """A class of errors, and all classes below it."""
    yield kind
    for below in kind.__subclasses__():
        yield from errors_of_ours(below)


@pytest.mark.parametrize("kind", errors_of_ours())
def test_an_error_of_ours_is_recognised_in_a_traceback(kind: type[BuildError]):
    name = f"{kind.__module__}.{kind.__qualname__}"
    text = (
        f'Traceback (most recent call last):\n  File "x.py", line 3\n{name}: 9 of 9 images were '
        "rejected [while running 'Finish-ptransform-12']\n\nThe above exception ..."
    )
    assert reason_in(text) == "9 of 9 images were rejected"
    assert str(job_error(RuntimeError(text))) == "9 of 9 images were rejected"
    assert str(job_error(kind("no image"))) == "no image"


def test_an_error_of_somebody_else_is_the_last_cause():
    cause = (
        "imageshards.transforms.records.container.CorruptRecord: byte 9: breaks off\n\nThe above "
        "exception was the direct cause of the following exception:\n\nTraceback\n"
        "imageshards.transforms.elements.BuildError: a.tfrecord: byte 9: breaks off\n"
    )
    other = "imageshards.transforms.elements.BuildError: b.tfrecord: no such file\n"
    assert reason_in(cause + other) == "a.tfrecord: byte 9: breaks off"
    assert reason_in(other + cause) == "b.tfrecord: no such file"
    assert reason_in("docker.errors.BuildError: no image") == ""
    error = job_error(RuntimeError("a\nValueError: no such thing [while running 'Read']"), "LINK")
    assert str(error).startswith("the job failed: ValueError: no such thing; LINK (")
    assert "RuntimeError: a" in error.details


def test_the_state_of_a_job_that_did_not_fail_is_reported():
    assert str(job_error(JobEnded("CANCELLED"), "LINK")) == "the job was cancelled; LINK"
    error = RuntimeError("Dataflow pipeline failed. State: UPDATED, Error:\nNone")
    assert str(job_error(error)) == "the job was updated"


def test_a_killed_worker_is_recognised():
    assert "memory ran out" in reason_in("RuntimeError: Channel closed prematurely.")


def test_an_interrupted_worker_interrupts_the_command():
    with pytest.raises(KeyboardInterrupt):
        job_error(RuntimeError("KeyboardInterrupt: stop"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x\nimageshards.transforms.elements.BuildError: bad\n", "bad"),
        ("Traceback\nValueError: odd\nmore\n", "ValueError: odd"),
        ("The worker lost contact\n\n", "The worker lost contact"),
        ("", ""),
    ],
)
def test_schedulers_get_the_reason_from_a_program(text: str, reason: str):
    done = subprocess.run(
        [sys.executable, "-m", "imageshards.pipeline.job.failures"],
        input=text, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (reason, "")
