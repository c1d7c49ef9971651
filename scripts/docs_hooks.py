"""Hooks of mkdocs: the build fails if a page loads anything from another host."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

LOADS = {"src", "srcset", "data", "poster", "action"}  # attributes whose address is fetched, on any tag
LINKED = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "dns-prefetch", "manifest"}  # `rel` of <link>
FOREIGN = re.compile(r"^\s*(?:https?:)?//", re.IGNORECASE)
IN_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?(?:https?:)?//[^"')\s]+""", re.IGNORECASE)


class Loader(HTMLParser):
    """Collects addresses on other hosts that a browser would fetch when it shows the page."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        fetched = [values[name] for name in LOADS & values.keys()]
        if tag == "link" and LINKED & set(values.get("rel", "").split()):
            fetched.append(values.get("href", ""))
        self.foreign += [address for address in fetched if FOREIGN.match(address)]
        self.foreign += IN_STYLES.findall(values.get("style", ""))


def foreign_resources(name: str, text: str) -> list[str]:
    """Addresses on other hosts that the file loads."""
    if name.endswith(".html"):
        loader = Loader()
        loader.feed(text)
        return loader.foreign
    return IN_STYLES.findall(text) if name.endswith((".css", ".svg")) else []


def on_post_build(config: dict) -> None:
    """Check every page, style and figure of the site."""
    site = Path(config["site_dir"])
    for path in sorted(path for path in site.rglob("*") if path.suffix in (".html", ".css", ".svg")):
        if foreign := foreign_resources(path.name, path.read_text(encoding="utf-8")):
            raise SystemExit(f"{path.relative_to(site)} loads {foreign[0]} from another host")
