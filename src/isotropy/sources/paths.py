"""Where bytes lie: local paths through Python, remote ones through pyarrow and fsspec."""

from __future__ import annotations

import fnmatch
import glob
import os
import urllib.parse
from typing import IO, Any

from isotropy.errors import InputError, MissingExtraError


def normal(path: str | os.PathLike[str]) -> str:
    """An absolute local path, or a URL of another scheme than file://."""
    text = os.fspath(path)
    if text.startswith("file:/"):  # with one slash too, as pathlib has it
        text = urllib.parse.unquote(urllib.parse.urlparse(text).path)
    return text if is_remote(text) else os.path.abspath(os.path.expanduser(text))


def is_remote(path: str) -> bool:
    return "://" in path


def open_binary(path: str) -> IO[bytes]:
    """The file, open for reading; every read of a chunk opens its own."""
    if not is_remote(path):
        return open(path, "rb")
    filesystem, inner = _filesystem(path)
    file: IO[bytes] = filesystem.open_input_file(inner)
    return file


def read_bytes(path: str, offset: int, n_bytes: int) -> bytes:
    """n_bytes from offset on; fewer where the file ends before."""
    with open_binary(path) as file:
        file.seek(offset)
        return file.read(n_bytes)


def status(path: str) -> tuple[int, int]:
    """(size in bytes, time of the last change in ns), FileNotFoundError where there is no file."""
    if not is_remote(path):
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns
    info = _info(path)
    if not info.is_file:
        raise FileNotFoundError(path)
    return int(info.size), int(info.mtime_ns or 0)


def is_folder(path: str) -> bool:
    return _info(path).type.name == "Directory" if is_remote(path) else os.path.isdir(path)


def is_file(path: str) -> bool:
    return bool(_info(path).is_file) if is_remote(path) else os.path.isfile(path)


def join(folder: str, name: str) -> str:
    return folder.rstrip("/") + "/" + name


def matches(pattern: str) -> list[str]:
    """The files that a glob names, sorted; hidden ones and those that begin with _ left out."""
    if not is_remote(pattern):
        found = [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
    else:
        found = _remote_matches(pattern)
    return sorted(path for path in found if os.path.basename(path)[0] not in "._")


def literal(path: str) -> str:
    """The pattern that matches this path only."""
    return path if is_remote(path) else glob.escape(path)


def is_pattern(path: str) -> bool:
    return glob.has_magic(path) and not (os.path.exists(path) or is_file(path))


def _remote_matches(pattern: str) -> list[str]:
    from pyarrow.fs import FileSelector

    folder, name = pattern.rsplit("/", 1)
    if glob.has_magic(folder):
        raise InputError(f"isotropy: {pattern!r} may have wildcards in its last part only.")
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
            f"isotropy: {scheme}:// needs fsspec and its package for it ({error}). "
            f'Run: pip install "fsspec[{scheme}]".'
        ) from None
    except ValueError as error:
        raise InputError(f"isotropy: {url!r} cannot be opened ({error}).") from None
    return fs.PyFileSystem(fs.FSSpecHandler(outside)), str(inner)
