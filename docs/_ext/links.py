"""Check every link of a built site, as far as possible without network."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LINKING = {"a": "href", "link": "href", "script": "src", "img": "src", "source": "src"}


class _Page(HTMLParser):
    """The anchors of a page, and its links."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: dict[str, None] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note ids, names of anchors, and addresses."""
        values = {name: value for name, value in attrs if value is not None}
        if "id" in values:
            self.anchors.add(values["id"])
        if tag == "a" and "name" in values:
            self.anchors.add(values["name"])
        address = values.get(_LINKING.get(tag, ""))
        if address is not None:
            self.links[address] = None


def broken(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the broken links of a built site: a page, and a sentence about its link.

    A link within the site must lead to a file, and its fragment to an id there. A link to another
    site must be complete: https and the name of a host.
    """
    pages: dict[Path, _Page] = {}
    for path in sorted(folder.rglob("*.html")):
        pages[path] = _Page()
        pages[path].feed(path.read_text(encoding="utf-8"))
    for path, page in pages.items():
        name = path.relative_to(folder).as_posix()
        for address in page.links:
            reason = _wrong(address, path, pages, folder)
            if reason:
                yield name, f"{address!r} {reason}"


def _wrong(address: str, path: Path, pages: dict[Path, _Page], folder: Path) -> str:
    """Return the reason why a link is broken, or an empty string."""
    try:
        parts = urlsplit(address)
    except ValueError as error:
        return f"is no address: {error}"
    if parts.scheme in ("data", "mailto"):
        return ""
    if parts.scheme or parts.netloc:
        is_whole = parts.scheme == "https" and "." in parts.netloc and " " not in address
        return "" if is_whole else "is no whole address of another site"
    target = path
    if parts.path:
        target = (path.parent / unquote(parts.path)).resolve()
        if not target.is_relative_to(folder.resolve()):
            return "leads out of the site"
        if not target.is_file():
            return "leads to no file"
        target = folder / target.relative_to(folder.resolve())
    fragment = unquote(parts.fragment)
    if fragment and target in pages and fragment not in pages[target].anchors:
        return "leads to no element of that page"
    return ""
