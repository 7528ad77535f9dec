"""The retry policy of object storage, and the errors that its failures become."""

import subprocess
import sys
import time

import pytest

from imageshards.transforms.storage.protocol import StoreError
from imageshards.transforms.storage.retry import Action, Failure, RetryPolicy, translate

QUICK = RetryPolicy(first_wait=0.0)


def refused(uri: str, action: Action, failure: Failure) -> StoreError:
    return StoreError(f"{uri}: {action}: {failure}")


@pytest.mark.parametrize("action", ["read", "list", "delete", "write"])
def test_only_what_is_written_is_resumed(action: Action):
    message = str(translate("gs://bucket/a", action, Failure("busy", 503, retry=True), refused))
    assert "; run the same command again" in message
    assert message.endswith(" to resume") == (action == "write")


def attempts(policy: RetryPolicy, *failures: Failure) -> int:
    """Calls a function that fails so, and returns how often it was called."""
    left, calls = list(failures), 0

    def attempt() -> int:
        nonlocal calls
        calls += 1
        if left:
            raise left.pop(0)
        return calls

    try:
        return policy.call(attempt)
    except Failure:
        return -calls


@pytest.mark.parametrize("status", [0, 408, 429, 500, 502, 503, 504])
def test_transient_failures_are_retried(status: int):
    assert attempts(QUICK, Failure("", status), Failure("", status)) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 412, 501])
def test_permanent_failures_are_not_retried(status: int):
    assert attempts(QUICK, Failure("", status)) == -1


def test_no_attempt_begins_after_the_time_is_over():
    assert attempts(RetryPolicy(total=-1.0), Failure("")) == -1
    offline = Failure("", cause="offline")
    assert attempts(RetryPolicy(offline=-1.0), offline) == -1
    assert attempts(RetryPolicy(first_wait=0.0, offline=-1.0), Failure("")) == 2


@pytest.mark.parametrize("status", [429, 503])
def test_refusals_have_a_time_of_their_own(status: int):
    patient = RetryPolicy(first_wait=0.0, total=-1.0, refused=10.0)
    assert attempts(patient, Failure("", status)) == 2
    assert attempts(patient, Failure("", 500)) == -1
    assert attempts(RetryPolicy(total=-1.0), Failure("", status)) == -1


def test_the_time_begins_with_the_first_failure():
    # A request may have waited for others before it.
    policy = RetryPolicy(first_wait=0.0, total=0.05)
    first = [Failure("")]

    def slow() -> bool:
        time.sleep(0.1)
        if first:
            raise first.pop()
        return True

    assert policy.call(slow)


def test_workers_of_a_fleet_are_patient_with_refusals_alone():
    code = """
from imageshards.transforms.storage import retry
before = retry.POLICY
import imageshards.launch.worker_settings
print(before.refused, before.total, retry.POLICY.refused, retry.POLICY.total)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "120.0", "1800.0", "120.0"]


@pytest.mark.slow
def test_workers_on_this_machine_are_not_more_patient_than_their_command():
    code = """
import runpy
from apache_beam.runners.worker import sdk_worker_main
from imageshards.transforms.storage import retry
sdk_worker_main.main = lambda arguments: print(retry.POLICY == retry.RetryPolicy())
runpy.run_module("imageshards.launch.quiet_worker", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def refusal(uri: str, action: Action, failure: Failure) -> StoreError:
    return StoreError(f"refused to {action}")


@pytest.mark.parametrize(
    ("failure", "kind", "says"),
    [
        (Failure("x", 404), FileNotFoundError, "no such object or bucket"),
        (Failure("x", 401), StoreError, "^refused to write$"),
        (Failure("x", 403), StoreError, "^refused to write$"),
        (Failure("x", cause="credentials"), StoreError, "^refused to write$"),
        (Failure("status 503", 503), StoreError, "^gs://b/x: cannot be written: status 503; run "),
        (Failure("status 400", 400), StoreError, "^refused to write$"),
        (Failure("no route"), StoreError, "^gs://b/x: cannot be written: no route; run "),
    ],
)
def test_failures_become_errors(failure: Failure, kind: type[Exception], says: str):
    with pytest.raises(kind, match=says):
        raise translate("gs://b/x", "write", failure, refusal)
