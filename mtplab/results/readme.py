"""Sections of README.md that commands write: `<!-- name: ... -->` to `<!-- end of name -->`."""

from __future__ import annotations

import re
from pathlib import Path


def replace_section(name: str, text: str, path: Path = Path("README.md")) -> None:
    """Put `text` between the markers of `name`. Raises ValueError if the file lacks them."""
    old = path.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {name}: [^>]*-->).*?(<!-- end of {name} -->)", re.DOTALL)
    if not pattern.search(old):
        raise ValueError(f"{path.name} has no section {name!r}")
    path.write_text(pattern.sub(lambda match: f"{match[1]}\n{text}\n{match[2]}", old), encoding="utf-8")
