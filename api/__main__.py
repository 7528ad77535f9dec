"""Runs the command `imageshards`: `python -m imageshards build ...`."""

from imageshards.launch.cli import entry

if __name__ == "__main__":
    entry()
