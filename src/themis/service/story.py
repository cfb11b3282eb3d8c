"""Where services of before the rooms start ``api.story``: one that runs during an upgrade starts it by this name."""

import sys

from themis.service.api.story import main

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
