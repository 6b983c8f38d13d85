"""The exceptions and the one warning of the package, each with a message of one line."""

import errno


class IsotropyError(Exception):
    """Base of every error that the package words itself."""


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
