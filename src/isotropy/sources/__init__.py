"""Where vectors come from, chunk by chunk, and where they go."""

from isotropy.errors import public
from isotropy.sources.base import (
    ArraySource,
    Batch,
    Chunk,
    Excerpt,
    MappedSource,
    PickedRows,
    Room,
    RowMap,
    Source,
    SourceView,
    joined,
)
from isotropy.sources.files import FileSource, FormatError, listed, read_errors
from isotropy.sources.opening import (
    FOLDERS,
    FORMATS,
    FolderFormat,
    as_frame,
    as_source,
    open_source,
)
from isotropy.sources.sinks import PartsSink, Sink, guard, open_sink, output_path
from isotropy.sources.tables import Form, Record

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
