"""``python -m themis``: the command."""

from __future__ import annotations

from themis.cli import main

if __name__ == "__main__":
    main()
