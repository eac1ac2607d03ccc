"""Language codes."""

import pytest

from mt.languages import base_language, written_without_spaces


@pytest.mark.parametrize(
    ("code", "base"),
    [
        ("de", "de"),
        ("pt-BR", "pt"),
        ("EN_us", "en"),
        ("deu", "deu"),
        ("zh", "zh"),
        ("zh-CN", "zh"),
        ("zh_Hant", "zh"),
        ("ZHO-Hant-TW", "zh"),
        ("yue", "zh"),
        ("jpn", "ja"),
        ("kor", "ko"),
        ("bur", "my"),
        ("", ""),
    ],
)
def test_codes_of_a_language_share_a_name(code: str, base: str) -> None:
    assert base_language(code) == base


@pytest.mark.parametrize(
    "code", ["zh", "zho", "zh-CN", "zh_Hant", "lzh", "nan", "ja", "JPN", "th", "khm", "mya", "ii"]
)
def test_written_without_spaces(code: str) -> None:
    assert written_without_spaces(code)


@pytest.mark.parametrize("code", ["en", "ko", "kor", "de-AT", "vi", "nan-Latn", "zh_Latn_CN", ""])
def test_written_with_spaces(code: str) -> None:
    assert not written_without_spaces(code)
