import sys

import pytest

from mt.data import language_id
from mt.data.language_id import identify, in_other_language
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
@pytest.mark.parametrize("expected", SENTENCES)
def test_sentence_is_only_in_its_own_language(spoken: str, expected: str) -> None:
    assert in_other_language(SENTENCES[spoken], expected) is (spoken != expected)


def test_identify_returns_language_and_probability() -> None:
    found = identify(SENTENCES["de"])
    assert found.language == "de"
    assert 0.9 < found.probability <= 1


def test_variants_of_a_language_are_accepted() -> None:
    assert not in_other_language(SENTENCES["zh"], "zh-TW")
    assert not in_other_language(SENTENCES["zh"], "lzh")


def test_short_texts_and_unknown_languages_are_not_judged() -> None:
    assert not in_other_language("Guten Tag, Maria!", "en")
    assert not in_other_language(SENTENCES["de"], "tlh")


def test_missing_package_gives_an_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    language_id._identifier.cache_clear()
    try:
        with pytest.raises(DataError, match="pip install .*py3langid"):
            identify("text")
    finally:
        language_id._identifier.cache_clear()
