"""Packages of imageshards: the top-level folders, installed under one import name.

This file and not pyproject.toml names them because Beam's --setup_file stages what it builds.
"""

from setuptools import setup

FOLDERS = ("pipeline", "transforms", "reader", "launch", "launch/dataflow")
PACKAGES = {f"imageshards.{folder.replace('/', '.')}": folder for folder in FOLDERS}

setup(
    packages=list(PACKAGES),
    package_dir=PACKAGES,
    package_data={package: ["py.typed"] for package in PACKAGES},
)
