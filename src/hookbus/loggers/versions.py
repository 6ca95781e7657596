"""Where a run writes: ``save_dir/name/version_N``, N counting up, so that no run writes into another's directory."""

from __future__ import annotations

import os

from hookbus.loggers.rank_zero import rank_zero_only


class RunDirectory:
    """The directory of one run, chosen when it is first asked for.

    Loggers may be derived from that compute their ``name``, ``version`` or ``root_dir``, so the parts are put together
    there, out of these properties.

    Args:
        save_dir: where all experiments lie; ``~`` and variables such as ``$HOME`` are replaced.
        name: the experiment; empty or None for none.
        version: an int for ``version_N``, a string for a directory of that name, None for the next free number. A
            version that exists already is continued.
    """

    def __init__(self, save_dir: str | os.PathLike[str], name: str | None, version: int | str | None) -> None:
        self.save_dir = os.path.expanduser(os.path.expandvars(os.fspath(save_dir)))
        if "://" in self.save_dir:
            raise ValueError(f"save_dir must be a directory of this machine, got {self.save_dir!r}")
        self.name = name or ""
        self._version = version

    def version_in(self, root: str) -> int | str:
        """The version, taken by creating its directory, so that a run that starts at the same time gets another.

        Args:
            root: directory of all versions.
        """
        if self._version is None:
            self._version = _take(root) if rank_zero_only.rank == 0 else _next(root)
        return self._version


def directory_of(root: str, version: int | str) -> str:
    """Directory of one version below that of all."""
    return os.path.join(root, version if isinstance(version, str) else f"version_{version}")


def _next(root: str) -> int:
    taken = [-1]
    if os.path.isdir(root):
        for entry in os.scandir(root):
            number = entry.name.removeprefix("version_")
            if number != entry.name and number.isdigit():
                taken.append(int(number))
    return max(taken) + 1


def _take(root: str) -> int:
    os.makedirs(root, exist_ok=True)
    while True:
        version = _next(root)
        try:
            os.mkdir(os.path.join(root, f"version_{version}"))
        except FileExistsError:  # another run was faster
            continue
        return version
