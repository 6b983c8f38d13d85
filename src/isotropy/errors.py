"""The exceptions and the one warning of the package, each with a message of one line."""

import contextlib
import errno
import functools
import inspect
import itertools
import re
import reprlib
import sys
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FunctionType
from typing import Any, TypeVar, overload

LONGEST = 500  # characters of a message
KEPT_AT_THE_END = 160  # of a message that is cut: what to do stands there
BRIEF = 80  # characters of a value in a message
DROP_ROWS = "Drop those rows, or leave them out with skip_bad_rows."
ENCODE_AGAIN = "Encode these rows again."  # where each row stands for a text
OPTIONS = ("table", "column", "key", "host", "port", "dbname", "user", "sslmode", r"\w*password")
URL = re.compile(r"\s*[\w+.-]+:/")
QUOTED_URL = re.compile(r"(['\"])(\w+:/.*?)(?<!\\)\1(?=[\s,.:;)\]}]|$)", re.DOTALL)
SECRET = re.compile(  # in a URL, or in a text with one: then its end is not known
    r"((?:postgres|postgresql|qdrant):/{1,3}[^:?'\"]*:)(?:(?!:/).)*(?=@)"
    r"|(\w:/{1,3}[^/\s:@]*:)\S*(?=@)"
    r"|(qdrant:/{1,3})[^#?\s:]+(?=@)"
    r"|((?:api[-_]?key|token|sig|signature)=)(?!\*{3}(?:\W|$))[^&#]*"
    r"|((?:password|secret)=)(?!\*{3}(?:\W|$))(?:(?!&(?:" + "|".join(OPTIONS) + r")=).)*",
    re.IGNORECASE | re.DOTALL,
)
BETWEEN = {  # packages between a warning and users
    "isotropy", "sklearn", "functools", "contextlib", "concurrent",
}  # fmt: skip


def without_secrets(text: str) -> str:
    """The text with *** for passwords and keys in URLs.

    Examples
    --------
    >>> without_secrets("postgresql://ann:s3cret@host/db?sslpassword=other&table=docs")
    'postgresql://ann:***@host/db?sslpassword=***&table=docs'
    """
    if ":/" not in text:
        return text
    ends = [0, *(end for found in QUOTED_URL.finditer(text) for end in found.span(2)), len(text)]
    if URL.match(text):
        ends = [0, len(text)]
    return "".join(_masked(text[a:b]) for a, b in itertools.pairwise(ends))


def _masked(text: str) -> str:
    return SECRET.sub(lambda found: f"{found[found.lastindex or 0]}***", text)


def one_line(text: object, longest: int = LONGEST) -> str:
    """The text on one line: control characters escaped, the middle of a long one left out.

    Examples
    --------
    >>> one_line("red \\x1b[31m\\n and more")
    'red \\\\x1b[31m\\\\n and more'
    >>> one_line("a" * 30 + "b" * 30, 20)
    'aaaaaaaaa [...] bbbb'
    """
    line = without_secrets(str(text))
    if len(line) > 2 * longest:  # escapes are made of no more than is shown
        line = _cut(line, 2 * longest)
    if not line.isprintable():
        line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    return line if len(line) <= longest else _cut(line, longest)


def _cut(line: str, longest: int) -> str:
    mark = " [...] "
    end = min(KEPT_AT_THE_END, (longest - len(mark)) // 3)
    return f"{line[: longest - len(mark) - end]}{mark}{line[len(line) - end :]}"


class IsotropyError(Exception):
    """Base of every error that the package words itself, in one line of bounded length."""

    caller: str | None = ""  # the entry point, whose name the message begins with; None: never

    def __str__(self) -> str:
        text = super().__str__()
        return one_line(f"{self.caller}: {text}" if self.caller else text)


class InputError(IsotropyError, ValueError):
    """An argument breaks its rule: wrong shape, value or combination."""


class WidthError(InputError):
    """X has another number of features than it must have; scikit-learn looks for this wording."""

    def __init__(self, found: int, expected: int) -> None:
        super().__init__(found, expected)

    def __str__(self) -> str:
        found, expected = self.args
        return (
            f"X has {found} features, but {self.caller or 'isotropy'} is expecting {expected} "
            "features as input. Check the encoder, or fit again."
        )


class InputTypeError(IsotropyError, TypeError):
    """An argument is of a kind that cannot be used, such as a sparse matrix."""


class NotAffineError(IsotropyError, TypeError):
    """The repair has no matrix-and-bias form."""


class RepairFileError(IsotropyError, ValueError):
    """A file is not a repair that this version can read."""


class MissingExtraError(IsotropyError, ImportError):
    """A part of the package needs an extra that is not installed."""


@contextlib.contextmanager
def needs(package: str, extra: str) -> Iterator[None]:
    """Around the import of an optional package: if it is missing, name the extra that has it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise MissingExtraError(
            f'{package} is needed, which is not installed. Run: pip install "isotropy[{extra}]".'
        ) from error


class ClusterError(IsotropyError, RuntimeError):
    """A cluster has lost what the work needs: its scheduler, its workers, or their memory."""

    caller = None


Entry = TypeVar("Entry", bound=Callable[..., Any])


@overload
def public(entry: Entry) -> Entry: ...
@overload
def public(entry: str) -> Callable[[Entry], Entry]: ...
def public(entry: Any) -> Any:
    """Decorate an entry point: messages of errors that are raised below begin with its name.

    The innermost entry point on the way up names an error. The name is that of the function, or
    for a method that of its object's class; `public("load")` gives another. Of a class, all that
    is public is decorated: its methods, its properties, `__init__` and `__call__`.

    Examples
    --------
    >>> @public
    ... def isoscore(X):
    ...     raise InputError("X must have rows, got none.")
    >>> isoscore([])
    Traceback (most recent call last):
    isotropy.errors.InputError: isoscore: X must have rows, got none.
    """
    if isinstance(entry, str):
        return lambda function: _naming(function, entry)
    if not isinstance(entry, type):
        return _naming(entry)
    for name, member in list(vars(entry).items()):
        if name.startswith("_") and name not in ("__init__", "__call__"):
            continue
        if isinstance(member, FunctionType):
            setattr(entry, name, _naming(member))
        elif isinstance(member, classmethod):
            setattr(entry, name, classmethod(_naming(member.__func__)))
        elif isinstance(member, staticmethod):
            setattr(entry, name, staticmethod(_naming(member.__func__, entry.__name__)))
        elif isinstance(member, property) and member.fget is not None:
            setattr(entry, name, member.getter(_naming(member.fget)))
    return entry


def _naming(function: Callable[..., Any], name: str = "") -> Any:
    """The function, from which no error goes up without a name."""
    place = function.__qualname__.rpartition(".")[0]
    is_method = not name and place and not place.endswith("<locals>")

    def give_name(error: IsotropyError, args: tuple[Any, ...]) -> None:
        if error.caller == "":
            owner = args[0] if is_method else function
            named = isinstance(owner, type) or not is_method
            error.caller = name or (owner if named else type(owner)).__name__

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except IsotropyError as error:
            give_name(error, args)
            raise

    @functools.wraps(function)
    def iterated(*args: Any, **kwargs: Any) -> Any:
        try:
            return (yield from function(*args, **kwargs))
        except IsotropyError as error:
            give_name(error, args)
            raise

    return iterated if inspect.isgeneratorfunction(function) else called


def brief(value: object) -> str:
    """A value as a message shows it: one short line of printable characters, whatever it holds.

    Examples
    --------
    >>> brief("two\\nlines"), brief(10**5000), brief("a" * 1000)[:5]
    ("'two\\\\nlines'", 'about 10**5000', "'aaaa")
    """
    shape = None if getattr(value, "is_nested", False) else getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"{type(value).__name__} of shape {_BRIEF.repr(tuple(shape))}"
    return one_line(" ".join(_BRIEF.repr(value).split()), BRIEF + 2)


class _Brief(reprlib.Repr):
    def repr_str(self, value: str, level: int) -> str:
        return super().repr_str(without_secrets(value), level)

    def repr_int(self, value: int, level: int) -> str:
        if value.bit_length() <= 4 * BRIEF:
            return repr(value)
        return f"about {'-' if value < 0 else ''}10**{round(value.bit_length() * 0.30103)}"


_BRIEF = _Brief()
_BRIEF.maxstring = _BRIEF.maxother = BRIEF
_BRIEF.maxlevel = 2


def reason(error: BaseException) -> str:
    """Why something could not be written, in a few words."""
    no_room = (errno.ENOSPC, errno.EDQUOT)
    full = getattr(error, "errno", None) in no_room or "os error 28" in str(error)
    return "the disk is full" if full else getattr(error, "strerror", None) or str(error)


class IsotropyWarning(UserWarning):
    """The result stands, but not without the remark that comes with it."""

    def __str__(self) -> str:
        return one_line(super().__str__())


Line = tuple[dict[str, Any], str, int]  # the globals, file and number of a line

led_here: ContextVar[Line | None] = ContextVar("isotropy-user-line", default=None)
"""The user's line that led to the work of a thread of ours, above which there is no such line."""


def user_line() -> Line:
    """The line of the user's that led here."""
    if (known := led_here.get()) is not None:
        return known
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in BETWEEN:
        frame = frame.f_back
    return frame.f_globals, frame.f_code.co_filename, frame.f_lineno


def warn(message: str, category: type[Warning] = IsotropyWarning) -> None:
    """Warn at the line of the user's that led here."""
    place, file, line = user_line()
    seen = place.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, file, line, place.get("__name__"), seen)
