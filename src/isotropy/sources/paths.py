"""Access to files: local paths through Python, remote ones through pyarrow and fsspec."""

from __future__ import annotations

import fnmatch
import glob
import os
import stat
import urllib.parse
from typing import IO, Any

from isotropy.errors import InputError, MissingExtraError


def normal(path: str | os.PathLike[str]) -> str:
    """An absolute local path, or a URL with a scheme other than file://."""
    text = os.fspath(path)
    if text.startswith("file:/"):  # pathlib leaves only one slash
        text = urllib.parse.unquote(urllib.parse.urlparse(text).path)
    return text if is_remote(text) else os.path.abspath(os.path.expanduser(text))


def suffix(path: str) -> str:
    """The suffix in lower case, such as .csv or .csv.gz."""
    stem, last = os.path.splitext(path.lower())
    return os.path.splitext(stem)[1] + last if last == ".gz" else last


def is_remote(path: str) -> bool:
    return "://" in path


def open_binary(path: str) -> IO[bytes]:
    """The file, open for reading; each read of a chunk opens it anew."""
    if not is_remote(path):
        return open(path, "rb")
    filesystem, inner = _filesystem(path)
    file: IO[bytes] = filesystem.open_input_file(inner)
    return file


def read_bytes(path: str, offset: int, n_bytes: int) -> bytes:
    """n_bytes from offset on; fewer if the file ends before."""
    with open_binary(path) as file:
        file.seek(offset)
        return file.read(n_bytes)


def stamp(path: str) -> tuple[int, ...]:
    """Size in bytes, time of the last change in ns, and what else changes if a file is replaced."""
    if not is_remote(path):
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            return _folder_stamp(path)
        return found.st_size, found.st_mtime_ns, found.st_ino, found.st_ctime_ns
    info = _info(path)
    if not info.is_file:
        raise FileNotFoundError(path)
    return int(info.size), int(info.mtime_ns or 0)


def _folder_stamp(path: str) -> tuple[int, int]:
    """Size in bytes of all files in a folder, and time of the last change in ns."""
    size = latest = 0
    for folder, _, names in os.walk(path):
        for name in names:
            found = os.stat(os.path.join(folder, name))
            size, latest = size + found.st_size, max(latest, found.st_mtime_ns)
    return size, latest


def same(stamp: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether both stamps belong to the same, unchanged file.

    Some file systems renumber files now and then, and a new link changes the status time: only a
    file whose number and status time both differ is another one.
    """
    return stamp[:2] == other[:2] and (
        len(stamp) == 2 or stamp[2] == other[2] or stamp[3] == other[3]
    )


def is_folder(path: str) -> bool:
    return _info(path).type.name == "Directory" if is_remote(path) else os.path.isdir(path)


def is_file(path: str) -> bool:
    return bool(_info(path).is_file) if is_remote(path) else os.path.isfile(path)


def join(folder: str, name: str) -> str:
    return folder.rstrip("/") + "/" + name


def matches(pattern: str) -> list[str]:
    """The files that match a glob, sorted and each once, without names that begin with . or _."""
    if is_remote(pattern):
        found = _remote_matches(pattern)
    else:
        found = [path for path in _local_matches(pattern) if os.path.isfile(path)]
    named = sorted(path for path in found if os.path.basename(path)[0] not in "._")
    if is_remote(pattern):
        return named
    return sorted({os.path.realpath(path): path for path in reversed(named)}.values())


def _local_matches(pattern: str) -> list[str]:
    """Like glob.glob, but each folder is entered only once, so that loops of links end."""
    parts = pattern.split(os.sep)
    if "**" not in parts:
        return glob.glob(pattern)
    at = parts.index("**")
    top, rest = os.sep.join(parts[:at]) or os.sep, os.sep.join(parts[at + 1 :]) or "*"
    found, seen = [], set()
    for base in glob.glob(top) if glob.has_magic(top) else [top]:
        for folder, inner, _ in os.walk(base, followlinks=True):
            real = os.path.realpath(folder)
            if real in seen:
                inner.clear()
                continue
            seen.add(real)
            inner[:] = sorted(name for name in inner if not name.startswith("."))
            found += _local_matches(os.path.join(glob.escape(folder), rest))
    return found


def is_pattern(path: str) -> bool:
    return glob.has_magic(path) and not (os.path.exists(path) or is_file(path))


def _remote_matches(pattern: str) -> list[str]:
    from pyarrow.fs import FileSelector

    folder, name = pattern.rsplit("/", 1)
    if glob.has_magic(folder):
        raise InputError(f"{pattern!r} may have wildcards in its last part only.")
    filesystem, inner = _filesystem(folder)
    scheme = pattern[: pattern.index("://") + 3]
    infos = filesystem.get_file_info(FileSelector(inner, allow_not_found=True))
    files = [info for info in infos if info.is_file and fnmatch.fnmatch(info.base_name, name)]
    return [scheme + info.path.lstrip("/") for info in files]


def _info(path: str) -> Any:
    filesystem, inner = _filesystem(path)
    return filesystem.get_file_info(inner)


def _filesystem(url: str) -> tuple[Any, str]:
    """(pyarrow file system, path inside it) of a URL: Arrow's own ones, otherwise fsspec's."""
    import pyarrow as pa
    from pyarrow import fs

    try:
        filesystem, inner = fs.FileSystem.from_uri(url)
        return filesystem, str(inner)
    except (pa.ArrowInvalid, NotImplementedError):
        pass
    scheme = url[: url.index("://")]
    try:
        import fsspec

        outside, inner = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise MissingExtraError(
            f"{scheme}:// needs fsspec and its package for it ({error}). "
            f'Run: pip install "fsspec[{scheme}]".'
        ) from error
    except ValueError as error:
        raise InputError(f"{url!r} cannot be opened ({error}).") from error
    return fs.PyFileSystem(fs.FSSpecHandler(outside)), str(inner)
