"""Where vectors come from, chunk by chunk, and where they go."""

from isotropy.errors import public
from isotropy.sources.arrays import ArraySource, MappedSource
from isotropy.sources.base import Batch, Chunk, Source, SourceView
from isotropy.sources.files import FileSource
from isotropy.sources.opening import as_source, open_source
from isotropy.sources.sinks import PartsSink, Sink, open_sink

open = public("isotropy.open")(open_source)

__all__ = [
    "ArraySource",
    "Batch",
    "Chunk",
    "FileSource",
    "MappedSource",
    "PartsSink",
    "Sink",
    "Source",
    "SourceView",
    "as_source",
    "open",
    "open_sink",
]
