"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its place at the end; after an error, neither.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with whole(f"{folder}/numbers.txt") as part:
    ...         _ = part.write_text("1 2 3")
    ...     Path(folder, "numbers.txt").read_text(), len(os.listdir(folder))
    ('1 2 3', 1)
    """
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(0o666 & ~_umask())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
