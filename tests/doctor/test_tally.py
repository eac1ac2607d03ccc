from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mt.data.tokenizer import Tokenizer
from mt.doctor.tally import measure_fertility, open_map


@pytest.mark.parametrize("processes", [1, 2])
def test_results_are_in_order_and_few_items_are_read_ahead(processes: int) -> None:
    items_read = []

    def items() -> Iterator[int]:
        for item in range(40):
            items_read.append(item)
            yield item

    with open_map(processes) as parallel:
        for index, result in enumerate(parallel(str, items())):
            assert result == str(index)
            assert len(items_read) <= index + 1 + 2 * processes
    assert len(items_read) == 40


def test_tokens_and_lost_characters_are_counted(finished_run: Path) -> None:
    vocabulary = Tokenizer.load(finished_run / "tokenizer").source
    lines = ["one two", "three ☃ ☃é", ""]
    counts = measure_fertility(lines, vocabulary, "en")
    assert counts.tokens == sum(len(vocabulary.processor.encode(line)) for line in lines)
    assert (counts.characters, counts.words) == (17, 5)
    assert counts.lost == ()  # spelled in bytes
    is_byte = vocabulary.processor.is_byte
    without_bytes = tuple(
        b"" if is_byte(index) else text for index, text in enumerate(vocabulary.token_bytes)
    )
    poor = measure_fertility(lines, replace(vocabulary, token_bytes=without_bytes), "zh")
    assert (poor.words, poor.lost) == (None, (("☃", 2), ("é", 1)))
