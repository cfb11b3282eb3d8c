"""``python -m themis.cli``."""

from __future__ import annotations

from themis.cli.start import main

if __name__ == "__main__":
    main()
