import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from imageshards.pipeline.assembly import BuildSpec, default_name
from imageshards.pipeline.options import documents
from imageshards.pipeline.options.beam_arguments import with_runner
from imageshards.pipeline.options.build_options import _OF_VERSION_0_1_0, BuildOptions
from imageshards.pipeline.options.command_line import check_beam_arguments
from imageshards.transforms import storage
from imageshards.transforms.elements import UsageError
from imageshards.transforms.images.resize import MAX_SIDE, RULE
from imageshards.transforms.images.validate import MAX_PIXELS
from imageshards.transforms.inputs.kind import IMAGE_KEY
from imageshards.transforms.storage.web import WebOptions

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"input": ()}, "--input is missing"),
        ({"output": ""}, "--output is missing"),
        ({"check": "fast"}, "invalid --check 'fast': expected full or header"),
        ({"writer": "tf"}, "invalid --writer 'tf': expected shard or beam"),
        ({"features": "coco"}, "invalid --features 'coco': expected slim"),
        ({"file_format": "csv"}, "invalid --file_format 'csv': expected tfrecord"),
        ({"convert": "webp"}, "--convert 'webp': expected auto, jpeg, png or never"),
        ({"exif": "drop"}, "--exif 'drop': expected bake or keep"),
        ({"multi_frame": "last"}, "--multi_frame 'last': expected first, all or reject"),
        ({"resize": "256"}, "--resize '256': "),
        ({"resize": "pad:0x3"}, "sides from 1 to 65,500"),
        ({"resize": "short:9", "convert": "never"}, "omit --convert never"),
        ({"resize": "short:9", "multi_frame": "all"}, "--multi_frame all keeps animations"),
        ({"convert": "png", "multi_frame": "all"}, "--multi_frame all keeps animations"),
        ({"enlarge": True}, "--enlarge requires --resize"),
        ({"quality": 0}, "invalid --quality 0: expected a number from 1 to 100"),
        ({"min_size": 0}, "invalid --min_size 0: expected"),
        ({"max_pixels": 1 << 30}, "--max_pixels 1073741824: expected a number from 1 to 178956970"),
        ({"max_bytes": -1}, "invalid --max_bytes -1: expected"),
        ({"seed": -1}, "invalid --seed -1: expected a number from 0 to 2**64 - 1"),
        ({"seed": 1 << 64}, "invalid --seed 18446744073709551616"),
        ({"max_reject_fraction": 1.5}, "invalid --max_reject_fraction 1.5"),
        ({"max_reject_fraction": float("nan")}, "invalid --max_reject_fraction nan"),
        ({"web_timeout": 0.0}, "invalid --web_timeout 0.0: expected a number from 1 to 3600"),
        ({"user_agent": "ä"}, "invalid --user_agent 'ä': expected printable ASCII"),
        ({"label_offset": 2}, "invalid --label_offset 2: expected 0 or 1"),
        ({"channels": 2}, "invalid --channels 2: expected 0, 1 or 3"),
        ({"name": "My Data"}, "invalid --name 'My Data'"),
        ({"labels": "none", "class_names": "x"}, "cannot be combined with --labels none"),
        ({"group_by": "dirname"}, "--group_by requires splits by ratio"),
        ({"splits": "train=1", "num_shards": "test=3"}, "names the split 'test'"),
        ({"splits": "train=0.9", "num_shards": "1"}, "0.9"),
        ({"splits": "train=1", "split_names": ("a",)}, "--split_names"),
        ({"writer": "beam"}, "requires --num_shards for the split 'train'"),
        ({"writer": "beam", "num_shards": "2", "splits": "folder"}, "requires --split_names"),
    ],
)
def test_every_option_is_checked(options: dict, says: str):
    with pytest.raises(UsageError) as caught:
        BuildSpec(BuildOptions.of(**{"input": ("a",), "output": "/o", **options}))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def options(**given: object) -> BuildOptions:
    return BuildOptions.of(**{"input": ("a",), "output": "/data/My Photos", **given})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"input": "list.csv"}, r"--input 'list\.csv': expected a tuple of texts"),
        ({"num_shards": 2}, "--num_shards 2: expected a text, such as '16'"),
        ({"seed": "1"}, "--seed '1': expected an integer"),
        ({"overwrite": 1}, "--overwrite 1: expected True or False"),
    ],
)
def test_a_value_of_another_type_is_an_error(given: dict, says: str):
    with pytest.raises(UsageError, match=says):
        options(**given)


def test_an_option_that_is_not_declared_is_an_error():
    with pytest.raises(TypeError, match="qualty"):
        options(qualty=3)


def test_the_name_fits_tensorflow_datasets():
    assert BuildSpec(options()).dataset_name == "my_photos"
    assert BuildSpec(options(output="/2026")).dataset_name == "dataset_2026"
    assert BuildSpec(options(name="birds")).dataset_name == "birds"
    assert default_name("...") == "dataset"


def test_the_digest_covers_the_options_that_affect_shards():
    same = options(output="/elsewhere", overwrite=True, name="x", web_retries=0)
    assert options().settings == same.settings
    assert options().settings != options(seed=1).settings
    assert options().settings != options(check="header").settings


def test_build_json_lists_the_options_of_version_0_1_0_first_and_later_ones_if_not_at_default():
    assert tuple(options().recorded) == _OF_VERSION_0_1_0
    later = [o for o in BuildOptions.declared().values() if o.name not in _OF_VERSION_0_1_0]
    assert not {o.name for o in later if o.affects_shards} & {*options().recorded}
    assert options(file_format="tfrecord").settings == options().settings


def test_differences_name_the_options_of_both_builds():
    recorded = options(seed=3, features_from=("a:int", "b:int")).recorded
    text = "--seed was 3, now 0; --features_from was a:int,b:int, now auto"
    assert options().differences(recorded) == text
    assert options().differences(options().recorded) == ""
    # Version 0.1.0 may not have had an option.
    assert options().differences({}) == ""
    assert options().differences({"file_format": "x"}) == "--file_format was x, now tfrecord"


def test_replacing_a_value_keeps_the_others():
    changed = options(seed=3).replace(quality=5)
    assert (changed.output.seed, changed.images.quality) == (3, 5)
    assert changed.replace(quality=95) == options(seed=3)
    assert replace(changed.images, quality=95) == options().images


def test_defaults_and_limits_are_those_of_the_code_that_uses_them():
    declared = BuildOptions.declared()
    assert declared["max_pixels"].limits == (1, MAX_PIXELS)
    assert declared["max_pixels"].default == MAX_PIXELS
    assert declared["max_bytes"].limits == (1, storage.MAX_BYTES)
    assert declared["max_bytes"].default == storage.MAX_BYTES
    assert declared["min_size"].limits == (1, MAX_SIDE)
    assert declared["image_key"].default == IMAGE_KEY
    assert declared["resize"].form_pattern == RULE.pattern
    names = (
        "user_agent", "web_timeout", "web_retries", "requests_per_host", "allow_private_hosts",
    )  # fmt: skip
    defaults = [declared[name].default for name in names]
    assert defaults == [field.default for field in fields(WebOptions)]


def test_documents_have_the_declared_options():
    text = (ROOT / "docs/reference/command_line.md").read_text()
    assert "options:begin" in text
    assert documents.rewritten(text) == text
    form = (ROOT / "launch/airflow/dags/imageshards_options.json").read_text()
    assert form == documents.form_json()
    assert json.loads(form) == documents.form_schema()


def test_every_option_is_described_in_one_line():
    for group in BuildOptions.command_line():
        assert re.fullmatch("[a-z ]+", group.title)
    for option in BuildOptions.declared().values():
        assert "\n" not in option.description
        assert option.is_switch or option.shown_metavar, option.name
        assert option.help[0].isupper(), option.name
        assert not option.help.endswith("."), option.name


def test_beam_options_are_accepted_and_misspelt_ones_are_not():
    assert with_runner([]) == ["--runner=FnApiRunner"]
    given = ["--direct_num_workers=2", "--runner", "DirectRunner"]
    assert with_runner(given) == given
    check_beam_arguments(given)
    with pytest.raises(UsageError, match="--num_shard=3, did you mean --num_shards"):
        check_beam_arguments(["--num_shard=3"])
    with pytest.raises(UsageError, match="--num_worker=3, did you mean --num_workers"):
        check_beam_arguments(["--num_worker=3"])
    with pytest.raises(UsageError, match="'photos'; did you mean --input photos"):
        check_beam_arguments(["photos"])
    with pytest.raises(UsageError, match="direct_num_workers"):
        check_beam_arguments(["--direct_num_workers=many"])


def test_the_splits_of_the_beam_writer_are_the_declared_ones():
    spec = BuildSpec(options(writer="beam", num_shards="2"))
    assert spec.planner.split_order == ("train",)
    given = options(writer="beam", num_shards="2", splits="column", split_names=("a", "b"))
    assert BuildSpec(given).planner.split_order == ("a", "b")
