"""Files of pictures."""

from collections.abc import Callable
from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure

from mt.errors import UserError
from mt.plotting.figures import TokenAxis, check_picture, label_tokens, write_picture

CHINESE = "这只黑猫在睡觉，直骨"


def drawing(text: str) -> Callable[[], Figure]:
    def draw() -> Figure:
        figure = Figure(figsize=(3, 2), layout="constrained")
        axes = figure.add_subplot()
        axes.imshow([[0, 1], [1, 0]])
        columns = TokenAxis(("▁a", r"$\no$"), "", "en")
        label_tokens(axes, TokenAxis((text, "a\tb"), "rows", "zh"), columns)
        return figure

    return draw


@pytest.mark.parametrize(("name", "begins"), [("A.PNG", b"\x89PNG\r\n\x1a\n"), ("a.svg", b"<?xml")])
def test_bytes_depend_on_the_suffix_and_the_figure_only(
    name: str, begins: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_picture(tmp_path / name, drawing(CHINESE))
    first = (tmp_path / name).read_bytes()
    assert first.startswith(begins)
    with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": "x", "axes.facecolor": "red"}):
        write_picture(tmp_path / name, drawing(CHINESE))
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / name).read_bytes() == first
    assert caplog.messages == []


def test_missing_glyphs_give_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_picture(tmp_path / "a.png", drawing("ไทยไทย"))
    (message,) = caplog.messages
    assert message.startswith("characters without a glyph in any font are shown as boxes")


def test_a_failed_drawing_does_not_replace_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"mine")
    with pytest.raises(ZeroDivisionError):
        write_picture(tmp_path / "a.png", lambda: Figure(figsize=(1, 1 // 0)))
    assert (tmp_path / "a.png").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.pdf", "the name must end in"),
        (".png", "the name must end in"),
        ("none/a.png", "there is no folder"),
        ("folder.png", "is a folder"),
    ],
)
def test_another_suffix_or_place_is_an_error(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UserError, match=message):
        check_picture(tmp_path / name)
