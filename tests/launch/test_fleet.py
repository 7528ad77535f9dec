"""Estimates for fleets: `imageshards advise --images`, and the tables that are made from them."""

from __future__ import annotations

import json
import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from apache_beam import coders
from conftest import Command
from hypothesis import given
from hypothesis import strategies as st

from imageshards.launch.dataflow import arguments
from imageshards.launch.fleet import scale
from imageshards.launch.fleet.rates import MEASURED, MEASURED_FILE, RATES, rate
from imageshards.launch.fleet.stages import Fleet, bounds, ramp_seconds
from imageshards.pipeline.operations.resharding import write
from imageshards.transforms.shards import leaked, workers
from imageshards.transforms.shards.facts import Fact

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "launch/dataflow"
MAKE_RATES = runpy.run_path(str(ROOT / "benchmarks/rates.py"))


def test_the_pages_are_the_computed_ones():
    assert (FOLDER / "SCALE.md").read_text() == scale.scale()
    assert "\n".join([scale.BEGIN, *scale.costs(), ""]) in (FOLDER / "README.md").read_text()


def test_every_constant_has_its_source_and_date():
    for name, constant in RATES.items():
        assert constant.value > 0, name
        assert re.fullmatch(r"20\d\d(-\d\d-\d\d)?", constant.date), name
        assert constant.source or constant.kind == "assumption", name


def test_measured_constants_are_those_of_the_benchmark():
    """`make rates` writes what it computes, and keeps what was not measured."""
    about = {
        "images": 1000,
        "bytes": 216_000_000,
        "machine": {"Date": "2030-01-02 03:04 UTC", "Machine": "3 cores of A, 1 GiB of memory"},
    }
    runs = {"header": [1.0 + 0.99, 9.0, 0.0], "full": [1.0 + 4.95]}
    contenders = {
        f"imageshards-{check}-1": {
            "images": 1000, "peak_bytes": 1000 * len(check),
            "runs": [{"cpu_seconds": each} for each in found],
        }
        for check, found in runs.items()
    }  # fmt: skip
    contenders["imageshards-header"] = {
        "images": 1000, "peak_bytes": 7000, "runs": [{"cpu_seconds": 0.1}],
    }  # fmt: skip
    contenders["tfds"] = {"images": 1000, "peak_bytes": 9000, "runs": []}
    figures = {
        "ten": {"cpu_seconds": 1.0, "count": 10, "peak_bytes": 1e6},
        "small": {"cpu_seconds": 1.4, "count": 2010, "title": "small ones"},
        "references-100": {"cpu_seconds": 2.0, "count": 100},
        "references-1100": {"cpu_seconds": 3.0, "count": 1100},
        "reads-2000": {"cpu_seconds": 0.001},
        "reads-108000": {"cpu_seconds": 0.003},
        "finish": {"loop_seconds": 3.0, "count": 1000, "peak_bytes": 5e6, "title": "the end"},
        "digests": {"problem": "killed", "cpu_seconds": None, "count": 7},
    }
    results = {"about": about, "contenders": contenders, "figures": figures}
    found = MAKE_RATES["renewed"](MEASURED, results)
    assert {name: found[name].value for name in found if name != "digest"} == {
        "check_fixed": 0.0002, "check_header": 0.0004, "check_full": 0.0024,
        "read_fixed": 0.001, "read_sized": 0.002, "reference": 0.001, "finish": 0.003,
        "finish_memory": 4e9, "process_memory": 7000,
    }  # fmt: skip
    assert found["digest"] == MEASURED["digest"]
    assert found["check_full"].date == "2030-01-02"
    assert found["check_full"].source.endswith("3 cores of A")


def test_measured_constants_are_as_they_were_written():
    assert MAKE_RATES["text"](MEASURED) == MEASURED_FILE.read_text()
    kinds = {name for name, constant in RATES.items() if constant.kind == "measured"}
    assert kinds == set(MEASURED)


def test_constants_of_the_code_are_those_that_it_uses():
    assert rate("in_flight") == workers.REMOTE_READS_IN_FLIGHT
    assert rate("threads") == arguments._HARNESS_THREADS
    # A part of the digests with one row, of three splits.
    row = leaked.positions(bytes(8), 3_000_000).tobytes()
    fact = (("digests", "", 8000), ((0, 3_240_000, 3_420_000), row))
    assert len(coders.registry.get_coder(Fact).encode(fact)) == rate("digest_bytes")
    # A shard of a reshard with pieces of two old ones.
    assert rate("shard_rows") == write._COPIED.itemsize + 2 * write._PIECE.itemsize


def measured(row: str, column: int) -> float:
    """A number in benchmarks/RESULTS.md."""
    lines = (ROOT / "benchmarks/RESULTS.md").read_text().splitlines()
    cells = next(line for line in lines if line.startswith(f"| {row} |")).split("|")
    return float(cells[column].replace(",", ""))


def test_no_constant_is_more_optimistic_than_the_measurement():
    start = measured("imageshards build of 10 images", 2)
    for check in ("header", "full"):
        # In one process: of a full check, two threads use two cores.
        rate_of_one = measured(f"imageshards --check={check}, one process", 2)
        of_image = (1 if check == "header" else 2) / rate_of_one
        constant = rate("check_fixed") + rate(f"check_{check}")
        # The constant is CPU time, and threads wait for each other.
        assert 0.7 * of_image <= constant < 2.5 * of_image
    of_reference = (measured("1,000,000 references", 2) - start) / 1e6
    assert 0.7 * of_reference <= rate("reference") < 2 * of_reference


def test_a_build_adds_up():
    fleet = Fleet(1_000_000, 108_000_000_000, 8, 2)
    assert fleet.num_shards == 720
    assert fleet.threads == 32
    names = ("read_fixed", "check_fixed", "read_sized", "check_full")
    assert fleet.image_seconds == pytest.approx(sum(map(rate, names)))
    assert replace(fleet, check="header", bytes=54_000_000_000).image_seconds == pytest.approx(
        rate("read_fixed") + rate("check_fixed")
        + (rate("read_sized") + rate("check_header")) / 2
    )  # fmt: skip
    listing, _, writing, *_ = fleet.stages
    assert listing.writes == 1000
    assert listing.seconds == pytest.approx(1000 * 0.3 / 10)
    assert writing.limit == "CPU of --check full"
    one_shard = 1_000_000 / 720 * fleet.image_seconds
    used = 1_000_000 * fleet.image_seconds
    assert writing.seconds == pytest.approx(used / 16 / 0.7 + one_shard)
    assert fleet.seconds == pytest.approx(300 + sum(stage.seconds for stage in fleet.stages))
    assert fleet.usd(writing) == pytest.approx(0.4 + 720 * 4 / 1000 * 0.005)
    hour = 8 * (2 * 0.056 + 8 * 0.003557 + 30 * 0.000054)
    assert fleet.machines_usd == pytest.approx(hour * fleet.seconds / 3600)
    assert fleet.total_usd == pytest.approx(fleet.machines_usd + sum(map(fleet.usd, fleet.stages)))


def test_the_rate_of_a_bucket_doubles_every_twenty_minutes():
    assert ramp_seconds(5000 * 1200, 5000, "reads") == 1200
    # The integral of 5000 * 2 ** (t / 1200) from 0 to 1200.
    first = 5000 * 1200 / 0.6931471805599453
    assert ramp_seconds(first, 1e9, "reads") == pytest.approx(1200)
    assert ramp_seconds(first + 1200 * 10_000, 10_000, "reads") == pytest.approx(2400)


@given(
    st.integers(1, 10**10), st.integers(100, 10**7), st.integers(1, 5000), st.booleans(),
    st.sampled_from(["dataflow", "flink"]),
)  # fmt: skip
def test_more_workers_are_never_slower(images, size, workers, archives, engine):
    fleet = Fleet(images, images * size, workers, archives=archives, engine=engine, shards=5000)
    twice = replace(fleet, workers=2 * workers)
    assert twice.seconds <= fleet.seconds * (1 + 1e-9)
    for stage in fleet.stages:
        assert stage.elements >= 1
        assert stage.element_bytes <= rate("element_bytes")
        assert stage.seconds >= 0


def test_what_breaks_first_is_first():
    found = bounds(Fleet(5_000_000_000, 540_000_000_000_000, 100))
    fractions = [bound.value / bound.most for bound in found]
    assert fractions == sorted(fractions, reverse=True)
    assert fractions[0] > 1
    assert "`reshard`" in found[0].what


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--images=0.1B", "--bytes=10.8TB", "--workers=100"], "--num_shards 72000"),
        (["--images=100000000", "--bytes=10.8TB", "--workers=100"], "reads a second of the bucket"),
        (["--images=100M", "--bytes=10.8TB", "--workers=4"], "limit: CPU of --check full"),
        (["--images=1000000", "--bytes=108GB", "--workers=100"], "shards of 33.8 MB"),
        (
            ["--images=1000000", "--bytes=108GB", "--workers=100", "--num_shards=10"],
            "one long shard at the end",
        ),
        (
            ["--images=10k", "--bytes=1.1GB", "--workers=100"],
            "WARNING: 110 shards for 800 threads: fewer than 4 for each, so that workers wait for "
            "the last shards; use at most 3 workers, or more shards",
        ),
        (
            ["--images=1000", "--bytes=100MB", "--workers=2", "--vcpus=64"],
            "10 shards for 256 threads: fewer than 4 for each, so that workers wait for the last "
            "shards; use smaller workers, or more shards",
        ),
    ],
)
def test_advice_for_a_fleet(command: Command, arguments: list[str], expected: str):
    code, out, err = command("advise", *arguments)
    assert (code, err) == (0, "")
    assert expected in out
    assert "Extrapolated from at most 160,000 images" in out
    code, out, _ = command("advise", *arguments, "--json")
    found = json.loads(out)
    assert code == 0
    assert len(found["stages"]) == 5
    assert found["usd"] > 0
    # Other runners have no prices.
    code, out, _ = command("advise", *arguments, "--engine=flink")
    assert "$" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "advise requires either DIR and --hosts"),
        (["--images=5", "--workers=2"], "--images, --bytes and --workers"),
        (["somewhere", "--hosts=2", "--vcpus=8"], "advise requires either DIR and --hosts"),
        (
            ["--images=5", "--bytes=5MB", "--workers=2", "--num_shards=0"],
            "invalid --num_shards 0: must be at least 1",
        ),
        (["--images=1e8", "--bytes=5TB", "--workers=2"], "expected a number such as 2500, 10k"),
        (["--images=1.2345k", "--bytes=5TB", "--workers=2"], "1.28M or 5B, not '1.2345k'"),
        (["--images=5", "--bytes=nanTB", "--workers=2"], "expected a size such as 10.8TB"),
        (["--images=5", "--bytes=-5MB", "--workers=2"], "invalid --bytes -5000000"),
        (["--images=5", "--bytes=5MB", "--workers=2", "--vcpus=0"], "invalid --vcpus 0"),
        (["somewhere", "--images=5", "--bytes=5MB", "--workers=2"], "advise requires either"),
        (["--images=5", "--bytes=5 apples", "--workers=2"], "expected a size such as 10.8TB"),
        (["--images=5", "--bytes=5MB", "--workers=0"], "invalid --workers 0: must be at least 1"),
        (["--images=5", "--bytes=1e400TB", "--workers=2"], "expected a size such as 10.8TB"),
        (["--images=5", "--bytes=1e200TB", "--workers=2"], "invalid --bytes: must be at most"),
        (
            ["--images=5", "--bytes=5MB", "--workers=2", "--num_shards=6"],
            "invalid --num_shards 6: there are 5 images",
        ),
        (["--images=5", "--bytes=3", "--workers=1"], "the size of all 5 images together"),
    ],
)
def test_wrong_advice_is_one_line(command: Command, arguments: list[str], message: str):
    code, out, err = command("advise", *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err
