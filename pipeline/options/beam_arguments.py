"""Beam's own arguments: which runner they select, and which ones it ignores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

_IN_PROCESS = "FnApiRunner"
_LOCAL = (_IN_PROCESS, "DirectRunner")
_FLINK = ("FlinkRunner", "PortableRunner")
_DATAFLOW = ("DataflowRunner",)
RUNNERS = (*_LOCAL, *_FLINK, *_DATAFLOW, "PrismRunner")
_ONLY_FOR = {
    "--direct_running_mode": _LOCAL,
    "--direct_num_workers": _LOCAL,
    "--parallelism": _FLINK,
    "--environment_cache_millis": _FLINK,
    "--num_workers": _DATAFLOW,
    "--max_num_workers": _DATAFLOW,
}
DOCUMENTED = (
    "--runner", "--project", "--region", "--temp_location", "--staging_location", "--job_name",
    "--num_workers", "--max_num_workers", "--machine_type", "--disk_size_gb",
    "--direct_num_workers", "--direct_running_mode", "--flink_master", "--parallelism",
    "--environment_type",
    "--environment_config", "--sdk_container_image", "--service_account_email", "--subnetwork",
    "--template_location", "--experiments", "--dataflow_service_options",
)  # fmt: skip
"""The options of Beam that help, completion and suggestions name. It has some 170."""
_SERVICES = ("--job_endpoint", "--flink_master")
_THIS_MACHINE = re.compile(r"(\w+://)?(localhost|127\.0\.0\.1)(:|$)|\[(local|auto)\]")
# Beam's option --labels has values such as airflow-version=v3-3-2, which Airflow adds. Flex
# Templates write them as {"key": "value"}.
_BEAM_LABEL = re.compile(r"[a-z][a-z0-9_-]*=|\{")


def is_beam_label(text: str) -> bool:
    """Returns whether a value of `--labels` is a label of the job, not a rule for images."""
    return bool(_BEAM_LABEL.match(text))


def beam_labels(texts: Sequence[str]) -> list[str]:
    """Returns the values of `--labels` that are labels of the job, as arguments of Beam."""
    return [f"--labels={text}" for text in texts if is_beam_label(text)]


def with_runner(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with a `--runner`: the local runner, unless they select another."""
    if any(argument.split("=")[0] == "--runner" for argument in arguments):
        return list(arguments)
    # DirectRunner would first look for Prism on the network.
    return [*arguments, f"--runner={_IN_PROCESS}"]


def given_runner(arguments: Sequence[str]) -> str:
    """Returns the value of `--runner` as it was written; the last one wins."""
    named = [name for word, name in pairwise(_words(arguments)) if word == "--runner"]
    return named[-1] if named else ""


def runner_of(arguments: Sequence[str]) -> str:
    """Returns the name of the runner; Beam accepts several spellings."""
    name = given_runner(arguments).rpartition(".")[2]
    known = (r for r in RUNNERS if name.lower() in (r.lower(), r.lower().removesuffix("runner")))
    return next(known, name)


def ignored_options(arguments: Sequence[str]) -> str:
    """Returns a warning about options of Beam that the runner ignores; empty if there are none."""
    words = _words(arguments)
    runner = runner_of(arguments)
    ignored = [n for n, runners in _ONLY_FOR.items() if n in words and runner not in runners]
    return f"{runner} ignores {', '.join(ignored)}" if ignored else ""


def is_local_runner(arguments: Sequence[str]) -> bool:
    """Returns whether the runner uses this machine only, in this process or in others."""
    return runner_of(arguments) in _LOCAL


def uses_other_machines(arguments: Sequence[str]) -> bool:
    """Returns whether workers may be on other machines, without access to this one's files."""
    words = _words(arguments)
    services = [value for word, value in pairwise(words) if word in _SERVICES]
    if is_local_runner(arguments):
        return False
    known = runner_of(arguments) in (*_FLINK, "PrismRunner")
    return not known or not all(map(_THIS_MACHINE.match, services))


def is_dataflow(arguments: Sequence[str]) -> bool:
    """Returns whether the runner is Dataflow's."""
    return runner_of(arguments) in _DATAFLOW


def is_in_process(arguments: Sequence[str]) -> bool:
    """Returns whether the runner runs the whole graph in this process."""
    joined = " ".join(_words(arguments))
    return runner_of(arguments) == _IN_PROCESS and "--direct_running_mode multi" not in joined


def _words(arguments: Sequence[str]) -> list[str]:
    """Returns option names and values as words, whether an equals sign separates them or not."""
    return " ".join(arguments).replace("=", " ").split()
