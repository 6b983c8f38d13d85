"""Vector files written byte by byte, so that a test can write what no library would."""

from __future__ import annotations

import io
import json
import struct
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)


def npy(shape="(12, 4)", descr="'<f4'", fortran="False", values=None, version=(1, 0), header=None):
    """The bytes of a .npy file, with any text in its header."""
    if header is None:
        header = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"
    text = header.encode("latin1")
    width = 2 if version == (1, 0) else 4
    text += b" " * (-(len(text) + 9 + width) % 64) + b"\n"
    start = b"\x93NUMPY" + bytes(version) + len(text).to_bytes(width, "little")
    return start + text + (X.tobytes() if values is None else values)


def npz(members, compressed=False):
    """The bytes of a zip archive of these members."""
    file = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, data in members:
            entry = zipfile.ZipInfo(name)  # of a fixed date, so that tests repeat
            entry.compress_type = kind
            archive.writestr(entry, data)
    return file.getvalue()


def safetensors(entries, data=None, length=None):
    """The bytes of a safetensors file: a header of any JSON or text, then any bytes."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    size = len(text) if length is None else length
    return size.to_bytes(8, "little") + text + (X.tobytes() if data is None else data)


def tensor(dtype="F32", shape=(12, 4), offsets=(0, 192), **others):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **others}


def words(header="12 4", rows=X, names=None):
    """The bytes of word2vec's text; no header where it is empty."""
    names = names or [f"w{i}" for i in range(len(rows))]
    lines = [
        f"{name} {' '.join(map(repr, row))}" for name, row in zip(names, rows.tolist(), strict=True)
    ]
    return "\n".join([header] * bool(header) + lines).encode() + b"\n"


def binary_words(header="12 4", rows=X, end=b""):
    """The bytes of word2vec's binary file."""
    parts = [f"w{i} ".encode() + row.tobytes() + b"\n" for i, row in enumerate(rows)]
    return header.encode() + b"\n" + b"".join(parts) + end


def fvecs(widths=None, rows=X):
    widths = widths or [row.size for row in rows]
    pairs = zip(widths, rows, strict=True)
    return b"".join(struct.pack("<i", width) + row.tobytes() for width, row in pairs)


def fbin(rows=X, counts=None):
    return struct.pack("<II", *(counts or rows.shape)) + rows.tobytes()


def gguf(tensors=None, data=None, fields=(), counts=None, version=3):
    """The bytes of a GGUF file: tensors are (sizes with the fastest first, type, offset)."""
    if tensors is None:
        tensors = {"token_embd.weight": ((4, 12), 0, 0)}
    parts = [b"GGUF", struct.pack("<IQQ", version, *(counts or (len(tensors), len(fields))))]
    for key, kind, value in fields:
        parts += [struct.pack("<Q", len(key)), key, struct.pack("<I", kind), value]
    for name, (sizes, kind, offset) in tensors.items():
        text = name.encode()
        parts += [struct.pack("<Q", len(text)), text, struct.pack("<I", len(sizes))]
        parts += [struct.pack(f"<{len(sizes)}Q", *sizes), struct.pack("<IQ", kind, offset)]
    header = b"".join(parts)
    return header + bytes(-len(header) % 32) + (X.tobytes() if data is None else data)


def parquet(path, columns, **options):
    pq.write_table(pa.table(columns), path, **options)


def vectors(rows=X, kind=None):
    return pa.array([row.tolist() for row in rows], pa.list_(kind or pa.float32()))


def read(source):
    """All rows of a source, and the columns beside them."""
    batches = [batch for chunk in source.chunks() for batch in source.read(chunk)]
    rows = np.concatenate([batch.rows for batch in batches])
    tables = [batch.carried for batch in batches if batch.carried is not None]
    return rows, pa.concat_tables(tables) if tables else None
