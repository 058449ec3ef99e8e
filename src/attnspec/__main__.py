"""`python -m attnspec`: the `attnspec` command."""

from attnspec.conformance.cli.app import app

if __name__ == "__main__":
    app(prog_name="attnspec")
