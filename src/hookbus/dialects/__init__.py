"""Dialects turn an object of a known shape into :class:`Implementation` records; they know no bus and no trainer.

``native`` reads ``@hookimpl`` marks, ``callback`` Lightning's callbacks, ``module`` modules and data modules.
"""

from hookbus.dialects.implementation import Implementation, source_location
from hookbus.dialects.signature import SignatureMismatchError

__all__ = ["Implementation", "SignatureMismatchError", "source_location"]
