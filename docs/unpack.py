"""An extension of griffe: shows the keyword arguments of `**options: Unpack[Options]` one by one.

griffe's own extension of this kind adds a second list of arguments, without descriptions, to a
docstring that describes them already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import griffe


class UnpackOptions(griffe.Extension):
    """Replaces a parameter with the annotation Unpack[...] by the keys of the TypedDict."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Changes the functions of a package when all of its modules are loaded."""
        for function in _functions(pkg):
            for parameter in list(function.parameters):
                annotation = parameter.annotation
                if not isinstance(annotation, griffe.ExprSubscript):
                    continue
                if annotation.canonical_path != "typing.Unpack":
                    continue
                keys = pkg.modules_collection[annotation.slice.canonical_path].attributes.values()
                del function.parameters[parameter.name]
                for key in keys:
                    function.parameters.add(
                        griffe.Parameter(
                            key.name,
                            annotation=key.annotation,
                            kind=griffe.ParameterKind.keyword_only,
                            default="...",
                        )
                    )


def _functions(owner: griffe.Module | griffe.Class) -> Iterator[griffe.Function]:
    for member in owner.members.values():
        if member.is_alias:
            continue
        if isinstance(member, griffe.Function):
            yield member
        elif isinstance(member, griffe.Module | griffe.Class):
            yield from _functions(member)
