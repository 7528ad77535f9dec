"""Which image of the inputs an annotation file means by a name. Pure.

An image's URI and a name match if they have the same base name; a name without a suffix matches
any suffix. The case of suffixes matters only if it distinguishes images. Of several images, the one
is taken whose URI has more of the name: all of it, below the folder of the annotation file; or all
of it. The base name is enough if no other name of the file with this base name finds its image by
its path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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
    """Matches the images and the names of one stem, in a time that is linear in their number.

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
    uris = sorted(set(uris))
    for by_path in (True, False):
        for uri_of, name_of in _spellings(uris, names):
            if found := _match([*uri_of], [*name_of], folder, source, by_path):
                return {name_of[name]: uri_of[uri] for name, uri in found.items()}
    return {}


def _spellings(
    uris: Sequence[str], names: Sequence[str]
) -> Iterator[tuple[Mapping[str, str], Mapping[str, str]]]:
    """Yields the URIs and the names as they are, and with suffixes in small letters.

    Windows takes a.JPG and a.jpg for one name, so a file may have the one and a disk the other. If
    the case distinguishes images, they are yielded as they are only.
    """
    yield dict(zip(uris, uris, strict=True)), dict(zip(names, names, strict=True))
    uri_of = {_with_small_suffix(uri): uri for uri in uris}
    name_of = {_with_small_suffix(name): name for name in names}
    if len(uri_of) == len(uris) and len(name_of) == len(names):
        yield uri_of, name_of


def _match(
    uris: Sequence[str], names: Sequence[str], folder: str, source: str, by_path: bool
) -> dict[str, str]:
    """Matches by the paths of the names, or by their base names; see `match`."""
    whole, ends = _indexed(uris, names)
    found: dict[str, str] = {}
    taken: set[str] = set()
    steps: list[tuple[Mapping[str, list[str]], Callable[[str], str]]]
    steps = [(whole, folder.__add__), (ends, str)] if by_path else [(ends, _base)]
    for index, looked_up in steps:
        names_of: dict[str, str] = {}
        for name in names:
            if name in found:
                continue
            # An image that has a better name is not meant by this one.
            images = [uri for uri in index.get(looked_up(name), ()) if uri not in taken]
            if len(images) > 1:
                raise BuildError(
                    f"{source}: the image {name} may be {images[0]} or {images[1]}: name it by its "
                    "path in the file, or put the file into the folder of its images"
                )
            if images and (other := names_of.setdefault(images[0], name)) != name:
                raise BuildError(
                    f"{source}: {images[0]} may be the image {other} or {name}: add the other "
                    "image to the inputs, or remove it from the file"
                )
        taken.update(names_of)
        found |= {name: uri for uri, name in names_of.items()}
    return found


def _indexed(
    uris: Sequence[str], names: Iterable[str]
) -> tuple[Mapping[str, list[str]], Mapping[str, list[str]]]:
    """Returns URI -> itself, and the end of a URI -> the URIs, both also without the suffix.

    Args:
      uris: of the images.
      names: what is looked up; ends have as many parts as one of these.
    """
    depths = {0, *(name.count("/") for name in names)}
    whole: dict[str, list[str]] = {}
    ends: dict[str, list[str]] = {}
    for uri in uris:
        for text in dict.fromkeys((uri, _without_suffix(uri))):
            whole.setdefault(text, []).append(uri)
            parts = text.split("/")
            for depth in depths:
                if depth < len(parts):
                    ends.setdefault("/".join(parts[-1 - depth :]), []).append(uri)
    return whole, ends


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _with_small_suffix(name: str) -> str:
    """Returns a name with its suffix in small letters, if that is one of an image."""
    begin = len(_without_suffix(name))
    return name[:begin] + name[begin:].lower()


def _without_suffix(uri: str) -> str:
    folder, slash, _ = uri.rpartition("/")
    return folder + slash + stem(uri)


def is_path_of(name: str, uri: str) -> bool:
    """Returns whether an image's URI ends with all of a name, and not only with its base name.

    >>> is_path_of("a/1", "/d/a/1.jpg"), is_path_of("b/1.jpg", "/d/a/1.jpg")
    (True, False)
    >>> is_path_of("a/1.JPG", "/d/a/1.jpg")
    True
    """
    name, uri = _with_small_suffix(name), _with_small_suffix(uri)
    return any(f"/{text}".endswith(f"/{name}") for text in (uri, _without_suffix(uri)))


def has_same_folder(name: str, uri: str) -> bool | None:
    """Returns whether the last folder of a name is that of an image's URI; None if it has none.

    >>> has_same_folder("val/1.jpg", "/d/val/1.jpg"), has_same_folder("val/1.jpg", "/d/train/1.jpg")
    (True, False)
    """
    if "/" not in name:
        return None
    return name.split("/")[-2] == uri.split("/")[-2]


def by_stem(names: Iterable[str]) -> Mapping[str, list[str]]:
    """Returns stem -> the names that have it, in order."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(stem(name), []).append(name)
    return found
