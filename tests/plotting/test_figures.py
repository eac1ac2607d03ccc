"""Style, fonts and files of pictures."""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, fontManager
from matplotlib.ft2font import FT2Font

from mt.errors import UserError, install_hint
from mt.plotting import figures
from mt.plotting.figures import (
    Tokens,
    check_picture,
    downwards,
    font_families,
    label_tokens,
    line_look,
    printable,
    write_picture,
)

CHINESE = "这只黑猫在睡觉，直骨"
JAPANESE, KOREAN = "黒い猫が眠っている、カタカナ", "검은 고양이가 자고 있다"


def drawing(text: str) -> Callable[[], Figure]:
    def draw() -> Figure:
        figure = Figure(figsize=(3, 2), layout="constrained")
        axes = figure.add_subplot()
        axes.imshow([[0, 1], [1, 0]])
        label_tokens(axes, Tokens((text, "b"), "rows", "zh"), Tokens(("▁a", r"$\no$"), "", "en"))
        return figure

    return draw


@pytest.mark.parametrize(("name", "begins"), [("A.PNG", b"\x89PNG\r\n\x1a\n"), ("a.svg", b"<?xml")])
def test_bytes_depend_on_the_suffix_and_the_figure_only(
    name: str, begins: bytes, tmp_path: Path
) -> None:
    write_picture(tmp_path / name, drawing(CHINESE))
    first = (tmp_path / name).read_bytes()
    assert first.startswith(begins)
    assert len(first) > 3000
    with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": "x", "axes.facecolor": "red"}):
        write_picture(tmp_path / name, drawing(CHINESE))
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / name).read_bytes() == first


@pytest.mark.parametrize("text", [CHINESE, JAPANESE, KOREAN, "äß ▁żółw Ωмир", "<0xE4>"])
def test_every_glyph_is_found(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    charmaps = [FT2Font(findfont(family)).get_charmap() for family in font_families()]
    assert [c for c in text if not any(ord(c) in charmap for charmap in charmaps)] == []
    write_picture(tmp_path / "a.png", drawing(text))
    assert caplog.messages == []


def test_the_shape_of_a_character_depends_on_the_language(tmp_path: Path) -> None:
    def draw(language: str) -> bytes:
        def figure() -> Figure:
            picture = Figure(figsize=(1, 1))
            picture.text(0, 0, "直", language=language)
            return picture

        write_picture(tmp_path / "a.png", figure)
        return (tmp_path / "a.png").read_bytes()

    assert draw("zh") != draw("ja")


def test_missing_glyphs_give_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_picture(tmp_path / "a.png", drawing("ไทยไทย"))
    assert caplog.messages == ["no font has ไ ท ย: shown as boxes"]
    caplog.clear()
    monkeypatch.setattr(figures, "font_families", lambda: ("DejaVu Sans",))
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    write_picture(tmp_path / "a.svg", drawing("猫"))
    hint = f"for a CJK font: {install_hint('plot')}"
    assert caplog.messages == [f"no font has 猫: shown as boxes; {hint}"]


def test_a_font_of_the_system_replaces_a_missing_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    names = ["DejaVu Sans", "PingFang SC", "WenQuanYi Zen Hei"]
    monkeypatch.setattr(fontManager, "get_font_names", lambda: names)
    assert font_families.__wrapped__() == ("DejaVu Sans", "WenQuanYi Zen Hei")
    monkeypatch.setattr(fontManager, "get_font_names", lambda: names[:1])
    assert font_families.__wrapped__() == ("DejaVu Sans",)


def test_other_warnings_are_passed_on(tmp_path: Path) -> None:
    def draw() -> Figure:
        warnings.warn("something else", DeprecationWarning, stacklevel=1)
        return Figure()

    with pytest.warns(DeprecationWarning, match="something else"):
        write_picture(tmp_path / "a.png", draw)


def test_a_too_large_picture_gives_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "_MOST_DOTS", 150)
    with caplog.at_level(logging.WARNING):
        write_picture(tmp_path / "a.png", drawing("a"))
    width = int.from_bytes((tmp_path / "a.png").read_bytes()[16:20])
    assert width == 150
    assert "its text tiny; use .svg instead" in caplog.text


def test_a_failed_drawing_does_not_replace_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"mine")
    with pytest.raises(ZeroDivisionError):
        write_picture(tmp_path / "a.png", lambda: Figure(figsize=(1, 1 // 0)))
    assert (tmp_path / "a.png").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, "the name must end in") for name in ("a.pdf", "png", "a.png.gz", ".png")),
        ("none/a.png", "there is no folder"),
        ("folder.png", "is a folder"),
    ],
)
def test_another_suffix_or_place_is_an_error(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UserError, match=message):
        check_picture(tmp_path / name)


def test_unprintable_characters_are_escaped() -> None:
    assert printable("▁早 上") == "▁早 上"
    assert printable("a\tb\u200b\r\U000f2581") == r"a\tb\u200b\r\U000f2581"


@pytest.mark.parametrize(
    ("text", "shown", "degrees"),
    [
        ("看书", "看\n书", 0),
        ("▁看", "▁\n看", 0),
        ("▁book", "▁book", 90),
        ("s", "s", 0),
        ("", "", 0),
    ],
)
def test_chinese_is_written_downwards_and_other_words_are_rotated(
    text: str, shown: str, degrees: int
) -> None:
    assert downwards(text) == (shown, degrees)


def test_lines_look_different() -> None:
    assert len({str(line_look(number)) for number in range(35)}) == 35
