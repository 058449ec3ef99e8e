"""The built site, and the browser that opens it."""

import os
import shutil
from pathlib import Path

SITE = Path(os.environ.get("SITE", Path(__file__).parents[1] / "_build" / "html")).resolve()
PAGES = sorted(page.relative_to(SITE).as_posix() for page in SITE.rglob("*.html"))
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
