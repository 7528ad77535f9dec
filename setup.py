"""Packages of imageshards: the top-level folders, installed under one import name.

This file and not pyproject.toml names them because Beam's --setup_file stages what it builds.
"""

from setuptools import setup

FOLDERS = ("pipeline", "transforms", "reader", "launch")

setup(
    packages=[f"imageshards.{folder}" for folder in FOLDERS],
    package_dir={f"imageshards.{folder}": folder for folder in FOLDERS},
    package_data={f"imageshards.{folder}": ["py.typed"] for folder in FOLDERS},
)
