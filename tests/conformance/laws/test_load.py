"""Loading the laws."""

import subprocess
import sys


def test_laws_are_in_reading_order_whatever_was_imported_before():
    code = "{}from attnspec.conformance import laws; print(*laws.load(), sep='\\n')"
    earlier = "import attnspec.conformance.laws.paged.reading; "
    orders = [
        subprocess.run(
            [sys.executable, "-c", code.format(before)], check=True, capture_output=True, text=True
        ).stdout
        for before in ("", earlier)
    ]
    assert orders[0] == orders[1] != ""
