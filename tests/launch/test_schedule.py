"""What schedulers' operators make of options."""

from pathlib import Path

from conftest import Command
from helpers import build_json

from imageshards.pipeline.options.command_line import add_options
from imageshards.pipeline.options.parser import Parser


def test_switches_are_off_by_default():
    """Airflow's operators omit an option that is False: that must mean what it says."""
    parser = Parser()
    add_options(parser)
    switches = [action for action in parser._actions if action.nargs == 0 and action.dest != "help"]
    assert len(switches) > 3
    assert all(type(a).__name__ == "_StoreTrueAction" and a.default is False for a in switches)


def test_labels_of_the_job_do_not_replace_those_of_images(
    command: Command, photos: Path, tmp_path: Path
):
    out = tmp_path / "out"
    arguments = ["--labels_from=none", "--labels=airflow-version=v3-3-2"]
    assert command("build", "--input", photos, "--output", out, *arguments)[0] == 0
    assert build_json(out)["options"]["labels"] == "none"
