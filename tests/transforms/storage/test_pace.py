"""The number of requests in flight while a service refuses some."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

from imageshards.transforms.storage.retry import Failure, Pace


def request(pace: Pace, failure: BaseException | None = None) -> None:
    with suppress(type(failure) if failure else ()), pace.request():
        if failure:
            raise failure


def refuse(pace: Pace, in_flight: int, times: int = 1) -> None:
    """Lets a number of requests be in flight, of which some are refused."""
    with ExitStack() as stack:
        for _ in range(in_flight - times):
            stack.enter_context(pace.request())
        refused = [pace.request() for _ in range(times)]
        for one in refused:
            one.__enter__()
        for one in refused:
            with suppress(Failure):
                failure = Failure("", 429)
                one.__exit__(Failure, failure, None)


def test_there_is_no_limit_before_a_refusal():
    pace = Pace()
    for failure in (None, Failure("", 500), Failure(""), ValueError()):
        request(pace, failure)
    assert pace.limit == math.inf


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_halves_the_requests_in_flight(status: int):
    pace = Pace()
    with pace.request(), pace.request(), pace.request():
        request(pace, Failure("", status))
        assert pace.limit == 2


def test_refusals_of_requests_that_were_in_flight_together_count_once():
    pace = Pace()
    refuse(pace, in_flight=32, times=20)
    # The twelve others succeeded afterwards, and each raised it by a twelfth or less.
    assert 16 < pace.limit < 17


def test_a_round_of_successes_raises_the_limit_by_about_one():
    pace = Pace()
    refuse(pace, in_flight=8, times=8)
    assert pace.limit == 4
    for _ in range(4):
        request(pace)
    assert 4.8 < pace.limit < 5


def test_one_request_is_always_allowed():
    pace = Pace()
    for _ in range(20):
        request(pace, Failure("", 503))
    assert pace.limit == 1
    request(pace)
    assert pace.limit == 2


def test_requests_wait_while_the_limit_is_reached():
    pace = Pace()
    request(pace, Failure("", 503))
    most = now = 0
    lock = threading.Lock()

    def one(_: int) -> None:
        nonlocal most, now
        with suppress(Failure), pace.request():
            with lock:
                now += 1
                most = max(most, now)
            with lock:
                now -= 1
            raise Failure("", 503)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(one, range(200)))
    assert most == 1


def test_a_failure_of_another_kind_changes_nothing():
    pace = Pace()
    request(pace, Failure("", 503))
    request(pace, Failure("", 500))
    request(pace, ValueError())
    assert pace.limit == 1
