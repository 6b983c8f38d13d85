"""Atomic writes: files and folders that appear only when they are complete.

Everything is written next to its target under a unique temporary name, and renamed at the end. A
link is kept and its target replaced; a replaced file keeps its mode. What a killed run left behind
is removed by the next run that writes there.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from isotropy._version import __version__
from isotropy.errors import InputError, reason, without_secrets

try:
    import fcntl
except ImportError:  # Windows, where we cannot tell whether a leftover is in use
    fcntl = None  # type: ignore[assignment]

MARKER = ".isotropy.json"  # lists the files that we wrote in a folder of ours
TEMPORARY = re.compile(r"\..*\.[0-9a-f]{16}\.isotropy-part", re.DOTALL)
STREAM = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/[^/]+/fd/\d+")
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux; macOS has the same 2

_swept: set[str] = set()


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], *, overwrite: bool = True) -> Iterator[Path]:
    """A temporary file next to `path`, which replaces it at the end; removed after an error.

    Parameters
    ----------
    path : path
        A pipe or device is written to at the end.
    overwrite : bool
        Whether to replace the file if it exists, or appears in the meantime.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(f"{folder}/numbers.txt") as part:
    ...         _ = part.write_text("1 2 3")
    ...     Path(folder, "numbers.txt").read_text(), len(os.listdir(folder))
    ('1 2 3', 1)
    """
    part = NewFile(path, overwrite)
    try:
        yield part.begin()
        part.finish()
    finally:
        part.discard()


class NewFile:
    """A file being written: `begin` returns its temporary path, `finish` gives it its name.

    `discard` must always be called; after `finish` it has nothing to remove.
    """

    def __init__(self, path: str | os.PathLike[str], overwrite: bool) -> None:
        self.path = os.fspath(path)
        self.overwrite = overwrite
        self.stream = is_stream(self.path)
        self.part = ""
        self._handle: int | None = None
        self._old: os.stat_result | None = None

    def begin(self) -> Path:
        """Create the temporary file and return its path."""
        if self.stream:
            self._handle, self.part = tempfile.mkstemp(prefix="isotropy-")
            return Path(self.part)
        self.target = os.path.realpath(self.path)
        sweep(os.path.dirname(self.target))
        self._old = status(self.target)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        mode = 0o666 if self._old is None else 0o600  # the system applies the umask
        while True:
            self.part = temporary(self.target)
            self._handle = os.open(self.part, flags, mode)
            if _held(self._handle):
                return Path(self.part)
            self.discard()

    def finish(self) -> None:
        """Flush what was written to disk, and give the file its name."""
        if self.stream:
            if sys.stdout is not None:
                sys.stdout.flush()
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            with open(self.part, "rb") as file, open(handle, "wb") as stream:
                shutil.copyfileobj(file, stream)
            return
        _sync(self.part, os.O_RDWR)
        if self._old is not None:
            keep_mode(self.part, self._old)
        if fcntl is None:  # Windows cannot rename an open file
            self._close()
        if self.overwrite:
            os.replace(self.part, self.target)
        else:
            _take_name(self.part, self.target)
        sync_folder(os.path.dirname(self.target))

    def discard(self) -> None:
        """Remove what was not finished."""
        if not self.part:
            return
        self._close()
        with contextlib.suppress(OSError):
            os.unlink(self.part)
        self.part = ""

    def _close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class NewFolder:
    """A folder being written, like `NewFile`; other processes may write into `part`.

    Its temporary name is known from the start, so other processes can be told before `begin`. At
    the end it gets a marker that lists its files: the folder can be replaced as long as it holds
    nothing else.
    """

    def __init__(self, path: str | os.PathLike[str], overwrite: bool) -> None:
        self.target = os.path.realpath(path)
        self.overwrite = overwrite
        self.part = temporary(self.target)
        self._handle: int | None = None

    def begin(self) -> None:
        sweep(os.path.dirname(self.target))
        mode = 0o777 if status(self.target) is None else 0o700
        while True:
            os.mkdir(self.part, mode)
            if fcntl is None:
                return
            self._handle = os.open(self.part, os.O_RDONLY)
            if _held(self._handle):
                return
            self.discard()

    def finish(self) -> None:
        for entry in os.scandir(self.part):
            if TEMPORARY.fullmatch(entry.name):  # left by a lost worker
                os.unlink(entry.path)
        old = status(self.target)
        mark(self.part, [entry.name for entry in os.scandir(self.part)])
        if old is None:
            sync_folder(self.part)
            os.rename(self.part, self.target)  # fails if another run was faster
        elif not self.overwrite or not is_ours(self.target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.target)
        else:
            _keep_modes(self.part, self.target, old)
            sync_folder(self.part)
            replace_folder(self.part, self.target, is_ours)
        sync_folder(os.path.dirname(self.target))

    def discard(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        shutil.rmtree(self.part, ignore_errors=True)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_handle": None}


@contextlib.contextmanager
def write_errors(path: str | os.PathLike[str], after: str = "") -> Iterator[None]:
    """Turn an error while writing into one line that says why; a closed pipe stays as it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise InputError(
                f"{quoted(path)} has appeared or changed in the meantime: something else writes "
                "there. Choose another name."
            ) from error
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = "Free some room" if full else "Check the folder"
        unchanged = "" if is_stream(path) else "; nothing was changed"
        raise InputError(
            f"{quoted(path)} could not be written{after}: {reason(error)}. {fix}, or "
            f"write elsewhere{unchanged}."
        ) from error


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether this is a pipe or device, which is written to and never replaced."""
    found = status(path)
    if found is None:
        return False
    mode = found.st_mode
    known = STREAM.fullmatch(os.path.abspath(path)) is not None
    return known or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def status(path: str | os.PathLike[str]) -> os.stat_result | None:
    """The status of what is there, following links; None if nothing is visible."""
    try:
        return os.stat(path)
    except (OSError, ValueError):
        return None


def quoted(path: object) -> str:
    """A path for messages: in quotes, on one line, and of bounded length."""
    text = without_secrets(str(path))
    return repr(text if len(text) <= 160 else f"{text[:80]}...{text[-80:]}")


def is_ours(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder is empty or holds only files that we wrote."""
    try:
        names = set(os.listdir(folder)) - {MARKER}
    except OSError:
        return False
    return names <= written_by_us(folder)


def written_by_us(folder: str | os.PathLike[str]) -> set[str]:
    """Names of the files in a folder that we wrote and that have not changed since."""
    try:
        listed = json.loads(Path(folder, MARKER).read_text(encoding="utf-8"))["files"]
        return {name for name, seen in listed.items() if seen and seen == _seen(folder, name)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()


def mark(folder: str | os.PathLike[str], names: list[str]) -> None:
    """Record in the folder that we wrote these files, in addition to earlier ones."""
    ours = (written_by_us(folder) | set(names)) - {MARKER}
    found = {"isotropy": __version__, "files": {name: _seen(folder, name) for name in sorted(ours)}}
    with atomic_write(Path(folder, MARKER)) as part:
        part.write_text(json.dumps(found, indent=1), encoding="utf-8")


def _seen(folder: str | os.PathLike[str], name: str) -> list[Any] | None:
    """What changes if a file is edited, or a file of a folder; None if there is neither."""
    path = os.path.join(folder, os.path.basename(name))
    try:
        found = os.lstat(path)
        if stat.S_ISDIR(found.st_mode):
            return [[inside, _seen(path, inside)] for inside in sorted(os.listdir(path))] or [0]
    except (OSError, ValueError):
        return None
    return [found.st_size, found.st_mtime_ns] if stat.S_ISREG(found.st_mode) else None


def temporary(target: str) -> str:
    """A unique hidden name next to the target, which we recognize later."""
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name[:50]}.{secrets.token_hex(8)}.isotropy-part")


def sweep(folder: str) -> None:
    """Remove what killed runs left in a folder, once per process.

    A run that is still writing holds a lock, which ends with its process.
    """
    if fcntl is None or folder in _swept or TEMPORARY.fullmatch(os.path.basename(folder)):
        return
    _swept.add(folder)
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if TEMPORARY.fullmatch(entry.name) and not entry.is_symlink():
                _remove_leftover(entry)


def _remove_leftover(entry: os.DirEntry[str]) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if not _locked(handle):
                return
            if entry.is_dir():
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)
        finally:
            os.close(handle)


def lock_folder(path: str) -> int | None:
    """A handle whose lock on a folder, made if missing, ends with it or with the process.

    Raises BlockingIOError if another holds the lock; None if the system has no such locks.
    """
    while True:
        os.makedirs(path, exist_ok=True)
        if fcntl is None:
            return None
        handle = os.open(path, os.O_RDONLY)
        held, here = _locked(handle), status(path)
        if held is not False and here is not None and os.path.samestat(here, os.fstat(handle)):
            return handle
        os.close(handle)
        if held is False:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)


def _held(handle: int) -> bool:
    """Whether what was just made still exists, and is now protected from sweeps."""
    held = _locked(handle)
    return held is None or (held and os.fstat(handle).st_nlink > 0)


def _locked(handle: int) -> bool | None:
    """Whether we now hold the lock; None if the file system has no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def keep_mode(path: str, old: os.stat_result) -> None:
    """Give a file or folder the mode of the one it replaces, and its owner if permitted."""
    with contextlib.suppress(OSError, AttributeError):
        os.chown(path, old.st_uid, old.st_gid)
    os.chmod(path, stat.S_IMODE(old.st_mode) & 0o777)


def _keep_modes(new: str, old: str, found: os.stat_result) -> None:
    """Make the files of a new folder as private as those of the folder it replaces."""
    modes = [entry.stat().st_mode for entry in os.scandir(old) if entry.is_file()]
    for entry in os.scandir(new):
        if entry.is_dir():  # as private as the folder around it
            continue
        mode = stat.S_IMODE(entry.stat().st_mode)
        for other in modes:
            mode &= stat.S_IMODE(other)
        os.chmod(entry.path, mode)
    keep_mode(new, found)


def _take_name(part: str, target: str) -> None:
    """Give a file an unused name; raises FileExistsError if it is in use."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise
    except OSError as error:  # no hard links there
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from error
        os.rename(part, target)


def replace_folder(part: str, target: str, is_ours: Callable[[str], bool]) -> None:
    """Replace a folder by another if it is ours; what is in `part` afterwards can be removed."""
    if _exchanged(part, target):
        if is_ours(part):
            return
        if not _exchanged(part, target):  # something was just added, and is kept
            os.rename(part, _set_aside(target))
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    old = _set_aside(target)
    os.rename(target, old)
    try:
        if not is_ours(old):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        os.rename(part, target)
    except BaseException:
        if not os.path.lexists(target):
            os.rename(old, target)
        raise
    finally:
        if os.path.lexists(target) and os.path.lexists(old) and is_ours(old):
            shutil.rmtree(old, ignore_errors=True)


def _set_aside(target: str) -> str:
    """A name for the replaced folder, which no sweep removes: it may be the only copy."""
    return temporary(target).removesuffix("part") + "old"


def _exchanged(one: str, other: str) -> bool:
    """Whether the names of two folders were exchanged, in one step."""
    names = os.fsencode(one), os.fsencode(other)
    try:
        system = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            return int(system.renamex_np(*names, RENAME_EXCHANGE)) == 0
        return int(system.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)) == 0
    except (OSError, AttributeError, TypeError):
        return False


def sync_folder(path: str) -> None:
    """Flush renames in a folder to disk, if the system can."""
    with contextlib.suppress(OSError):
        _sync(path, os.O_RDONLY)


def _sync(path: str, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
