import pytest

from imageshards.transforms.elements import BuildError
from imageshards.transforms.references.classes import number_classes

COLUMN = frozenset(["column label"])
FOLDER = frozenset(["folder"])


@pytest.mark.parametrize(
    ("found", "sources", "names", "numbers", "says"),
    [
        (["b", "a"], FOLDER, "a b", {"a": 0, "b": 1}, "by folder"),
        (["10", "9"], FOLDER, "10 9", {"10": 0, "9": 1}, "by folder"),
        (["2", "0"], COLUMN, "0 1 2", {"0": 0, "2": 2}, "1 of 0 to 2 have no image"),
        (["0.0", "1.0"], COLUMN, "0 1", {"0.0": 0, "1.0": 1}, "are the label numbers"),
        (["000", "001"], COLUMN, "0 1", {"000": 0, "001": 1}, "are the label numbers"),
        (["0", "?"], COLUMN, "0 ?", {"0": 0, "?": 1}, "as names: '?' is not a number"),
        (["-1", "1"], COLUMN, "-1 1", {"-1": 0, "1": 1}, "as names: '-1' is not a number"),
        (["0", "x"], COLUMN | FOLDER, "0 x", {"0": 0, "x": 1}, "by column label and folder"),
    ],
)
def test_classes_are_numbered_by_name_or_number(
    found: list, sources: frozenset, names: str, numbers: dict, says: str
):
    classes = number_classes(found, sources)
    assert classes.names == tuple(names.split())
    assert classes.numbers == numbers
    assert says in classes.note


@pytest.mark.parametrize("name", ["a\nb", " a", "a ", "a\r", "\udce9"])
def test_names_that_no_file_of_names_can_hold_are_errors(name: str):
    with pytest.raises(BuildError, match="rename it"):
        number_classes([name], FOLDER)


def test_no_class_may_be_named_background_with_label_offset():
    with pytest.raises(BuildError, match="named 'background'"):
        number_classes(["background", "owl"], FOLDER, offset=1)


def test_a_number_too_large_for_a_class_is_an_error():
    with pytest.raises(BuildError, match="label 1048576 is too large"):
        number_classes(["1048576"], COLUMN)


@pytest.mark.parametrize("texts", [["1.37", "2"], ["1e-3", "0.5"], ["-0.5"], [".5", "7."]])
def test_numbers_that_are_not_whole_are_values_and_not_classes(texts: list[str]):
    with pytest.raises(BuildError, match="--labels column:price:float"):
        number_classes(texts, frozenset(["column price"]))
    assert number_classes(texts, FOLDER).names == tuple(sorted(texts))
    assert number_classes(texts, frozenset(["column price"]), given=texts).names == tuple(texts)
    assert "x" in number_classes([*texts, "x"], frozenset(["column price"])).names


@pytest.mark.parametrize("nothing", ["nan", "NaN"])
def test_a_missing_number_is_no_class(nothing: str):
    with pytest.raises(BuildError, match=f"column 'label' are numbers, but some are '{nothing}'"):
        number_classes(["0", "1", nothing], COLUMN)
    with pytest.raises(BuildError, match=r"not whole, such as '1\.5'"):
        number_classes(["1.5", "2", nothing], COLUMN)
    # Nan is a name too: of bread, and of people.
    assert nothing in number_classes([nothing, "roti"], COLUMN).names
    assert nothing in number_classes([nothing], COLUMN).names
    assert nothing in number_classes(["0", "1", nothing], FOLDER).names
    assert nothing in number_classes(["0", nothing], COLUMN, given=["0", nothing]).names
