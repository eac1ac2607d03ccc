"""Plots as SVG inside of a page: lines, grouped bars, and p-values; nothing else is needed."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#aa3377",
    "#8a6d00",
    "#56b4e9",
    "#666666",
    "#000000",
)
"""A colour for each system, told apart by colour-blind readers too (after Okabe and Ito)."""

_WIDTH, _HEIGHT = 480, 240
_LEFT, _TOP, _BOTTOM = 48, 12, 44
_TICKS = 5


@dataclass(frozen=True, slots=True)
class Series:
    """The numbers of one system."""

    system: int
    """Its place, which chooses the colour."""
    points: tuple[tuple[float, float], ...]


def line_chart(series: Sequence[Series], *, x_name: str) -> str:
    """Draw a line for each system; a single point is a dot."""
    points = [point for each in series for point in each.points]
    x_axis = _axis([x for x, _ in points])
    y_axis = _axis([y for _, y in points])
    inner = [*_grid(y_axis), *_x_ticks(x_axis), _x_name(x_name)]
    for each in series:
        colour = COLOURS[each.system]
        places = [(_x(x, x_axis), _y(y, y_axis)) for x, y in each.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        inner.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        inner += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}">'
            f"<title>{at:g}: {value:.2f}</title></circle>"
            for (x, y), (at, value) in zip(places, each.points, strict=True)
        ]
    return _svg(inner)


def bar_chart(groups: Sequence[tuple[str, Sequence[float]]], *, x_name: str) -> str:
    """Draw a group of bars for each name, from 0; a bar is a system."""
    most = max(value for _, values in groups for value in values)
    axis = 0.0, _ticks(0.0, max(most, 1.0))[-1]
    inner = [*_grid(axis), _x_name(x_name)]
    room = (_WIDTH - _LEFT) / len(groups)
    for place, (name, values) in enumerate(groups):
        left, width = _LEFT + room * (place + 0.1), room * 0.8 / len(values)
        for number, value in enumerate(values):
            top = _y(value, axis)
            inner.append(
                f'<rect x="{left + number * width:.1f}" y="{top:.1f}" width="{width * 0.92:.1f}" '
                f'height="{_HEIGHT - _BOTTOM - top:.1f}" fill="{COLOURS[number]}">'
                f"<title>{escape(name)}: {value:.2f}</title></rect>"
            )
        inner.append(_text(_LEFT + room * (place + 0.5), _HEIGHT - _BOTTOM + 16, name, "middle"))
    return _svg(inner)


def p_value_chart(rows: Sequence[tuple[str, int, float]], *, limit: float) -> str:
    """Draw p-values on a logarithmic axis; a row is a name, a system and its p-value.

    Left of the line at `limit` a difference counts.
    """
    least = min(0.001, *(p for _, _, p in rows))
    decades = math.ceil(-math.log10(least) - 0.1)  # 1/1001 is as good as 0.001
    height = 24 * len(rows) + _BOTTOM + _TOP
    left, bottom = 96, height - _BOTTOM

    def place(p: float) -> float:
        return left + (_WIDTH - left - 16) * (1 + math.log10(p) / decades)

    inner = []
    for power in range(decades + 1):
        at = place(10.0**-power)
        inner.append(_line(at, _TOP, at, bottom, "#ddd"))
        inner.append(_text(at, bottom + 16, f"{10.0**-power:g}", "middle"))
    inner.append(_line(place(limit), _TOP, place(limit), bottom, "#b00020"))
    inner.append(_text(place(limit), bottom + 32, f"{limit:g}", "middle"))
    for number, (name, system, p) in enumerate(rows):
        y = _TOP + 24 * number + 12
        inner.append(_text(left - 10, y + 4, name, "end"))
        inner.append(
            f'<circle cx="{place(p):.1f}" cy="{y}" r="6" fill="{COLOURS[system]}">'
            f"<title>p = {p:.4f}</title></circle>"
        )
    return _svg(inner, height)


_Axis = tuple[float, float]


def _axis(values: Sequence[float]) -> _Axis:
    """Return round limits that hold all values."""
    ticks = _ticks(min(values), max(values))
    return ticks[0], ticks[-1]


def _ticks(low: float, high: float) -> list[float]:
    """Return a few round numbers, the first at most `low`, the last at least `high`."""
    # A single value has an axis too, whose numbers differ as they are written.
    raw = max((high - low) / _TICKS, 1e-4 * max(abs(high), 1.0))
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * power for unit in (1, 2, 5, 10) if unit * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _x(value: float, axis: _Axis) -> float:
    return _LEFT + (_WIDTH - _LEFT - 20) * (value - axis[0]) / (axis[1] - axis[0])


def _y(value: float, axis: _Axis) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * (value - axis[0]) / (axis[1] - axis[0])


def _grid(axis: _Axis) -> Iterator[str]:
    """Yield horizontal lines and their numbers."""
    for tick in _ticks(*axis):
        y = _y(tick, axis)
        yield _line(_LEFT, y, _WIDTH, y, "#ddd")
        yield _text(_LEFT - 6, y + 4, f"{tick:g}", "end")


def _x_ticks(axis: _Axis) -> Iterator[str]:
    for tick in _ticks(*axis):
        yield _text(_x(tick, axis), _HEIGHT - _BOTTOM + 16, f"{tick:g}", "middle")


def _x_name(name: str) -> str:
    return _text((_LEFT + _WIDTH) / 2, _HEIGHT - 6, name, "middle")


def _line(x: float, y: float, to_x: float, to_y: float, colour: str) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(inner: Sequence[str], height: float = _HEIGHT) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height:g}" role="img">{"".join(inner)}</svg>'
