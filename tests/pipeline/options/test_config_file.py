"""`--config FILE`: options from a file, and the file that a build writes."""

from pathlib import Path

import pytest
import yaml
from conftest import Command
from helpers import contents, write_images

from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.options.command_line import (
    add_options,
    command_options_from,
    options_from,
)
from imageshards.pipeline.options.config_file import apply_config, build_yaml
from imageshards.pipeline.options.declare import options_of
from imageshards.pipeline.options.parser import Parser
from imageshards.transforms.elements import UsageError


def parsed(file: Path, *arguments: str) -> tuple[BuildOptions, list[str]]:
    parser = Parser(allow_abbrev=False)
    add_options(parser)
    args, args.beam_arguments = parser.parse_known_args([f"--config={file}", *arguments])
    apply_config(args)
    command_options_from(args)
    return options_from(args), args.beam_arguments


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "build.yaml"
    path.write_text(
        """\
# comments are kept out
input: [a, "b*.jpg"]
output: /o
num-shards: 8
labels_from: none
split_names: [train, test]
splits: column
features_from: [a:int, b:float]
max_reject_fraction: .25
overwrite: true
include_all: false
workers: 2
beam:
  runner: DirectRunner
  experiments: [x, y]
  direct-num-workers: 2
  auto_unique_labels: true
  no_auth: false
"""
    )
    return path


def test_a_file_has_every_kind_of_option(file: Path):
    options, beam = parsed(file)
    assert options == BuildOptions.of(
        input=("a", "b*.jpg"),
        output="/o",
        num_shards="8",
        labels="none",
        splits="column",
        split_names=("train", "test"),
        features_from=("a:int", "b:float"),
        max_reject_fraction=0.25,
        overwrite=True,
    )
    assert beam == [
        "--runner=DirectRunner", "--experiments=x", "--experiments=y", "--direct_num_workers=2",
        "--auto_unique_labels",
    ]  # fmt: skip


def test_the_command_line_replaces_values_of_the_file(file: Path):
    options, beam = parsed(
        file, "--input=c", "--num-shards=3", "--no-overwrite", "--include_all",
        "--labels=airflow-version=v3-3-2", "--direct-num-workers", "5", "--experiments=z",
    )  # fmt: skip
    assert options.inputs.input == ("c",)
    assert options.output.num_shards == "3"
    assert not options.output.overwrite
    assert options.inputs.include_all
    assert options.labels.labels == "none"  # the given one is a label of the job
    assert beam == [
        "--runner=DirectRunner", "--auto_unique_labels", "--direct_num_workers", "5",
        "--experiments=z",
    ]  # fmt: skip


def test_every_option_has_the_meaning_of_the_command_line(tmp_path: Path):
    """The text of each value is the same in the file and after the option."""
    values = {
        "config": None, "input": "a", "output": "/o", "name": "x", "class_names": "f",
        "base_uri": "/b", "resize": "short:3", "split_names": "a,b", "splits": "column",
        "features_from": "a:int", "label_key": "k", "name_key": "n", "user_agent": "u",
        "billing_project": "p", "group_by": "dirname", "workers": "2", "channels": "1",
        "homepage": "https://x", "date_published": "2026-11-22", "limit": "5",
        "per_class": "5", "where": "a > 1", "exclude": "l",
    }  # fmt: skip
    for group in BuildOptions.command_line():
        for option in options_of(group):
            default = option.shown_default or "7"
            value = values.get(option.name, "true" if option.is_switch else default)
            if value is None:
                continue
            (tmp_path / "c.yaml").write_text(f"{option.name}: {value}\n")
            common = [f"--{n}=/x" for n in ("input", "output") if n != option.name]
            argument = option.flag if option.is_switch else f"{option.flag}={value}"
            parser = Parser(allow_abbrev=False)
            add_options(parser)
            expected = parser.parse_args([*common, argument])
            assert parsed(tmp_path / "c.yaml", *common)[0] == options_from(expected), option.name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("input: a\nnum_shard: 3\n", ":2: unknown option 'num_shard', did you mean num_shards?"),
        ("runner: FnApiRunner\n", ":1: runner is an option of Beam: write it in a section `beam:`"),
        ("input: [a\nb: c\n", ":2: not YAML: "),
        ("\nseed: x\n", ":2: invalid --seed 'x': expected an integer from 0"),
        ("seed: [1, 2]\n", ":1: seed takes one value, not a list"),
        ("seed:\n", ":1: --seed is empty: specify a value, or omit the option"),
        ("seed: {a: 1}\n", ":1: seed takes a value such as a text or a number"),
        ("overwrite: yes\n", ":1: invalid overwrite 'yes': expected true or false"),
        ("seed: 1\nseed: 2\n", ":2: seed is in line 1 already"),
        ("license: MIT\nlicence: MIT\n", ":2: licence is another name of an option"),
        ("[" * 3000, "nested too deeply"),
        ("- a\n", ":1: expected lines like `num_shards: 16`"),
        ("? [a]\n: b\n", ":1: expected the name of an option"),
        ("config: x\n", ":1: a file of options names no other one"),
        ("check: ful\n", ":1: invalid --check 'ful': expected full or header; did you mean full?"),
        ("beam:\n  a: {b: c}\n", ":2: a takes a value"),
        ("beam: DirectRunner\n", ":1: expected lines like"),
        ("quality: !!python/object:os.system 3\n", ":1: "),
        ("a: \x01\n", "not YAML: "),
        ("#" * (1 << 20) + "\n", "larger than 1 MB"),
    ],
    ids=lambda text: text[:40],
)
def test_an_error_names_the_line(text: str, says: str, tmp_path: Path):
    file = tmp_path / "build.yaml"
    file.write_text(text)
    if "!!python" in text:  # a tag is not interpreted
        assert parsed(file, "--input=a", "--output=/o")[0].images.quality == 3
        return
    with pytest.raises(UsageError) as caught:
        parsed(file)
    message = str(caught.value)
    assert message.startswith(f"--config {file}")
    assert says in message
    assert "\n" not in message


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, command: Command):
    code, _, err = command("build", "--config", tmp_path / "none.yaml")
    assert (code, err.count("\n")) == (2, 1)
    assert "none.yaml: cannot be read: No such file or directory" in err
    (tmp_path / "latin.yaml").write_bytes(b"input: \xff\n")
    assert "not UTF-8 at byte 7" in command("build", "--config", tmp_path / "latin.yaml")[2]
    assert "--config is empty" in command("build", "--config", "")[2]


def test_the_file_of_a_build_reproduces_every_byte(command: Command, tmp_path: Path):
    write_images(tmp_path / "größe: 1", 2, 8)
    (tmp_path / "größe: 1/class00/bad.jpg").write_bytes(b"bad")
    out, again = tmp_path / "out", tmp_path / "again"
    code, _, err = command(
        "build", "--input", tmp_path / "größe: 1", "--output", out, "--num-shards=train=2,test=1",
        "--splits=train=0.5,test=0.5", "--seed=5", "--resize=short:8", "--exif=keep",
        "--max_reject_fraction=0.2", "--user_agent=me@example.org", "--billing_project=secret",
        "--labels", r"regex:class(\d+)", "--runner=FnApiRunner",
    )  # fmt: skip
    assert code == 0, err
    written = (out / "metadata/build.yaml").read_text()
    for private in ("example.org", "secret", "Runner", str(out)):
        assert private not in written
    assert command("build", "--config", out / "metadata/build.yaml", "--output", again)[0] == 0
    assert contents(again) == contents(out)


def test_names_that_are_not_utf8_survive_the_file(tmp_path: Path):
    options = BuildOptions.of(input=("/a/\udcff", "/b/😀\x85"), output="/o", features_from=())
    file = tmp_path / "c.yaml"
    file.write_bytes(build_yaml(options, name="x", version="1"))
    found, _ = parsed(file, "--output=/o")
    assert found == options.replace(name="x")
    assert yaml.safe_load(file.read_bytes())["features_from"] == "none"
