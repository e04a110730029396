"""The folder beside the database: the generation that a restored backup does not have, and lock files."""

from __future__ import annotations

import errno
import os
import re
import shlex
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from counterfoil.errors import LedgerReadOnly, LedgerUnavailable
from counterfoil.ledgers.sqlite import lifelines

_EPOCH: Final = re.compile(r"[0-9]+\.[0-9a-f]{8}")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Beside:
    """The folder `<database>-counterfoil`.

    Args:
        database: absolute path of the database file.
    """

    def __init__(self, database: str) -> None:
        self.database = database
        self.folder = f"{database}-counterfoil"
        self._generation = os.path.join(self.folder, "generation")  # noqa: PTH118

    def accepting(self) -> str:
        """Return the command that accepts this database after it went back in time."""
        url = shlex.quote(f"sqlite:///{self.database}")
        return f"counterfoil accept-restore --ledger {url} --by YOU --reason WHY"

    def generation(self) -> int | None:
        """Return the generation kept here, None if there is none that can be read."""
        try:
            descriptor = os.open(self._generation, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return int(os.read(descriptor, 64))
            finally:
                os.close(descriptor)
        except (OSError, ValueError):
            return None

    def advance(self, generation: int) -> None:
        """Keep a generation, durably, unless a later one is kept already. The caller has the turn.

        Raises:
            LedgerUnavailable: there is no room, or this user cannot write here.
        """
        present = self.generation()
        if present is not None and generation <= present:
            return
        with self._writable():
            self._replace(generation)

    def _replace(self, generation: int) -> None:
        fresh = f"{self._generation}.new"
        like = os.stat(self.database)  # noqa: PTH116
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        descriptor = os.open(fresh, flags, like.st_mode & 0o666)
        try:
            lifelines.made_like(descriptor, like)
            os.write(descriptor, f"{generation}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(fresh, self._generation)  # noqa: PTH105
        self._sync()

    @contextmanager
    def turn(self) -> Generator[None, None, None]:
        """Take the turn to change generations and owners, making the folder if need be.

        Raises:
            LedgerReadOnly: this user cannot write here.
        """
        with self._writable():
            self._make()
            held = lifelines.turn(self._file("registration.lock"), like=self.database)
            held.__enter__()
        try:
            yield
        finally:
            held.__exit__(None, None, None)

    def hold(self, epoch: str) -> None:
        """Create and hold the lock of a life that is about to register."""
        with self._writable():
            if not lifelines.hold(self._life(epoch), like=self.database):
                raise LedgerReadOnly(f"somebody holds the lock of the new life {epoch}")

    def let_go(self, epoch: str) -> None:
        """Give back the lock of an own life."""
        lifelines.let_go(self._life(epoch))

    def held_here(self, epoch: str) -> bool:
        """Return whether this process holds the lock of a life."""
        return bool(_EPOCH.fullmatch(epoch)) and lifelines.held_here(self._life(epoch))

    def over(self, epoch: str, *, remove: bool) -> bool | None:
        """Return whether a life's process is gone; None if its lock file is not there."""
        # An epoch read from a damaged record must not lead anywhere else.
        if not _EPOCH.fullmatch(epoch):
            return None
        return lifelines.seize(self._life(epoch), remove=remove)

    def checkpoint_turn(self) -> AbstractContextManager[bool]:
        """Take the turn to checkpoint, if it is free; makes the folder, which a ledger without owners does not have."""
        self._make()
        return lifelines.turn_if_free(self._file("checkpoint.lock"), like=self.database)

    def writable(self) -> bool:
        """Return whether this user could write here."""
        there = os.path.isdir(self.folder)  # noqa: PTH112
        folder = self.folder if there else os.path.dirname(self.folder)  # noqa: PTH120
        return os.access(folder, os.W_OK | os.X_OK)

    def _life(self, epoch: str) -> str:
        return self._file("owners", f"{epoch}.lock")

    def _file(self, *parts: str) -> str:
        return os.path.join(self.folder, *parts)  # noqa: PTH118

    @contextmanager
    def _writable(self) -> Generator[None, None, None]:
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                raise LedgerUnavailable(
                    f"no room for an owner in {self.folder}: {error}",
                    code="ledger-full",
                    hint="make room on the disk",
                    effect_ran="no",
                ) from error
            raise LedgerReadOnly(
                f"owners cannot be registered in {self.folder}: {error}",
                hint="this user must be able to write in that folder",
            ) from error

    def _make(self) -> None:
        like = os.stat(self.database)  # noqa: PTH116
        mode = like.st_mode & 0o666
        mode |= (mode & 0o444) >> 2
        for folder in (self.folder, self._file("owners")):
            try:
                os.mkdir(folder, mode)  # noqa: PTH102
            except FileExistsError:
                continue
            os.chmod(folder, mode)  # noqa: PTH101
            if os.geteuid() == 0:
                os.chown(folder, like.st_uid, like.st_gid)

    def _sync(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
