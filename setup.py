"""Maps the top-level folders to packages of the import name `imageshards`.

This is in setup.py and not in pyproject.toml because Beam's --setup_file builds the workers'
package from it. The licence is here because setuptools before and after version 77 expect different
values in pyproject.toml, and Beam builds with the setuptools of the environment.
"""

from setuptools import find_packages, setup

FOLDERS = ("launch", "pipeline", "reader", "transforms")

PACKAGES = {"imageshards": "api"}
for folder in FOLDERS:
    for name in ("", *find_packages(folder)):
        path = f"{folder}/{name}".replace(".", "/").rstrip("/")
        PACKAGES["imageshards." + path.replace("/", ".")] = path

setup(
    license="Apache-2.0",
    packages=list(PACKAGES),
    package_dir=PACKAGES,
    package_data={
        "imageshards": ["py.typed"],
        "imageshards.launch": ["digits.*"],
        "imageshards.launch.fleet": ["measured.json"],
        "imageshards.reader.report": ["page.html"],
    },
)
