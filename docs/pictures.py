"""Makes the pictures of the documentation from a real build: python docs/pictures.py [CHROMIUM].

Needs Chromium. The data set is that of `make demo`: the digits of scikit-learn.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).parent / "images"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
BUILD = (
    "imageshards build --input images --output digits "
    "--splits train=0.8,validation=0.1,test=0.1 --num_shards train=4,validation=1,test=1"
)
COMMANDS = (BUILD, "imageshards verify digits")


def main(chromium: str) -> None:
    """Builds the data set and writes all pictures."""
    from imageshards.launch.demo import write_digits

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_digits(folder / "images")
        shown = [(command, run(command, folder)) for command in COMMANDS]
        run("imageshards inspect digits --contact_sheet sheet.png --images 8", folder)
        save(Image.open(folder / "sheet.png"), "contact_sheet")
        report = folder / "digits/metadata/report.html"
        save(screenshot(chromium, report, folder, 1280, 1120), "report")
        for section, height in (("pixels", 750), ("gallery", 700)):
            part = folder / f"{section}.html"
            others = f"main > :not(#{section}), header {{ display: none }}"
            part.write_text(f"{report.read_text()}<style>{others}</style>")
            save(screenshot(chromium, part, folder, 1280, height), f"report_{section}")
        terminal = folder / "terminal.svg"
        terminal.write_text(drawn(shown, folder))
        save(cropped(screenshot(chromium, terminal, folder, 1280, 700)), "terminal")


def run(command: str, folder: Path) -> str:
    """Runs a command of this environment in a folder; returns what it prints."""
    words = [sys.executable, "-m", *command.split()]
    done = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


def drawn(shown: list[tuple[str, str]], folder: Path) -> str:
    """Returns a terminal with commands and their output, as SVG."""
    console = Console(record=True, width=116, file=io.StringIO(), force_terminal=True)
    for command, output in shown:
        folded = command.replace(" --splits", " \\\n    --splits")
        console.print(Text("$ ", "bold green") + Text(folded))
        console.print(Text.from_ansi(output.replace(str(folder), "/home/you").rstrip()))
    console.print()
    return console.export_svg(title="imageshards")


def screenshot(chromium: str, page: Path, folder: Path, width: int, height: int) -> Image.Image:
    """Returns a page as Chromium shows it, at 1.5 times the resolution."""
    picture = folder / "screenshot.png"
    profile = f"--user-data-dir={folder / 'profile'}"
    options = [f"--window-size={width},{height}", "--force-device-scale-factor=1.5"]
    command = [chromium, *FLAGS, profile, *options, f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return Image.open(picture)


def cropped(image: Image.Image) -> Image.Image:
    """Returns an image without its white border."""
    inverted = image.convert("L").point(lambda level: 255 - level)
    return image.crop(inverted.getbbox())


def save(image: Image.Image, name: str) -> None:
    """Writes a picture with 256 colors, which is a third of the size."""
    image.convert("RGB").quantize(256).save(IMAGES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["chromium"]))
