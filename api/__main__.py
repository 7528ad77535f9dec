"""`python -m imageshards` is the command `imageshards`."""

from imageshards.launch.cli import entry

if __name__ == "__main__":
    entry()
