"""The exceptions and the one warning of the package, each with a message of one line."""

import errno

LONGEST = 500  # characters of a message
KEPT_AT_THE_END = 160  # of a message that is cut: what to do stands there


def one_line(text: object, longest: int = LONGEST) -> str:
    """The text on one line: control characters escaped, the middle of a long one left out.

    Examples
    --------
    >>> one_line("red \\x1b[31m\\n and more")
    'red \\\\x1b[31m\\\\n and more'
    >>> one_line("a" * 30 + "b" * 30, 20)
    'aaaaaaaaa [...] bbbb'
    """
    line = str(text)
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

    def __str__(self) -> str:
        return one_line(super().__str__())


class InputError(IsotropyError, ValueError):
    """An argument breaks its rule: wrong shape, value or combination."""


class InputTypeError(IsotropyError, TypeError):
    """An argument is of a kind that cannot be used, such as a sparse matrix."""


class NotAffineError(IsotropyError, TypeError):
    """The repair has no matrix-and-bias form."""


class RepairFileError(IsotropyError, ValueError):
    """A file is not a repair that this version can read."""


class MissingExtraError(IsotropyError, ImportError):
    """A part of the package needs an extra that is not installed."""


def reason(error: BaseException) -> str:
    """Why something could not be written, in a few words."""
    no_room = (errno.ENOSPC, errno.EDQUOT)
    full = getattr(error, "errno", None) in no_room or "os error 28" in str(error)
    return "the disk is full" if full else getattr(error, "strerror", None) or str(error)


class IsotropyWarning(UserWarning):
    """The result stands, but not without the remark that comes with it."""

    def __str__(self) -> str:
        return one_line(super().__str__())
