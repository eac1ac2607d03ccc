"""Parts of a long work: what they are called, and that they are all of it."""

import pytest

from mt.augment.resumable import Shard
from mt.errors import UserError


@pytest.mark.parametrize("total", [1, 7, 8, 100])
@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_the_shards_are_all_lines_once_in_order_and_equally_long(total: int, of: int) -> None:
    parts = [shard.lines(total) for shard in Shard(1, of).all()]
    assert [place for part in parts for place in part] == list(range(total))
    lengths = {len(part) for part in parts}
    assert max(lengths) - min(lengths) <= 1


def test_names_are_in_the_order_of_the_lines() -> None:
    names = [shard.named("news") for shard in Shard(1, 12).all()]
    assert names[:2] == ["news.01-of-12", "news.02-of-12"]
    assert sorted(names) == names
    assert Shard(1, 1).named("news") == "news"


def test_a_shard_is_written_as_its_number_of_how_many() -> None:
    assert Shard.parse("2/8") == Shard(2, 8)


@pytest.mark.parametrize("text", ["0/8", "9/8", "8", "1/0", "a/b", "-1/2", "1/2/3", ""])
def test_what_is_no_shard_is_told(text: str) -> None:
    with pytest.raises(UserError, match=r"such as 2/8; the first is 1/8"):
        Shard.parse(text)
