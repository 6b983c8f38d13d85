"""Where vectors come from, chunk by chunk."""

from isotropy.sources.arrays import ArraySource, MappedSource, as_source
from isotropy.sources.base import Batch, Chunk, Source

__all__ = ["ArraySource", "Batch", "Chunk", "MappedSource", "Source", "as_source"]
