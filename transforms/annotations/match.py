"""Which image of the inputs an annotation file means by a name. Pure.

An image's URI and a name match if they have the same base name; a name without a suffix matches
any suffix. Of several images, the one is taken whose URI has more of the name: all of it, below the
folder of the annotation file; or all of it; or its base name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from imageshards.transforms.elements import BuildError
from imageshards.transforms.images.validate import is_image_name


def stem(name: str) -> str:
    """Returns the base name of an image without its suffix: what names are grouped by.

    >>> stem("train/000139.v2.jpg"), stem("000139.v2")
    ('000139.v2', '000139.v2')
    """
    base = name.rpartition("/")[2]
    return base.rpartition(".")[0] if is_image_name(base) else base


def normalized(name: str) -> str:
    r"""Returns a name with slashes, and without a dot or a slash at its beginning.

    >>> normalized(".\\images\\1.jpg"), normalized("/data/upload/1.jpg")
    ('images/1.jpg', 'data/upload/1.jpg')
    """
    parts = name.replace("\\", "/").split("/")
    return "/".join(part for part in parts if part not in ("", ".", ".."))


def match(uris: Iterable[str], names: Sequence[str], folder: str, source: str) -> dict[str, str]:
    """Matches the images and the names of one stem.

    Args:
      uris: of the images.
      names: of images in an annotation file; see `normalized`.
      folder: of the file, with a slash at its end.
      source: the file, for messages.

    Returns:
      name -> URI, for the names that have an image. No image has two names.

    Raises:
      BuildError: a name fits several images equally well, or an image several names.

    >>> match(["/d/train/1.jpg", "/d/test/1.jpg"], ["test/1.jpg"], "/annotations/", "a.json")
    {'test/1.jpg': '/d/test/1.jpg'}
    """
    images = sorted(set(uris))
    found: dict[str, tuple[int, str]] = {}
    for name in names:
        fits = {uri: fit for uri in images if (fit := _fit(uri, name, folder))}
        best = [uri for uri, fit in fits.items() if fit == max(fits.values())]
        if len(best) > 1:
            raise BuildError(
                f"{source}: the image {name} may be {best[0]} or {best[1]}: name it by its path "
                "in the file, or put the file into the folder of its images"
            )
        if not best:
            continue
        known, fit = found.get(best[0]), fits[best[0]]
        if known and known[0] == fit:
            raise BuildError(
                f"{source}: {best[0]} may be the image {known[1]} or {name}: add the other image "
                "to the inputs, or remove it from the file"
            )
        if not known or fit > known[0]:
            found[best[0]] = fit, name
    return {name: uri for uri, (_, name) in found.items()}


def _fit(uri: str, name: str, folder: str) -> int:
    """Returns how well a URI and a name match: 0, not at all, to 3."""
    if not is_image_name(name):  # a name without a suffix
        uri = uri[: len(uri) - len(uri.rpartition("/")[2]) + len(stem(uri))]
    if uri == folder + name:
        return 3
    if uri == name or uri.endswith(f"/{name}"):
        return 2
    return int(uri.rpartition("/")[2] == name.rpartition("/")[2])


def by_stem(names: Iterable[str]) -> Mapping[str, list[str]]:
    """Returns stem -> the names that have it, in order."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(stem(name), []).append(name)
    return found
