"""URLs of columns of vectors in databases."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from isotropy.errors import InputError, brief, without_secrets

SCHEME = re.compile(r"(lance|postgres|postgresql|qdrant):/(/?)")
OWN = ("table", "column", "key")  # what a URL says about the table; the rest is the server's


@dataclass(frozen=True)
class Address:
    """A column of vectors in a table of a database; as text, without secrets.

    `kind` is the module that knows the database, and `server` what it connects to: a folder or a
    URL, which may hold a password. The table of Qdrant is a collection, and its column a vector.
    """

    kind: str
    server: str = field(repr=False)
    table: str
    column: str | None
    key: str | None
    shown: str

    def __str__(self) -> str:
        return self.shown


def address(path: Any) -> Address | None:
    """The address that a URL or the folder of a Lance table stands for; None for other paths."""
    if not isinstance(path, (str, os.PathLike)):
        return None
    text = os.fspath(path)
    if not isinstance(text, str):
        return None
    found = SCHEME.match(text)
    if found is None:
        return _lance_folder(text)
    if not found[2]:
        raise InputError(
            f"a URL must have two slashes or more after {found[1]}:, got {brief(text)}. Give it as "
            "text: a Path drops one."
        )
    return _of_url(text)


def _lance_folder(path: str) -> Address | None:
    plain = path.rstrip("/")
    if not plain.lower().endswith(".lance") or "://" in path:
        return None
    folder, name = os.path.split(os.path.abspath(os.path.expanduser(plain)))
    return Address("lance", folder, name[: -len(".lance")], None, None, path)


def _of_url(text: str) -> Address:
    shown = without_secrets(text)
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018
        if "@" in parts.path and parts.scheme != "lance" and parts.netloc:
            raise ValueError("a part of a password")
    except ValueError:  # which may hold a part of the password
        raise InputError(
            f"{shown!r} must be a URL. Check the host and the port, and write / as %2F, # as %23 "
            "and ? as %3F in a password."
        ) from None
    fragment, _, more = parts.fragment.partition("?")
    given = parse_qsl("&".join(filter(None, (parts.query, more))), keep_blank_values=True)
    own = {name: value for name, value in given if name in OWN and value}
    rest = urlencode([(name, value) for name, value in given if name not in OWN])
    kind = "postgres" if parts.scheme.startswith("postgres") else parts.scheme
    table = own.get("table") if kind == "postgres" else unquote(fragment)
    if not table:
        how = "?table=docs&column=embedding" if kind == "postgres" else "#docs"
        raise InputError(f"{shown!r} must name a table. End it with {how}.")
    if kind == "lance":
        if "/" in table:
            raise InputError(f"{shown!r} must name a table without a slash, got {table!r}.")
        if parts.netloc or not parts.path:
            raise InputError(
                f"{shown!r} must name a local folder. Write lance:///folder#{table}, with three "
                "slashes."
            )
        server = os.path.abspath(unquote(parts.path))
    else:
        host = _quoted_user(parts.netloc)
        server = f"{parts.scheme}://{host}{parts.path}{'?' if rest else ''}{rest}"
    return Address(kind, server, table, own.get("column"), own.get("key"), shown)


def _quoted_user(netloc: str) -> str:
    """The host with a user and a password that can be told apart from it."""
    user, at, host = netloc.rpartition("@")
    quoted = [quote(unquote(part), "") for part in user.split(":", 1)]
    return f"{':'.join(quoted)}{at}{host}"
