"""Where a run writes: ``save_dir/name/version_N``, N counting up, so that no run writes into another's directory."""

from __future__ import annotations

import os
from pathlib import Path

from hookbus.loggers.rank_zero import rank_zero_only


class RunDirectory:
    """The directory of one run, chosen when it is first asked for.

    Args:
        save_dir: where all experiments lie.
        name: the experiment; empty or None for none.
        version: an int for ``version_N``, a string for a directory of that name, None for the next free number. A
            version that exists already is continued.
    """

    def __init__(self, save_dir: str | os.PathLike[str], name: str | None, version: int | str | None) -> None:
        self.save_dir = os.fspath(save_dir)
        if "://" in self.save_dir:
            raise ValueError(f"save_dir must be a directory of this machine, got {self.save_dir!r}")
        self.name = name or ""
        self._version = version

    @property
    def root(self) -> str:
        """Directory of all versions."""
        return os.path.join(self.save_dir, self.name)

    @property
    def version(self) -> int | str:
        """The version, taken by creating its directory, so that a run that starts at the same time gets another."""
        if self._version is None:
            self._version = self._take() if rank_zero_only.rank == 0 else self._next()
        return self._version

    @property
    def path(self) -> str:
        """Directory of this version."""
        version = self.version
        return os.path.join(self.root, version if isinstance(version, str) else f"version_{version}")

    def create(self) -> Path:
        """The directory of this version, which exists afterwards."""
        path = Path(self.path)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _next(self) -> int:
        taken = [-1]
        if os.path.isdir(self.root):
            for entry in os.scandir(self.root):
                number = entry.name.removeprefix("version_")
                if number != entry.name and number.isdigit():
                    taken.append(int(number))
        return max(taken) + 1

    def _take(self) -> int:
        os.makedirs(self.root, exist_ok=True)
        while True:
            version = self._next()
            try:
                os.mkdir(os.path.join(self.root, f"version_{version}"))
            except FileExistsError:  # another run was faster
                continue
            return version
