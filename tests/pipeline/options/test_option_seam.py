"""An option that is declared once is everywhere: this module declares one, and nothing else."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import LOCAL
from helpers import build_json

from imageshards.launch.dataflow.template import template
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.options.command_line import add_options, options_from
from imageshards.pipeline.options.declare import option
from imageshards.pipeline.options.documents import form_schema, markdown
from imageshards.pipeline.options.groups.records import Images
from imageshards.pipeline.options.parser import Parser
from imageshards.pipeline.run import run
from imageshards.transforms.elements import BuildError, UsageError


@dataclass(frozen=True, kw_only=True)
class MyImages(Images):
    sharpen: int = option(0, "Strength of sharpening in percent", metavar="N", limits=(0, 50))


@dataclass(frozen=True, kw_only=True)
class MyOptions(BuildOptions):
    images: MyImages = field(default_factory=MyImages)


def parse(*arguments: str) -> MyOptions:
    parser = Parser()
    add_options(parser, MyOptions)
    return options_from(parser.parse_args(["--input=a", "--output=/o", *arguments]), MyOptions)


def test_the_command_line_has_it():
    assert parse("--sharpen=7").images.sharpen == 7
    assert parse().images.sharpen == 0
    with pytest.raises(UsageError, match="invalid --sharpen 51: expected a number from 0 to 50"):
        parse("--sharpen=51")
    with pytest.raises(UsageError, match="'x': expected an integer from 0 to 50"):
        parse("--sharpen=x")
    parser = Parser()
    add_options(parser, MyOptions)
    help = " ".join(parser.format_help().split())
    assert "--sharpen N Strength of sharpening in percent (0 to 50; default: 0)" in help
    assert "--sharpen" in parser.similar("--sharpn")


def test_the_table_of_the_readme_has_it():
    row = "| `--sharpen N` | Strength of sharpening in percent (0 to 50; default: 0) |"
    assert row in markdown(MyOptions).splitlines()


def test_the_forms_have_it():
    (found,) = [p for p in template(MyOptions)["parameters"] if p["name"] == "sharpen"]
    assert found["helpText"] == "Strength of sharpening in percent (0 to 50; default: 0)"
    assert (found["isOptional"], found["regexes"]) == (True, ["^(?:[0-9]+)$"])
    assert form_schema(MyOptions)["sharpen"]["maximum"] == 50


def test_a_build_records_it_and_does_not_resume_one_with_another_value(
    photos: Path, tmp_path: Path
):
    out = tmp_path / "out"

    def build(**values: int) -> None:
        options = MyOptions.of(input=(str(photos),), output=str(out), **values)
        run(options, LOCAL, show_progress=False)

    build(sharpen=7)
    assert build_json(out)["options"]["sharpen"] == 7
    assert json.loads((out / "metadata/shards/plan.json").read_text())["options"]["sharpen"] == 7
    with pytest.raises(BuildError, match="--sharpen was 7, now 0"):
        build()


def test_at_its_default_it_leaves_earlier_builds_alone():
    earlier = BuildOptions.of(input=("a",), output="/o")
    assert parse().settings == earlier.settings != parse("--sharpen=7").settings
    assert parse().recorded == earlier.recorded
