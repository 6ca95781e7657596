"""``python -m hookbus``: the same as the command ``hookbus``."""

import sys

from hookbus.cli.main import main

sys.exit(main())
