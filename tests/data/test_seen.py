import random
import tracemalloc

from mt.data.filters import SeenTexts, text_hash


def test_it_is_a_set() -> None:
    drawn = random.Random(1)
    texts = [str(drawn.randrange(6000)) for _ in range(20_000)]
    seen, reference = SeenTexts(), set[str]()
    for text in texts:
        assert seen.add(text) is (text not in reference)
        reference.add(text)
        assert len(seen) == len(reference)


def test_a_hash_is_the_same_on_every_machine() -> None:
    assert text_hash("早上好") == 0xB1FE3810456FE600
    assert text_hash("\ud800") != text_hash("\ud801")


def test_memory_is_24_bytes_a_text_at_most_and_half_more_while_growing() -> None:
    number = 44_000  # just above a power of two times 2/3, where the table is emptiest
    tracemalloc.start()
    try:
        seen = SeenTexts()
        for text in map(str, range(number)):
            seen.add(text)
        now, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert now < 25 * number
    assert most < 37 * number
