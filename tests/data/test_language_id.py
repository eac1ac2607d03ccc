import sys

import pytest

from mt.data import filters
from mt.data.filters import identify, in_other_language
from mt.errors import DataError

SENTENCES = {
    "en": "The weather was so nice yesterday that we walked along the river.",
    "de": "Das Wetter war gestern so schön, dass wir am Fluss entlanggegangen sind.",
    "fr": "Il faisait si beau hier que nous nous sommes promenés au bord de la rivière.",
    "zh": "昨天天气非常好，所以我们沿着河边走了很久。",
    "ja": "昨日はとても天気が良かったので、川沿いを歩きました。",
    "ru": "Вчера была такая хорошая погода, что мы гуляли вдоль реки.",
}


@pytest.mark.parametrize("spoken", SENTENCES)
def test_sentence_is_only_in_its_own_language(spoken: str) -> None:
    text = SENTENCES[spoken]
    assert [each for each in SENTENCES if not in_other_language(text, each)] == [spoken]
    language, probability = identify(text)
    assert language == spoken
    assert 0.8 < probability <= 1


@pytest.mark.parametrize(
    ("text", "language"),
    [
        *((SENTENCES["zh"], "zh-TW"), (SENTENCES["zh"], "lzh")),  # variants
        *(("Guten Tag, Maria!", "en"), (SENTENCES["de"], "tlh")),  # too short; unknown
    ],
)
def test_variants_and_what_cannot_be_judged_pass(text: str, language: str) -> None:
    assert not in_other_language(text, language)


def test_missing_package_gives_an_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    filters.load_identifier.cache_clear()
    try:
        with pytest.raises(DataError, match="pip install .*py3langid"):
            identify("text")
    finally:
        filters.load_identifier.cache_clear()
