"""Files that forges, package indexes and catalogues read: they parse, and agree with the code."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    phony = re.search(r"(?m)^\.PHONY:(.*)$", text)
    assert phony
    return {*phony[1].split()}


def test_there_are_workflows():
    assert {path.stem for path in WORKFLOWS} == {"ci", "release"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_existing_make_targets(path: Path):
    jobs = yaml.safe_load(path.read_text())["jobs"]
    run: list[str] = []
    for job in jobs.values():
        matrix = job.get("strategy", {}).get("matrix", {})
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            command = step.get("run", "")
            variable = re.search(r"\$\{\{ matrix\.(\w+) \}\}", command)
            values = matrix[variable[1]] if variable else [""]
            run.extend(command.replace(variable[0] if variable else "\0", v) for v in values)
    targets = {word for command in run for word in re.findall(r"make ([\w-]+)", command)}
    assert targets
    assert targets <= make_targets()


def test_ci_tests_every_version_of_python_that_the_package_names():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    tested = jobs["test"]["strategy"]["matrix"]["python"]
    named = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if "Python :: 3." in text]
    assert tested == named
    assert PROJECT["requires-python"] == f">={tested[0]}"


def test_a_release_needs_no_secret():
    text = (ROOT / ".github/workflows/release.yml").read_text()
    assert "secrets." not in text
    assert yaml.safe_load(text)["jobs"]["publish"]["permissions"] == {"id-token": "write"}


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_a_form_for_issues_has_what_the_forge_requires(name: str):
    form = yaml.safe_load((ROOT / f".github/ISSUE_TEMPLATE/{name}.yml").read_text())
    assert {"name", "description", "body"} <= form.keys()
    assert all(field["type"] == "textarea" and field["attributes"]["label"]
               for field in form["body"])  # fmt: skip
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len({*ids})


def test_the_citation_agrees_with_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["title"].startswith(PROJECT["name"])
    assert citation["authors"] == PROJECT["authors"]
    assert citation["license"] == "Apache-2.0"
    # Only pyproject.toml has the version.
    assert "version" not in citation


def test_the_changelog_keeps_its_form():
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"(?m)^## (.+)$", text)
    assert versions[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", name) for name in versions[1:])
    kinds = {
        "Breaking", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Shards",
    }  # fmt: skip
    for part in re.split(r"(?m)^## ", text)[1:]:
        headings = re.findall(r"(?m)^### (.+)$", part)
        assert {*headings} <= kinds
        assert len(headings) == len({*headings})


def test_an_installation_with_an_old_python_is_refused_in_one_line(tmp_path: Path):
    done = subprocess.run(
        ["sh", ROOT / ".ci/install", tmp_path / "venv"], env={**os.environ, "PYTHON": "false"},
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "requires Python 3.11 or newer, and 'false' is not" in done.stderr
    assert not (tmp_path / "venv").exists()
