import pytest

from imageshards.pipeline.config import Config
from imageshards.pipeline.options import check_beam_arguments, with_runner
from imageshards.transforms.elements import UsageError


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"input": ()}, "--input is missing"),
        ({"output": ""}, "--output is missing"),
        ({"check": "fast"}, "--check 'fast': write full or header"),
        ({"writer": "tf"}, "--writer 'tf': write shard or beam"),
        ({"features": "coco"}, "--features 'coco': write slim"),
        ({"convert": "webp"}, "--convert 'webp': write auto or jpeg or png or never"),
        ({"exif": "drop"}, "--exif 'drop': write bake or keep"),
        ({"multi_frame": "last"}, "--multi_frame 'last': write first or all or reject"),
        ({"resize": "256"}, "--resize '256': write short:256"),
        ({"resize": "pad:0x3"}, "write sides from 1 to 65,500"),
        ({"resize": "short:9", "convert": "never"}, "leave --convert never out"),
        ({"resize": "short:9", "multi_frame": "all"}, "--multi_frame all writes animations"),
        ({"convert": "png", "multi_frame": "all"}, "--multi_frame all writes animations"),
        ({"enlarge": True}, "--enlarge goes with --resize"),
        ({"quality": 0}, "--quality 0: write a number from 1 to 100"),
        ({"min_size": 0}, "--min_size 0: write"),
        ({"max_pixels": 1 << 30}, "--max_pixels 1073741824: write a number from 1 to 178956970"),
        ({"max_bytes": -1}, "--max_bytes -1: write"),
        ({"seed": -1}, "--seed -1"),
        ({"seed": 1 << 64}, "--seed 18446744073709551616"),
        ({"max_reject_fraction": 1.5}, "--max_reject_fraction 1.5"),
        ({"max_reject_fraction": float("nan")}, "--max_reject_fraction nan"),
        ({"label_offset": 2}, "--label_offset 2: write 0 or 1"),
        ({"name": "My Data"}, "--name 'My Data'"),
        ({"labels": "none", "class_names": "x"}, "do not go with --labels none"),
        ({"group_by": "dirname"}, "--group_by goes with splits by ratio"),
        ({"splits": "train=1", "num_shards": "test=3"}, "names the split 'test'"),
        ({"splits": "train=0.9", "num_shards": "1"}, "add up to 0.9"),
        ({"splits": "train=1", "split_names": ("a",)}, "--split_names requires"),
        ({"writer": "beam"}, "needs a number of shards for 'train'"),
        ({"writer": "beam", "num_shards": "2", "splits": "folder"}, "needs --split_names"),
    ],
)
def test_every_option_is_checked(options: dict, says: str):
    with pytest.raises(UsageError) as caught:
        Config(**{"input": ("a",), "output": "/o", **options})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def config(**options: object) -> Config:
    return Config(**{"input": ("a",), "output": "/data/My Photos", **options})  # type: ignore[arg-type]


def test_the_name_fits_tensorflow_datasets():
    assert config().dataset_name == "my_photos"
    assert config(output="/2026").dataset_name == "dataset_2026"
    assert config(name="birds").dataset_name == "birds"


def test_settings_are_of_what_decides_bytes():
    assert config().settings == config(output="/elsewhere", overwrite=True, name="x").settings
    assert config().settings != config(seed=1).settings
    assert config().settings != config(check="header").settings


def test_beam_options_are_taken_and_misspelt_ones_are_not():
    assert with_runner([]) == ["--runner=FnApiRunner"]
    given = ["--direct_num_workers=2", "--runner", "DirectRunner"]
    assert with_runner(given) == given
    check_beam_arguments(given)
    with pytest.raises(UsageError, match="--num_shard=3, did you mean --num_shards"):
        check_beam_arguments(["--num_shard=3"])
    with pytest.raises(UsageError, match="--num_worker=3, did you mean --num_workers"):
        check_beam_arguments(["--num_worker=3"])
    with pytest.raises(UsageError, match="--input photos"):
        check_beam_arguments(["photos"])
    with pytest.raises(UsageError, match="direct_num_workers"):
        check_beam_arguments(["--direct_num_workers=many"])


def test_the_splits_of_the_beam_writer_are_those_it_was_told():
    assert config(writer="beam", num_shards="2").planner.split_order == ("train",)
    told = config(writer="beam", num_shards="2", splits="column", split_names=("a", "b"))
    assert told.planner.split_order == ("a", "b")
