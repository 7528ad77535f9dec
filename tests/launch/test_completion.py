"""The scripts of `imageshards completion`, in real shells."""

import os
import pty
import re
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from conftest import Command

LINES = {
    "imageshards b": {"build"},
    "imageshards help ver": {"verify", "version"},
    "imageshards completion ": {"bash", "zsh", "fish"},
    "imageshards build --multi": {"--multi_frame"},
    "imageshards build --input x --exif ": {"bake", "keep"},
    "imageshards build --runner Fl": {"FlinkRunner"},
    "imageshards verify --runner Fl": {"FlinkRunner"},
    "imageshards verify --decoder t": {"tensorflow"},
    "imageshards build --help-": {"--help-all"},
    "imageshards build --input pho": {"photos"},
    "imageshards inspect pho": {"photos"},
}

BASH = """
source ./script
function=$(complete -p imageshards | sed 's/.*-F \\([^ ]*\\).*/\\1/')
while IFS= read -r line; do
    read -ra COMP_WORDS <<< "$line"
    [[ $line == *' ' ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
    $function imageshards "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
    echo "${COMPREPLY[*]}"
done
"""
FISH = "source ./script; while read -l line; echo (complete -C $line | cut -f 1); end; true"
# zsh completes in an interactive shell only, and finds the script by its name.
ZSH = """PS1='> '; fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -D; print READY
"""
SECONDS = 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    return tmp_path


def script_for(shell: str, command: Command, path: Path) -> None:
    code, script, err = command("completion", shell)
    assert (code, err) == (0, "")
    path.write_text(script)
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")


@pytest.mark.parametrize(
    ("shell", "program"), [("bash", BASH), ("fish", FISH)], ids=["bash", "fish"]
)
def test_a_shell_completes_commands_options_values_and_files(
    command: Command, folder: Path, shell: str, program: str
):
    script_for(shell, command, folder / "script")
    done = subprocess.run(
        [shell, "-c", program], cwd=folder, input="\n".join(LINES) + "\n", capture_output=True,
        text=True, check=True, env={"PATH": os.environ["PATH"], "HOME": str(folder)}, timeout=60,
    )  # fmt: skip
    found = [{word.rstrip("/") for word in line.split()} for line in done.stdout.splitlines()]
    assert dict(zip(LINES, found, strict=True)) == LINES


def test_zsh_completes_them_too(command: Command, folder: Path):
    script_for("zsh", command, folder / "_imageshards")
    ours, terminal = pty.openpty()
    shell = subprocess.Popen(
        ["zsh", "-f", "-i"], cwd=folder, stdin=terminal, stdout=terminal, stderr=terminal,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "dumb"},
    )  # fmt: skip
    try:
        os.write(ours, ZSH.encode())
        assert "READY" in shown(ours, {"\nREADY"})
        for line, words in LINES.items():
            os.write(ours, f"{line}\t\t".encode())
            text = shown(ours, words)
            assert all(word in text for word in words), (line, text)
            os.write(ours, b"\x15")  # deletes the line
    finally:
        shell.kill()
        shell.wait()


def shown(terminal: int, words: set[str]) -> str:
    """What appears until all words have."""
    text, end = "", time.monotonic() + SECONDS
    while not all(word in text for word in words) and time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            text += re.sub(r"\x1b\[[\d;?]*[a-zA-Z]|\r", "", os.read(terminal, 1 << 16).decode())
    return text
