"""Headers that lie: of shapes, sizes, places and counts. Refused, with bounded work."""

import json
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest

import isotropy

from . import vec_files as made
from .conftest import one_clear_line
from .vec_files import X, npy, npz, safetensors, tensor

BIG = "9" * 30
NPY = {
    "negative rows": (npy("(-1, 4)"), "the shape (-1, 4), which no array has"),
    "negative columns": (npy("(12, -4)"), "which no array has"),
    "boolean rows": (npy("(True, 48)"), "the shape (True, 48), which no array has"),
    "boolean columns": (npy("(48, True)"), "which no array has"),
    "both negative": (npy("(-12, -4)"), "which no array has"),
    "more rows": (npy("(13, 4)"), "is truncated: it has 192 bytes of values"),
    "fewer rows": (npy("(6, 4)"), "has 192 bytes of values, and its header promises 96"),
    "fewer columns": (npy("(12, 3)"), "its header promises 144"),
    "product past int64": (npy(f"({2**40}, {2**40})"), "is truncated"),
    "size past any file": (npy(f"({BIG}, 4)"), "which no array has"),
    "thousands of digits": (npy(f"({'9' * 5000}, 4)"), "header that is damaged"),
    "floats in the shape": (npy("(12.0, 4)"), "header that is damaged"),
    "a list as the shape": (npy("[12, 4]"), "header that is damaged"),
    "no shape": (npy("()"), "of shape (). Save it with two dimensions"),
    "one dimension": (npy("(48,)"), "of shape (48,). Save it with two dimensions"),
    "three dimensions": (npy("(3, 4, 4)"), "Save it with two dimensions"),
    "thousands of dimensions": (npy("(" + "1," * 2000 + ")"), "Save it with two dimensions"),
    "no columns": (npy("(12, 0)", values=b""), "holds no vectors: 12 rows of 0"),
    "no rows": (npy("(0, 4)", values=b""), "holds no vectors: 0 rows of 4"),
    "too many columns": (npy(f"(1, {2**21})", values=bytes(2**23)), "features, and at most"),
    "objects": (npy(descr="'|O'"), "Python objects (pickled)"),
    "records": (npy("(12,)", "[('a', '<f4'), ('b', '<f4')]"), "Save it as float32"),
    "bytes": (npy(descr="'|V4'"), "Save it as float32"),
    "complex": (npy("(12, 2)", "'<c8'"), "dtype complex64"),
    "dates": (npy("(12, 2)", "'<M8[s]'"), "dtype datetime64[s]"),
    "unknown dtype": (npy(descr="'<q9'"), "header that is damaged"),
    "no dtype": (npy(descr="None"), "header that is damaged"),
    "code in the header": (npy(header="__import__('os').abort()"), "header that is damaged"),
    "nested header": (npy(header="(" * 9000), "header that is damaged"),
    "half a string": (npy(header="{'descr': '''"), "header that is damaged"),
    "another key": (npy(header="{'a': 1}"), "header that is damaged"),
    "version 3": (npy(version=(3, 0)), "is of .npy version (3, 0)"),
    "long header": (npy(header=" " * 20_000, version=(2, 0)), "header that is damaged"),
    "header past the end": (npy(version=(2, 0))[:8] + b"\xff\xff\xff\x7f{", "is damaged"),
    "only magic": (b"\x93NUMPY", "version"),
    "text": (b"this is text", "does not begin as one"),
}  # fmt: skip
EMPTY = {"": tensor()}
SAFETENSORS = {
    "negative rows": ({"e": tensor(shape=(-12, -4))}, None, "not as whole numbers"),
    "boolean rows": ({"e": tensor(shape=(True, 48))}, None, "not as whole numbers"),
    "floats": ({"e": tensor(shape=(12.0, 4))}, None, "not as whole numbers"),
    "texts": ({"e": tensor(shape=("12", "4"))}, None, "not as whole numbers"),
    "sizes past int64": ({"e": tensor(shape=(2**63, 4))}, None, "not as whole numbers"),
    "product past int64": ({"e": tensor(shape=(2**61, 2**61))}, None, "does not fit its shape"),
    "no shape": ({"e": {"dtype": "F32", "data_offsets": [0, 192]}}, None, "has no dtype, shape"),
    "no entry": ({"e": None}, None, "has no dtype, shape"),
    "three places": ({"e": tensor(offsets=(0, 96, 192))}, None, "has no dtype, shape and place"),
    "negative place": ({"e": tensor(offsets=(-192, 0))}, None, "not as whole numbers"),
    "boolean place": ({"e": tensor(offsets=(False, 192))}, None, "not as whole numbers"),
    "place backwards": ({"e": tensor(offsets=(192, 0))}, None, "does not fit its shape"),
    "place past the end": ({"e": tensor(shape=(24, 4), offsets=(0, 384))}, None, "is truncated"),
    "bytes to spare": ({"e": tensor()}, bytes(200), "its header promises 192"),
    "a hole": ({"e": tensor(offsets=(8, 200))}, bytes(200), "begins at byte 8"),
    "overlap": ({"e": tensor(), "f": tensor("U8", (96,), (96, 192))}, None, "begins at byte 96"),
    "the same place twice": ({"e": tensor(), "f": tensor()}, None, "begins at byte 0"),
    "smaller dtype": ({"e": tensor("F16")}, None, "does not fit its shape"),
    "complex": ({"e": tensor("C64", (12, 2))}, None, "holds 'e' in C64. Save it in one of"),
    "unknown dtype": ({"e": tensor("X" * 9000)}, None, "holds 'e' in XXX"),
    "one dimension": ({"e": tensor(shape=(48,))}, None, "holds 0 matrices"),
    "no columns": ({"e": tensor(shape=(12, 0), offsets=(0, 0))}, b"", "holds no vectors"),
    "the name twice": (b'{"e": {}, "e": {}}', None, "names 'e' twice"),
    "a field twice": (b'{"e": {"dtype": "F32", "dtype": "F64"}}', None, "names 'dtype' twice"),
    "a list": (b"[1, 2]", None, "is not a JSON object"),
    "no JSON": (b"{nonsense", None, "is not valid JSON"),
    "no UTF-8": (b'{"\xff\xfe": 1}', None, "is not text in UTF-8"),
    "deep JSON": (b'{"e": ' + b"[" * 100_000, None, "is nested too deeply"),
    "long numbers": (b'{"e": ' + b"9" * 9000 + b"}", None, "is not valid JSON"),
    "control characters": ({"\x1b[31m\n": tensor(shape=(48,))}, None, r"'\x1b[31m\n' (48,)"),
    "long names": ({"n" * 9000: tensor(shape=(48,))}, None, "holds 0 matrices"),
    "many tensors": ({f"t{i}": tensor(shape=(0, 4), offsets=(0, 0)) for i in range(5000)}, b"",
                     "holds 5000 matrices"),
}  # fmt: skip


@pytest.mark.parametrize("case", NPY)
def test_npy(refused, case):
    data, says = NPY[case]
    Path("x.npy").write_bytes(data)
    refused("measure", "x.npy", says=says)


@pytest.mark.parametrize("case", SAFETENSORS)
def test_safetensors(refused, case):
    entries, data, says = SAFETENSORS[case]
    Path("x.safetensors").write_bytes(safetensors(entries, data))
    refused("measure", "x.safetensors", says=says)


@pytest.mark.parametrize("length", [2**64 - 1, 2**62, 100_000_001, 500, 300])
def test_a_safetensors_header_longer_than_the_file(refused, length):
    Path("x.safetensors").write_bytes(safetensors({"e": tensor()}, length=length))
    refused("measure", "x.safetensors", says="")


def test_what_is_sound_is_read(folder):
    """The same makers, without a lie: otherwise the tests above would show nothing."""
    sound = {
        "x.npy": npy(),
        "x.npz": npz([("e.npy", npy())]),
        "c.npz": npz([("e.npy", npy())], compressed=True),
        "f.npy": npy(fortran="True", values=np.asfortranarray(X).tobytes("F")),
        "b.npy": npy(descr="'>f4'", values=X.astype(">f4").tobytes()),
        "2.npy": npy("(12L, 4L)"),
        "x.safetensors": safetensors({"e": tensor(), "__metadata__": {"a": "b"}}),
        "x.vec": made.words(),
        "g.txt": made.words(""),
        "x.bin": made.binary_words(),
        "x.fvecs": made.fvecs(),
    }
    for name, data in sound.items():
        Path(name).write_bytes(data)
        np.testing.assert_allclose(made.read(isotropy.open(name))[0], X, rtol=1e-7, err_msg=name)


FVECS = {
    "negative width": (made.fvecs([-4] * 12), "do not fit its 240 bytes"),
    "no width": (made.fvecs([0] * 12), "rows of 0 values"),
    "huge width": (made.fvecs([2**31 - 1] * 12), "do not fit its 240 bytes"),
    "changing width": (made.fvecs([4] * 7 + [3] + [4] * 4), "has 3 features in row 7"),
    "negative later": (made.fvecs([4] * 11 + [-4]), "has -4 features in row 11"),
    "one byte more": (made.fvecs() + b"\0", "do not fit its 241 bytes"),
    "one byte": (b"\4", "do not fit its 1 bytes"),
}


@pytest.mark.parametrize("case", FVECS)
def test_fvecs(refused, case):
    data, says = FVECS[case]
    Path("x.fvecs").write_bytes(data)
    refused("measure", "x.fvecs", says=says)


def damaged_member(n_rows):
    values = np.ones((n_rows, 4), np.float32).tobytes()
    data = bytearray(npz([("e.npy", npy(f"({n_rows}, 4)", values=values))]))
    data[data.index(values) + len(values) - 1] ^= 64
    return bytes(data)


def damaged_stream():
    data = bytearray(npz([("e.npy", npy())], compressed=True))
    data[120] ^= 255
    return bytes(data)


def flagged(flag):
    data = bytearray(npz([("e.npy", npy())]))
    for at in (6, data.index(b"PK\1\2") + 8):
        data[at] |= flag
    return bytes(data)


def method(number):
    data = bytearray(npz([("e.npy", npy())]))
    for at in (8, data.index(b"PK\1\2") + 10):
        data[at] = number
    return bytes(data)


def promised(size):
    """An archive whose directory claims another size of the compressed member."""
    data = bytearray(npz([("e.npy", npy())], compressed=True))
    at = data.index(b"PK\1\2") + 24
    data[at : at + 4] = size.to_bytes(4, "little")
    return bytes(data)


NPZ = {
    "stored, a bit flipped": (damaged_member(12), "(Bad CRC-32 for file 'e.npy')"),
    "stored, the last bit flipped": (damaged_member(9000), "the checksum of 'e.npy' is wrong"),
    "compressed, a byte changed": (damaged_stream(), "is damaged"),
    "twice": (npz([("e.npy", npy()), ("e.npy", npy())]), "holds 'e' twice"),
    "encrypted": (flagged(1), "is encrypted"),
    "patched": (flagged(32), "is encrypted"),
    "bzip2": (method(12), "in a way that numpy does not write"),
    "lzma": (method(14), "in a way that numpy does not write"),
    "unknown method": (method(99), "in a way that numpy does not write"),
    "fewer rows": (npz([("e.npy", npy("(6, 4)"))]), "its header promises 96"),
    "more rows": (npz([("e.npy", npy("(13, 4)"))]), "is truncated"),
    "fewer rows, compressed": (npz([("e.npy", npy("(6, 4)"))], True), "its header promises 96"),
    "more rows, compressed": (npz([("e.npy", npy("(13, 4)"))], True), "is truncated"),
    "negative rows, compressed": (npz([("e.npy", npy("(-12, -4)"))], True), "no array has"),
    "claims four gigabytes": (promised(2**32 - 2), "its header promises 192"),
    "no array": (npz([("readme.txt", b"hello")]), "holds 0 matrices"),
    "an empty archive": (npz([]), "holds 0 matrices"),
    "control characters": (npz([("\x1b[1m.npy", npy("(48,)"))]), r"among '\x1b[1m'"),
    "a long name": (npz([("n" * 9000 + ".npy", npy("(48,)"))]), "holds 0 matrices"),
    "no archive": (b"PK\3\4 and then nothing", "is damaged or not a .npz file"),
}  # fmt: skip


@pytest.mark.parametrize("case", NPZ)
def test_npz(refused, case):
    data, says = NPZ[case]
    Path("x.npz").write_bytes(data)
    refused("measure", "x.npz", says=says)


def bomb(n_bytes):
    """A deflated member of zeros after the beginning of a .npy header that claims all of them."""
    start = b"\x93NUMPY\2\0" + (n_bytes - 12).to_bytes(4, "little")
    return npz([("e.npy", start + bytes(n_bytes - 12))], compressed=True)


def test_a_header_that_unpacks_to_gigabytes_takes_little_memory(folder):
    """A stream of zeros is unpacked as far as a header may reach, and no further."""
    Path("x.npz").write_bytes(bomb(1 << 26))
    read = []
    unpack = zlib.decompressobj

    class Counted:
        def __init__(self, *arguments):
            self.inner = unpack(*arguments)

        def decompress(self, data, *limit):
            found = self.inner.decompress(data, *limit)
            read.append(len(found))
            return found

        def __getattr__(self, name):
            return getattr(self.inner, name)

    tracemalloc.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("zipfile.zlib.decompressobj", Counted)
            with pytest.raises(isotropy.errors.IsotropyError, match="header that is damaged"):
                isotropy.open("x.npz")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(read) < 1 << 16
    assert peak < 1 << 22


LIMITED = """
import json, resource, sys
import isotropy
from isotropy.errors import IsotropyError
import isotropy.sources.word2vec, isotropy.sources.columnar
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29), used + (1 << 29)))
resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
found = {}
for path in sys.argv[1:]:
    try:
        isotropy.measure(path)
    except IsotropyError as error:
        found[path] = str(error)
print(json.dumps(found))
"""
CLAIMS = {
    "columns.vec": (made.words("12 99999999999"), "promises 99999999999"),
    "columns of one row.vec": (made.words("1 99999999999", X[:1]), "promises 99999999999"),
    "columns.bin": (made.binary_words("12 99999999999"), "cannot hold 12 rows of 99999999999"),
    "rows.bin": (made.binary_words("99999999999 4"), "cannot hold 99999999999 rows"),
    "rows.vec": (made.words("99999999999 4"), "has 12 rows, and its header promises 99999999999"),
    "digits.vec": (made.words("9" * 9000 + " 4"), "no file has as many rows"),
    "blank.vec": (b"5 99999999999\n" + b"\n" * (1 << 21), "has no numbers in its first row"),
    "rows.npy": (npy(f"({2**61}, 4)"), "is truncated"),
    "rows.safetensors": (safetensors({"e": tensor(shape=(2**61, 4))}), "does not fit its shape"),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each claim leads to in a process that has half a gigabyte to spare."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("limits memory as on Linux")
    folder = tmp_path_factory.mktemp("claims")
    for name, (data, _) in CLAIMS.items():
        (folder / name).write_bytes(data)
    command = [sys.executable, "-c", LIMITED, *CLAIMS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", CLAIMS)
def test_claims_cost_no_memory(told, case):
    one_clear_line(told[case], CLAIMS[case][1])
