"""Help, the commands that describe others, and what the commands have in common."""

import json
import os
import pty
import re
import subprocess
import sys
from argparse import SUPPRESS
from pathlib import Path

import pytest
from conftest import Build, Command
from helpers import IMAGESHARDS, imageshards

from imageshards.launch.commands import COMMANDS, parser_of
from imageshards.launch.results import names_of
from imageshards.pipeline.options.beam_arguments import DOCUMENTED
from imageshards.pipeline.options.parser import closest


def test_without_a_command_it_says_what_to_do_first(command: Command):
    code, out, err = command()
    assert (code, out) == (2, "")
    assert "imageshards build --input FOLDER --output DATASET" in err
    assert len(err.splitlines()) < 8


@pytest.mark.parametrize("arguments", [["help"], ["--help"], ["-h"], ["--help-all"]], ids="".join)
def test_the_list_of_commands_fits_on_a_screen(command: Command, arguments: list[str]):
    code, out, err = command(*arguments)
    assert (code, err) == (0, "")
    assert len(out.splitlines()) <= 40
    assert max(map(len, out.splitlines())) <= 80
    assert all(re.search(rf"^  {name} +[A-Z]", out, re.M) for name in COMMANDS)
    assert "Exit codes: 0 done, 1 failed, 2 wrong command line, 130 interrupted." in out


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_fits_on_a_screen(
    command: Command, name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    code, short, err = command(name, "--help")
    assert (code, err) == (0, "")
    assert short == command("help", name)[1]
    assert short.startswith(f"usage: imageshards {name}")
    _, complete, _ = command(name, "--help-all")
    for text in (short, complete):
        assert max(map(len, text.splitlines())) <= 80
    most = 43 if name == "build" else 48  # fingerprint has a longer description
    assert len(short.splitlines()) <= most
    for action in parser_of(name)._actions:
        if action.dest != "help" and action.help != SUPPRESS:
            named = (*action.option_strings, action.metavar)[0]
            assert str(named) in complete
            assert not action.help[0].islower()
            assert not action.help.endswith(".")


def test_the_short_help_of_build_has_some_options_and_names_the_rest(command: Command):
    _, short, _ = command("build", "--help")
    _, complete, _ = command("build", "--help-all")
    assert "--input URI" in short
    assert "--web_retries" not in short
    assert "--web_retries" in complete
    count = int(re.search(r"and (\d+) further options", short)[1])  # type: ignore[index]
    options = [len(re.findall(r"(?m)^  --", text)) for text in (short, complete)]
    assert options[1] - options[0] == count


def test_the_version_is_a_command_too(command: Command):
    code, out, _ = command("version")
    assert (code, out.split()[0]) == (0, "imageshards")
    assert command("--version")[1] == command("-V")[1] == out


def test_a_misspelt_command_is_an_error(command: Command):
    for arguments in (["biuld"], ["help", "biuld"]):
        code, _, err = command(*arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert "unknown command 'biuld'; did you mean build? (imageshards help lists the" in err
    assert "did you mean" not in command("xyzzy")[2]
    code, _, err = command("--verbose", "build")
    assert code == 2
    assert "--verbose comes after a command, as in imageshards build --verbose" in err
    assert "did you mean tensorflow?" in command("verify", "x", "--decoder=tensorflw")[2]


def test_dashes_and_underscores_are_alike(command: Command, build: Build, photos: Path):
    out = build(photos, num_shards="2").output
    code, text, err = command("reshard", out, f"{out}-new", "--num-shards", "1", "--json")
    assert (code, err) == (0, "")
    assert json.loads(text)["shards"] == {"train": [2, 1]}


def test_a_similar_name_is_one_of_ours_unless_another_is_clearly_closer():
    ours = ["--num_shards", "--workers", "--output"]
    assert closest("--num_shard", ours, DOCUMENTED) == "--num_shards"
    assert closest("--num_worker", ours, DOCUMENTED) == "--num_workers"
    assert closest("--OUTPUT", ours, DOCUMENTED) == "--output"
    assert closest("--qwxyz", ours, DOCUMENTED) == ""


def test_the_names_of_json_are_documented(command: Command, build: Build, photos: Path):
    out = build(photos, num_shards="2").output
    arguments: dict[str, list[list[object]]] = {
        "build": [
            ["--input", photos, "--output", out, "--num_shards=2"],
            ["--input", photos, "--output", out, "--num_shards=2", "--dry_run"],
        ],
        "reshard": [[out, f"{out}-new", "--num_shards=1"]],
        "verify": [[out, "--sample=1"]],
        "advise": [[out, "--hosts=2"], ["--images=9", "--bytes=1MB", "--workers=2"]],
        "fingerprint": [["--input", photos, "--output", out]],
        "publish": [[out]],
    }
    for name, found in COMMANDS.items():
        documented = list(names_of(found).values())
        assert bool(documented) == ("--json" in parser_of(name)._option_string_actions)
        for given, names in zip(arguments.get(name, []), documented, strict=False):
            code, text, err = command(name, *given, "--json")
            assert (code, err) == (0, "")
            assert json.loads(text).keys() == names.keys(), name
            assert all(names.values())
            assert all(key in command(name, "--help-all")[1] for key in names)


def test_a_quiet_command_prints_only_what_may_be_wrong(
    command: Command, photos: Path, tmp_path: Path
):
    arguments = ["build", "--input", photos, "--output", tmp_path / "out", "--quiet"]
    assert command(*arguments) == (0, "", "")
    assert command("verify", tmp_path / "out", "--quiet") == (0, "", "")
    assert json.loads(command(*arguments, "--json")[1])["resumed"] == 1
    (photos.parent / "leak").mkdir()
    image = next(photos.rglob("*.jpg")).read_bytes()
    for name in "abcdefgh":
        (photos.parent / f"leak/{name}.jpg").write_bytes(image)
    code, out, err = command(
        "build", "--input", photos.parent / "leak", "--output", tmp_path / "leaks", "--quiet",
        "--splits=train=0.5,test=0.5", "--labels=none",
    )  # fmt: skip
    assert (code, out) == (0, "")
    assert re.match(r"imageshards: warning: LEAK: \d image", err)


def in_terminal(*arguments: str, **environment: str) -> str:
    """What a command prints to a terminal."""
    shown, terminal = pty.openpty()
    subprocess.run(
        [*IMAGESHARDS, *arguments], stdout=terminal, stderr=terminal, check=False,
        env={"PATH": "", "TERM": "xterm", **environment},
    )  # fmt: skip
    found = b""
    while b"\n" not in found:
        found += os.read(shown, 1 << 16)
    return found.decode()


def test_errors_are_colored_on_a_terminal_only():
    assert in_terminal("biuld").startswith("\x1b[31mimageshards:\x1b[0m unknown")
    assert in_terminal("biuld", NO_COLOR="1").startswith("imageshards: unknown")
    assert in_terminal("biuld", TERM="dumb").startswith("imageshards: unknown")
    assert imageshards("biuld").stderr.startswith("imageshards: unknown")


def test_the_package_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "imageshards", "version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("imageshards ")
