"""The small stacked bar of one request, as an SVG that fits a table cell.

Owns the drawing. Widths are to scale against the longest request on the same page; unattributed is hatched.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping

from pdtrace_dashboard.palette import COLOUR_OF_GROUP, OUTLINE, UNKNOWN_GROUPS, by_group

WIDTH = 240
HEIGHT = 24

_HATCH = (
    '<defs><pattern id="h" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<rect width="5" height="5" fill="#D9D9D9"/><rect width="1.5" height="5" fill="{OUTLINE}"/></pattern></defs>'
)


def svg(sections: Mapping[str, int], longest_ns: int) -> str:
    """One bar: the groups in pipeline order, ``longest_ns`` fills the width; nothing charged draws nothing."""
    parts, at = [], 0.0
    for group, length_ns in by_group(sections).items():
        width = WIDTH * length_ns / longest_ns if longest_ns else 0.0
        fill = "url(#h)" if group in UNKNOWN_GROUPS else COLOUR_OF_GROUP[group]
        parts.append(f'<rect x="{at:.2f}" y="3" width="{width:.2f}" height="{HEIGHT - 6}" fill="{fill}"/>')
        at += width
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f"{_HATCH}{''.join(parts)}</svg>"
    )


def data_url(sections: Mapping[str, int], longest_ns: int) -> str:
    """The bar as a data URL for an image column."""
    return "data:image/svg+xml;base64," + b64encode(svg(sections, longest_ns).encode()).decode()
