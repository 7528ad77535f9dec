"""An extension of griffe: docstrings and signatures as the API reference shows them.

Examples become blocks of code, wherever they are in a docstring. The arguments of
`**options: Unpack[Options]` are shown one by one; griffe's own extension for this adds a second
list of arguments, without descriptions, to a docstring that describes them already.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?m)^>>> (?:.+\n?)+")


class Docstrings(griffe.Extension):
    """Changes the docstrings and signatures of a package."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Runs when all modules of a package are loaded, before docstrings are parsed."""
        for found in _objects(pkg):
            if found.docstring:
                found.docstring.value = _EXAMPLE.sub(_block, found.docstring.value)
            if isinstance(found, griffe.Function):
                _unpack(found, pkg)


def _block(example: re.Match[str]) -> str:
    return f"```pycon\n{example[0].rstrip()}\n```\n"


def _unpack(function: griffe.Function, package: griffe.Module) -> None:
    """Replaces a parameter with the annotation Unpack[...] by the keys of the TypedDict."""
    for parameter in list(function.parameters):
        annotation = parameter.annotation
        if not isinstance(annotation, griffe.ExprSubscript):
            continue
        if annotation.canonical_path != "typing.Unpack":
            continue
        options = package.modules_collection[str(annotation.slice.canonical_path)]
        del function.parameters[parameter.name]
        for key in options.attributes.values():
            function.parameters.add(
                griffe.Parameter(
                    key.name,
                    annotation=key.annotation,
                    kind=griffe.ParameterKind.keyword_only,
                    default=_default(key.name, options.parent),
                )
            )


def _default(name: str, module: griffe.Module) -> Any:
    """The default of the field of this name in a dataclass of the module."""
    values = (owner.attributes[name].value for owner in module.classes.values()
              if name in owner.attributes)  # fmt: skip
    return next((value for value in values if value is not None), "...")


def _objects(owner: griffe.Module | griffe.Class) -> Iterator[griffe.Object]:
    for member in owner.members.values():
        if isinstance(member, griffe.Object):
            yield member
            if isinstance(member, griffe.Module | griffe.Class):
                yield from _objects(member)
