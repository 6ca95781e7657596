"""Lightning's import names, served by hookbus, for scripts and packages that are to run unmodified.

Nothing here is active unless :func:`install_aliases` was called (``hookbus run --as-lightning`` does it). ``names.py``
is the table of what is served from where, ``finder.py`` the machinery, and the other files hold what only such clients
need: the helpers of ``lightning.pytorch.utilities``.
"""

from hookbus.aliases.finder import install_aliases, uninstall_aliases

__all__ = ["install_aliases", "uninstall_aliases"]
