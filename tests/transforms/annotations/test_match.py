"""Names in annotation files find their images, or say that they cannot."""

import pytest

from imageshards.transforms.annotations.match import match, normalized
from imageshards.transforms.elements import BuildError


@pytest.mark.parametrize(
    ("uris", "names", "folder", "found"),
    [
        (["/d/1.jpg"], ["1.jpg"], "/", {"1.jpg": "/d/1.jpg"}),
        (["/d/1.jpg"], ["1"], "/", {"1": "/d/1.jpg"}),
        (["/d/1.jpg"], ["1.png"], "/", {}),
        (["/d/1.jpg"], ["images/1.jpg"], "/", {"images/1.jpg": "/d/1.jpg"}),
        (["/d/a/1.jpg", "/d/b/1.jpg"], ["b/1.jpg"], "/", {"b/1.jpg": "/d/b/1.jpg"}),
        # The only image that is an input is that of one of two names.
        (["/d/a/1.jpg"], ["a/1.jpg", "b/1.jpg"], "/", {"a/1.jpg": "/d/a/1.jpg"}),
        # The inputs are some of the annotated folders.
        (["/d/c/1.jpg"], ["a/1.jpg", "b/1.jpg", "c/1.jpg"], "/", {"c/1.jpg": "/d/c/1.jpg"}),
        (["/d/a/1.jpg", "/d/b/1.jpg"], ["a/1.jpg", "b/1.jpg", "c/1.jpg"], "/",
         {"a/1.jpg": "/d/a/1.jpg", "b/1.jpg": "/d/b/1.jpg"}),
        # The image of another folder has no annotation.
        (["/d/a/1.jpg", "/d/z/1.jpg"], ["a/1.jpg", "b/1.jpg"], "/", {"a/1.jpg": "/d/a/1.jpg"}),
        # Roboflow writes an annotation file into each folder of images.
        (["/d/train/1.jpg", "/d/valid/1.jpg"], ["1.jpg"], "/d/valid/",
         {"1.jpg": "/d/valid/1.jpg"}),
        (["/d/v.tar/x/1.jpg"], ["x/1"], "/", {"x/1": "/d/v.tar/x/1.jpg"}),
        # The case of a suffix matters only if it distinguishes images.
        (["/d/1.jpg"], ["1.JPG"], "/", {"1.JPG": "/d/1.jpg"}),
        (["/d/a/1.JPG", "/d/b/1.jpg"], ["a/1.jpg"], "/", {"a/1.jpg": "/d/a/1.JPG"}),
        (["/d/1.jpg"], ["1.jpg", "1.JPG"], "/", {"1.jpg": "/d/1.jpg"}),
        (["/d/1.Jpg"], ["1.jpg", "1.JPG"], "/", {}),
        (["/d/1.jpg"], ["1.PNG"], "/", {}),
    ],
)  # fmt: skip
def test_a_name_finds_the_image_whose_uri_has_most_of_it(
    uris: list[str], names: list[str], folder: str, found: dict[str, str]
):
    assert match(uris, names, folder, "a.json") == found


def test_what_is_ambiguous_is_an_error():
    with pytest.raises(BuildError, match=r"^a.json: the image 1.jpg may be /d/a/1.jpg or /d/b/1"):
        match(["/d/a/1.jpg", "/d/b/1.jpg"], ["1.jpg"], "/", "a.json")
    with pytest.raises(BuildError, match=r"^a.json: /d/1.jpg may be the image a/1.jpg or b/1.jpg"):
        match(["/d/1.jpg"], ["a/1.jpg", "b/1.jpg"], "/", "a.json")


def test_many_images_with_one_base_name_are_matched_by_their_paths():
    names = [f"s{number}/image" for number in range(1000)]
    uris = [f"/d/{name}.jpg" for name in names]
    found = match(uris, names, "/d/", "a.json")
    assert found == dict(zip(names, uris, strict=True))
    assert match(uris, names, "/elsewhere/", "a.json") == found


def test_names_of_other_systems_are_paths():
    assert normalized("C:\\images\\1.jpg") == "C:/images/1.jpg"
    assert normalized("../x/./1.jpg") == "x/1.jpg"
