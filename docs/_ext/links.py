"""Every link of a built site leads somewhere, as far as can be told without network."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LINKING = {"a": "href", "link": "href", "script": "src", "img": "src", "source": "src"}


class _Page(HTMLParser):
    """What a page can be linked by, and what it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: dict[str, None] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note ids, names of anchors, and addresses."""
        told = {name: value for name, value in attrs if value is not None}
        if "id" in told:
            self.anchors.add(told["id"])
        if tag == "a" and "name" in told:
            self.anchors.add(told["name"])
        address = told.get(_LINKING.get(tag, ""))
        if address is not None:
            self.links[address] = None


def broken(folder: Path) -> Iterator[tuple[str, str]]:
    """What is wrong with the links of a built site: a page, and a sentence about it.

    A link within the site must lead to a file, and its fragment to an id there. One to elsewhere
    must be whole: https, and the name of a host.
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
    """Why a link leads nowhere; nothing where it leads somewhere."""
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
