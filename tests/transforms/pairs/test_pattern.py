"""Patterns of paths lead from an image to its file, and recognise such files."""

import pytest

from imageshards.transforms.pairs.pattern import PathPattern


@pytest.mark.parametrize(
    ("text", "root", "name", "uri"),
    [
        ("masks/{stem}.png", "/d/", "1.jpg", "/d/masks/1.png"),
        ("masks/{stem}.png", "/d/", "a/b/1.x.jpg", "/d/masks/1.x.png"),
        ("masks/{dir}/{stem}.png", "/d/", "a/b/1.jpg", "/d/masks/a/b/1.png"),
        ("masks/{dir}/{stem}.png", "/d/", "1.jpg", "/d/masks/1.png"),
        ("{dir}/{stem}_mask{suffix}", "gs://b/d/", "a/1.PNG", "gs://b/d/a/1_mask.PNG"),
        ("{dir}/{stem}_mask.png", "", "/elsewhere/1.jpg", "/elsewhere/1_mask.png"),
        ("../masks/{name}", "/d/photos/", "1.png", "/d/masks/1.png"),
        ("../masks/{name}", "gs://b/photos/", "1.png", "gs://b/masks/1.png"),
        ("gs://other/{dir}/{name}", "/d/", "a/1.png", "gs://other/a/1.png"),
        ("/m/{stem}.png", "gs://b/", "x{stem}.jpg", "/m/x{stem}.png"),
        ("{stem}.png", "/d/", "none", "/d/none.png"),
        ("{stem}{suffix}.png", "/d/", ".hidden", "/d/.hidden.png"),
    ],
)
def test_the_file_of_an_image(text: str, root: str, name: str, uri: str):
    pattern = PathPattern.parse("--masks", text)
    assert pattern.uri(root, name) == uri
    if root:
        assert pattern.matches(uri, root)


def test_other_files_are_not_matched():
    pattern = PathPattern.parse("--masks", "masks/{dir}/{stem}.png")
    assert pattern.matches("/d/masks/a/1.png", "/d/")
    for other in ("/d/a/1.png", "/d/masks/a/1.jpg", "/d/x/masks/1.png", "/e/masks/1.png"):
        assert not pattern.matches(other, "/d/")
    assert PathPattern.parse("--masks", "m/{stem}.png", "/d/").matches("/d/m/1.png", "/d/photos/")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("masks/{id}.png", r"--masks 'masks/{id}.png': there is no {id}; write {dir}, {name}"),
        ("masks/mask.png", r"all images would have the same file: write {stem} or {name}"),
        ("masks/{dir}/mask.png", r"all images would have the same file"),
    ],
)
def test_wrong_patterns(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        PathPattern.parse("--masks", text)
