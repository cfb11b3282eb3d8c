"""Where services of before the rooms start ``engine.worker``: one that runs during an upgrade starts it by this name.

Its messages name their classes by the module where they were then. What else has changed in them ends the worker, and the
service's fallback decides until it is started again.
"""

import sys

from themis.service.engine import solving
from themis.service.engine.worker import main

if __name__ == "__main__":
    sys.modules["themis.service.solving"] = solving
    for kind in (solving.Task, solving.Reply):
        kind.__module__ = "themis.service.solving"
    main()
