"""Maps the top-level folders to packages of the import name `imageshards`.

This is in setup.py and not in pyproject.toml because Beam's --setup_file builds the workers'
package from it.
"""

from setuptools import find_packages, setup

FOLDERS = ("launch", "pipeline", "reader", "transforms")

PACKAGES = {"imageshards": "api"}
for folder in FOLDERS:
    for name in ("", *find_packages(folder)):
        path = f"{folder}/{name}".replace(".", "/").rstrip("/")
        PACKAGES["imageshards." + path.replace("/", ".")] = path

setup(
    packages=list(PACKAGES),
    package_dir=PACKAGES,
    package_data={"imageshards": ["py.typed"], "imageshards.reader.report": ["page.html"]},
)
