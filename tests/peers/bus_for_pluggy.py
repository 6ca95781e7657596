"""Put ``Bus`` in place of ``pluggy.PluginManager``, then run pytest with the given arguments, itself on a bus."""

import sys

import pluggy
import pluggy._manager

from hookbus.bus import Bus

pluggy.PluginManager = pluggy._manager.PluginManager = Bus

if __name__ == "__main__":
    import pytest  # only now: its own plugin manager derives from pluggy's
    from _pytest.config import PytestPluginManager

    assert issubclass(PytestPluginManager, Bus)
    sys.exit(pytest.main(sys.argv[1:]))
