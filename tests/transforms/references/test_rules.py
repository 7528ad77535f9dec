import pytest

from imageshards.transforms.references.rules import GroupRule, LabelRule, ShardCounts, SplitRule


@pytest.mark.parametrize(
    ("parse", "text", "says"),
    [
        (LabelRule.parse, "folder", "write auto, dirname"),
        (LabelRule.parse, "regex:([a-z", "not a regular expression"),
        (LabelRule.parse, "regex:abc", "has no group"),
        (SplitRule.parse, "train=0.8", "add up to 0.8"),
        (SplitRule.parse, "train=0.8,test=0.3", "add up to 1.1"),
        (SplitRule.parse, "train=80,test=0.2", "train=80 must be"),
        (SplitRule.parse, "train=80,test=0", "at least 1 image"),
        (SplitRule.parse, "train=x,test=1", "train=x must be"),
        (SplitRule.parse, "train=0.5,train=0.5", "occurs twice"),
        (SplitRule.parse, "train-a=1", "is not a name of a split"),
        (SplitRule.parse, "train", "write train=0.8"),
        (SplitRule.parse, "", "write train=0.8"),
        (GroupRule.parse, "column", "column:NAME"),
        (ShardCounts.parse, "0", "1 to 99999"),
        (ShardCounts.parse, "-3", "1 to 99999"),
        (ShardCounts.parse, "many", "1 to 99999"),
        (ShardCounts.parse, "train=2,test", "write it like"),
        (ShardCounts.parse, "100000", "1 to 99999"),
    ],
)
def test_errors_name_the_option_and_what_to_write(parse, text: str, says: str):
    with pytest.raises(ValueError, match=says) as caught:
        parse(text)
    assert str(caught.value).startswith("--")


def test_rules_are_parsed():
    assert LabelRule.parse("column:cls").column == "cls"
    assert LabelRule.parse("auto").column == "label"
    assert LabelRule.parse("dirname").column is None
    assert SplitRule.parse("a=0.25,b=0.75").ratios == (0.25, 0.75)
    assert SplitRule.parse("column", ["x"]).names == ("x",)
    assert ShardCounts.parse("train=8,test=2").of("test") == 2
    assert ShardCounts.parse("train=8").of("test") is None
    assert ShardCounts.parse("8").of("anything") == 8
