"""The legend of every stack on a page: one line, in pipeline order, each group's definition one hover away.

Owns its HTML. Colours and order are in palette, words in words.
"""

from __future__ import annotations

from html import escape

from pdtrace_dashboard.palette import COLOUR_OF_GROUP, ORDER, OUTLINE, UNKNOWN_GROUPS
from pdtrace_dashboard.words import OF_GROUP


def html() -> str:
    """All twelve groups, whether the page has them or not: the place of a colour never moves."""
    items = []
    for group in ORDER:
        fill = COLOUR_OF_GROUP[group]
        if group in UNKNOWN_GROUPS:
            fill = f"repeating-linear-gradient(45deg,{fill} 0 3px,{OUTLINE} 3px 4px);outline:1px dashed {OUTLINE}"
        swatch = f'<span style="display:inline-block;width:.8em;height:.8em;background:{fill}"></span>'
        hover = escape(OF_GROUP[group], quote=True)
        items.append(
            f'<span style="white-space:nowrap;margin-right:1em;cursor:help" title="{hover}">{swatch} {group}</span>'
        )
    return f'<div style="font-size:.85rem;line-height:1.6">{"".join(items)}</div>'
