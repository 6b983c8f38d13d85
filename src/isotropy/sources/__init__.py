"""Where vectors come from, chunk by chunk, and where they go."""

from isotropy.errors import public
from isotropy.sources.arrays import ArraySource, Excerpt, MappedSource, PickedRows
from isotropy.sources.base import Batch, Chunk, Source, SourceView
from isotropy.sources.files import FileSource, FormatError, listed, read_errors
from isotropy.sources.guard import guard, output_path
from isotropy.sources.opening import FOLDERS, FORMATS, FolderFormat, as_source, open_source
from isotropy.sources.sinks import PartsSink, Sink, open_sink
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
