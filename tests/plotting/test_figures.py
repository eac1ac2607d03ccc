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

from mt.errors import UserError
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

CHINESE, JAPANESE, KOREAN = (
    "这只黑猫在睡觉，直骨",
    "黒い猫が眠っている、カタカナ",
    "검은 고양이가 자고 있다",
)
THAI = "ไทย"


def drawing(text: str) -> Callable[[], Figure]:
    def draw() -> Figure:
        figure = Figure(figsize=(3, 2), layout="constrained")
        axes = figure.add_subplot()
        axes.imshow([[0, 1], [1, 0]])
        label_tokens(axes, Tokens((text, "b"), "rows", "zh"), Tokens(("▁a", r"$\no$"), "", "en"))
        return figure

    return draw


@pytest.mark.parametrize(
    ("name", "begins"),
    [("a.png", b"\x89PNG\r\n\x1a\n"), ("a.svg", b"<?xml"), ("A.PNG", b"\x89PNG"), ("a.SVG", b"<?")],
)
def test_the_suffix_decides_the_format_and_the_bytes_are_always_the_same(
    name: str, begins: bytes, tmp_path: Path
) -> None:
    write_picture(tmp_path / name, drawing(CHINESE))
    first = (tmp_path / name).read_bytes()
    assert first.startswith(begins)
    assert len(first) > 3000
    with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": "x", "axes.facecolor": "red"}):
        write_picture(tmp_path / name, drawing(CHINESE))
    assert (tmp_path / name).read_bytes() == first


def test_the_settings_of_the_process_stay_what_they_were(tmp_path: Path) -> None:
    with matplotlib.rc_context({"font.size": 30}):
        write_picture(tmp_path / "a.png", drawing("a"))
        assert matplotlib.rcParams["font.size"] == 30
        assert matplotlib.rcParams["text.parse_math"] is True


@pytest.mark.parametrize("text", [CHINESE, JAPANESE, KOREAN, "äß ▁żółw Ωмир", "<0xE4>"])
def test_every_glyph_is_found(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    charmaps = [FT2Font(findfont(family)).get_charmap() for family in font_families()]
    assert [c for c in text if not any(ord(c) in charmap for charmap in charmaps)] == []
    write_picture(tmp_path / "a.png", drawing(text))
    assert caplog.messages == []


def test_the_same_character_has_another_shape_in_another_language(tmp_path: Path) -> None:
    def draw(language: str) -> bytes:
        def figure() -> Figure:
            picture = Figure(figsize=(1, 1))
            picture.text(0, 0, "直", language=language)
            return picture

        write_picture(tmp_path / "a.png", figure)
        return (tmp_path / "a.png").read_bytes()

    assert draw("zh") != draw("ja")


def test_glyphs_that_no_font_has_are_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_picture(tmp_path / "a.png", drawing(THAI + THAI))
    assert caplog.messages == ["boxes stand for ไ ท ย: no font here has them"]
    caplog.clear()
    monkeypatch.setattr(figures, "font_families", lambda: ("DejaVu Sans",))
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    write_picture(tmp_path / "a.svg", drawing("猫"))
    (line,) = caplog.messages
    assert line == (
        'boxes stand for 猫: no font here has them; pip install "mt[plot]" brings one for CJK'
    )


def test_without_the_packaged_font_one_of_the_system_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    names = ["DejaVu Sans", "PingFang SC", "WenQuanYi Zen Hei"]
    monkeypatch.setattr(fontManager, "get_font_names", lambda: names)
    assert font_families.__wrapped__() == ("DejaVu Sans", "WenQuanYi Zen Hei")
    monkeypatch.setattr(fontManager, "get_font_names", lambda: names[:1])
    assert font_families.__wrapped__() == ("DejaVu Sans",)


def test_other_warnings_stay_warnings(tmp_path: Path) -> None:
    def draw() -> Figure:
        warnings.warn("something else", DeprecationWarning, stacklevel=1)
        return Figure()

    with pytest.warns(DeprecationWarning, match="something else"):
        write_picture(tmp_path / "a.png", draw)


def test_a_picture_too_large_for_its_letters_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "_MOST_DOTS", 150)
    with caplog.at_level(logging.WARNING):
        write_picture(tmp_path / "a.png", drawing("a"))
    width = int.from_bytes((tmp_path / "a.png").read_bytes()[16:20])
    assert width == 150
    assert "its letters are tiny; try .svg" in caplog.text


def test_what_fails_while_drawing_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"mine")

    def draw() -> Figure:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_picture(tmp_path / "a.png", draw)
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
    assert (tmp_path / "a.png").read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["a.pdf", "a", "png", "a.png.gz", ".png"])
def test_another_suffix_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a picture is a \.png or \.svg file"):
        check_picture(tmp_path / name)


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        check_picture(tmp_path / "none" / "a.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UserError, match="is a folder"):
        check_picture(tmp_path / "folder.png")


def test_what_has_no_shape_is_shown_as_an_escape() -> None:
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
def test_chinese_runs_downwards_and_other_words_lie_on_their_side(
    text: str, shown: str, degrees: int
) -> None:
    assert downwards(text) == (shown, degrees)


def test_no_two_lines_look_the_same() -> None:
    assert len({str(line_look(number)) for number in range(35)}) == 35
