"""What trained repairs are made of, in torch; `isotropy.train` offers the same parts by name."""

from isotropy.errors import MissingExtraError

try:
    import torch  # noqa: F401
except ImportError:
    raise MissingExtraError(
        "Flow, LearnedLayer and isotropy.train need torch, which is not installed. "
        'Run: pip install "isotropy[train]".'
    ) from None
