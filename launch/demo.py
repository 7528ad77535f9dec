"""`make demo` builds and verifies a data set of scikit-learn's 1,797 handwritten digits."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from imageshards.launch.cli import main

_EPILOGUE = """
To read it with TensorFlow:

  import tensorflow_datasets as tfds
  data = tfds.builder_from_directory("{output}").as_dataset(split="train")
  print(next(iter(data.batch(32)))["image/encoded"].shape)

Its report: {output}/metadata/report.html"""


def write_digits(folder: Path) -> int:
    """Writes the digits as grayscale PNG files of 8 x 8 pixels: FOLDER/CLASS/NUMBER.png.

    Returns:
      The number of files.
    """
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = folder / str(label) / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 255 / 16).astype("uint8")).save(path)
    return len(digits.target)


def demo(folder: Path) -> int:
    """Writes the images to `folder`, builds and verifies the data set; returns an exit code."""
    images, output = folder / "images", folder / "digits"
    shutil.rmtree(folder, ignore_errors=True)
    count = write_digits(images)
    print(f"{count:,} images in {images}\n")
    build = [
        f"--input={images}", f"--output={output}",
        "--splits=train=0.8,validation=0.1,test=0.1", "--num_shards=train=4,validation=1,test=1",
    ]  # fmt: skip
    print("$ imageshards build", *build, flush=True)
    code = main(["build", *build])
    if code == 0:
        print("\n$ imageshards verify", output, flush=True)
        code = main(["verify", str(output)])
    if code == 0:
        print(_EPILOGUE.format(output=output))
    return code


if __name__ == "__main__":
    sys.exit(demo(Path(sys.argv[1]).resolve()))
