"""Files of options in YAML: `--config FILE` reads them, each build writes metadata/build.yaml.

    input: [photos, more/*.jpg]
    output: gs://bucket/dataset
    splits: train=0.9,test=0.1
    overwrite: true
    beam:
      runner: DataflowRunner
      region: us-central1

A value is the text of the command line, quoted or not; switches are true or false, options that are
repeated on the command line are lists. Options of Beam are in the section `beam`. Relative paths
are relative to the working directory, as on the command line.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from imageshards.pipeline.options.beam_arguments import DOCUMENTED
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.options.declare import Option, options_of
from imageshards.pipeline.options.parser import closest, refuse, with_underscores

_MOST_BYTES = 1 << 20
_BEAM = "beam"

_HEADER = """\
# The options of this data set, written by imageshards {version}. To build it again:
#   imageshards build --config build.yaml --output DIR
# Relative paths are relative to the folder in which the command runs.
"""


@dataclass
class _File:
    """The content of a file of options.

    Attributes:
      texts: option -> its values, as on the command line; those of a switch are "true" or "false".
      beam: arguments of Beam.
    """

    texts: dict[str, list[str]] = field(default_factory=dict)
    beam: list[str] = field(default_factory=list)


def apply_config(args: Namespace, options: type[BuildOptions] = BuildOptions) -> None:
    """Adds the options of the file of `--config` to a parsed command line, which precede them.

    Args:
      args: the parsed command line, with `beam_arguments`. Without `--config` nothing changes.
      options: the options that the file may have.

    Raises:
      UsageError: the file cannot be read, is not YAML, or has a wrong name or value; with the line.
    """
    declared = {option.name: option for g in options.command_line() for option in options_of(g)}
    path = declared["config"].parsed(args.config) if args.config else ""
    found = _read(str(path), declared) if path else _File()
    for name, option in declared.items():
        texts = found.texts.get(name, [])
        if option.is_switch:
            is_on = getattr(args, name) or texts == ["true"]
            setattr(args, name, is_on and not getattr(args, f"no_{name}"))
        elif not (option.is_list and getattr(args, name)):
            # The last value counts.
            setattr(args, name, [*texts, *getattr(args, name)])
    given = {argument.partition("=")[0] for argument in map(with_underscores, args.beam_arguments)}
    kept = [argument for argument in found.beam if argument.partition("=")[0] not in given]
    args.beam_arguments = [*kept, *map(with_underscores, args.beam_arguments)]


def _read(path: str, declared: dict[str, Option]) -> _File:
    return _parsed(_text_of(path), path, declared)


def _parsed(text: str, path: str, declared: dict[str, Option]) -> _File:
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        refuse(f"--config {path}:{line}: not YAML: {error.problem}")
    except yaml.YAMLError as error:
        refuse(f"--config {path}: not YAML: {' '.join(str(error).split())}")
    except RecursionError:
        refuse(f"--config {path}: nested too deeply: this is not a file of options")
    found = _File()
    if root is None:
        return found
    for name, node in _items(root, path):
        at = f"{path}:{node.start_mark.line + 1}"
        if name == _BEAM:
            found.beam = [argument for item in _items(node, path) for argument in _beam(*item, at)]
            continue
        option = _option_named(name, declared, at)
        if option.name in found.texts:
            refuse(f"--config {at}: {name} is another name of an option that is set already")
        found.texts[option.name] = _texts(option, node, at)
    return found


def _text_of(path: str) -> str:
    from imageshards.transforms import storage

    try:
        with storage.open_read(storage.normalize(path)) as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        refuse(f"--config {path}: cannot be read: {error.strerror or 'no such file'}")
    if len(content) > _MOST_BYTES:
        refuse(f"--config {path}: larger than 1 MB: this is not a file of options")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        refuse(f"--config {path}: not UTF-8 at byte {error.start}")


def _items(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields the names and nodes of a mapping."""
    at = f"{path}:{node.start_mark.line + 1}"
    if node.id != "mapping":
        refuse(f"--config {at}: expected lines like `num_shards: 16`")
    lines: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.id != "scalar":
            refuse(f"--config {path}:{line}: expected the name of an option")
        name = key.value.replace("-", "_")
        if name in lines:
            refuse(f"--config {path}:{line}: {name} is in line {lines[name]} already")
        lines[name] = line
        yield name, value


def _option_named(name: str, declared: dict[str, Option], at: str) -> Option:
    for option in declared.values():
        if f"--{name}" in (option.flag, *option.aliases):
            if option.name == "config":
                refuse(f"--config {at}: a file of options names no other one")
            return option
    if f"--{name}" in DOCUMENTED:
        refuse(f"--config {at}: {name} is an option of Beam: write it in a section `{_BEAM}:`")
    similar = closest(name, [*declared, _BEAM])
    hint = f", did you mean {similar}?" if similar else ""
    refuse(
        f"--config {at}: unknown option {name!r}{hint} (imageshards build --help-all lists the "
        f"options; those of Beam are in a section `{_BEAM}:`)"
    )


def _texts(option: Option, node: Any, at: str) -> list[str]:
    texts = _scalars(option.name, node, at, is_list=option.is_list)
    if option.is_switch:
        if texts[0].lower() not in ("true", "false"):
            refuse(f"--config {at}: invalid {option.name} {texts[0]!r}: expected true or false")
        return [texts[0].lower()]
    if option.separator and texts:
        texts = [option.separator.join(texts)]
    try:
        if texts:
            option.check(option.parsed(texts))
    except ValueError as error:
        refuse(f"--config {at}: {error}")
    return texts


def _beam(name: str, node: Any, at: str) -> list[str]:
    texts = _scalars(name, node, at, is_list=True)
    if texts in (["true"], ["false"]):
        return [f"--{name}"] if texts == ["true"] else []
    return [f"--{name}={text}" for text in texts]


def _scalars(name: str, node: Any, at: str, *, is_list: bool) -> list[str]:
    nodes = node.value if node.id == "sequence" else [node]
    if node.id == "sequence" and not is_list:
        refuse(f"--config {at}: {name} takes one value, not a list")
    if any(item.id != "scalar" for item in nodes):
        refuse(f"--config {at}: {name} takes a value such as a text or a number; quote texts")
    return [item.value for item in nodes]


def build_yaml(options: BuildOptions, *, name: str, version: str) -> bytes:
    """Returns the content of build.yaml, with which `--config` builds the same data set.

    It depends on nothing but its arguments. It has no options of Beam, which may be secrets, and no
    option that depends on who builds the data set where.

    Args:
      options: of the build.
      name: the name of the data set.
      version: of imageshards.
    """
    values = {**options.values(), "name": name}
    content: dict[str, Any] = {}
    for option in options.declared().values():
        value = values[option.name]
        if not option.in_build_yaml or not (option.affects_shards or value != option.default):
            continue
        if isinstance(value, tuple):
            value = list(value) or option.empty
        if value != "":
            content[option.name] = value
    return (_HEADER.format(version=version) + _dumped(content)).encode()


def with_options(content: bytes, **options: str | int) -> bytes:
    r"""Returns the content of a build.yaml with other values of some options.

    >>> with_options(b"# 1\ninput: [photos]\nnum_shards: train=2\n", num_shards="train=8")
    b'# 1\ninput:\n- photos\nnum_shards: train=8\n'
    """
    import yaml

    text = content.decode()
    comments = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    values = {**yaml.safe_load(text), **options}
    return (comments + _dumped(values)).encode()


def arguments_of(content: bytes, options: type[BuildOptions] = BuildOptions) -> list[str]:
    r"""Returns the options of a build.yaml as arguments of `imageshards build`, without defaults.

    >>> arguments_of(b"input: [photos]\nseed: 7\ndescription: -a dash")
    ['--input=photos', '--seed=7', '--description=-a dash']

    Raises:
      UsageError: it has an option or a value that `options` does not allow.
    """
    declared = options.declared()
    arguments = []
    for name, texts in _parsed(content.decode(), "build.yaml", declared).texts.items():
        option = declared[name]
        if option.is_switch:
            arguments += [option.flag] * (texts == ["true"])
        elif option.parsed(texts) != option.default:
            arguments += [f"{option.flag}={text}" for text in texts]
    return arguments


def _dumped(content: dict[str, Any]) -> str:
    """Returns YAML in which texts that contain line breaks are quoted."""
    import yaml

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        """Quotes texts with line breaks of Unicode, which PyYAML would fold otherwise."""

    def represent(dumper: Any, text: str) -> Any:
        style = None if text.splitlines() == [text] else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, represent)
    text: str = yaml.dump(content, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return text
