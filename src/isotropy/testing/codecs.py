"""check_codec: what every codec promises."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from isotropy.codecs import Codec, load
from isotropy.errors import InputError, IsotropyWarning
from isotropy.sources import ArraySource
from isotropy.testing.common import expect, expect_close, expect_equal, expect_refused, run
from isotropy.testing.repairs import awkward

Rows = np.ndarray[Any, np.dtype[np.float32]]


def check_codec(codec: Codec, expected_failed_checks: Mapping[str, str] | None = None) -> None:
    """Check a codec: round trip, search, streams, files, tensors, bad input.

    Parameters
    ----------
    codec : Codec
        Not fitted, for rows of 24 dimensions; it is cloned.
    expected_failed_checks : mapping of str to str, optional
        Checks to leave out, each with the reason.

    Raises
    ------
    AssertionError
        If a check fails; the message begins with its name.

    Examples
    --------
    >>> import isotropy
    >>> check_codec(isotropy.codecs.Binary(repair=isotropy.Center()))
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IsotropyWarning)
        run(CODEC_CHECKS, dict(expected_failed_checks or {}), codec)


def rows(n_rows: int = 600) -> Rows:
    """Correlated rows with a mean of their own."""
    random = np.random.default_rng(0)
    mixed = random.standard_normal((600, 24)) @ (np.eye(24) + random.uniform(-0.2, 0.2, (24, 24)))
    return (mixed[:n_rows] + 1).astype(np.float32)


def fitted(codec: Codec, X: Any = None) -> Codec:
    """A clone that was fitted on these rows."""
    found: Codec = clone(codec).fit(rows() if X is None else X)
    return found


def expect_alike(codec: Codec, found: Any, wanted: Any) -> None:
    """Raise AssertionError unless two sets of codes are scored alike, rounding aside."""
    expect(found.shape == wanted.shape, f"codes have shape {found.shape}, not {wanted.shape}")
    scores = [codec.scores(rows(50), codes) for codes in (found, wanted)]
    apart = float(np.abs(scores[0] - scores[1]).mean())
    expect(apart < 1e-3, f"scores of the same rows are {apart:.2g} apart")


@contextmanager
def _file(name: str = "codec.safetensors") -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / name


def check_fit_and_encode_leave_the_rows_as_they_were(codec: Codec) -> None:
    X = rows()
    fitted(codec, X).encode(X)
    expect_equal(X, rows(), "the rows")


def check_the_same_fit_gives_the_same_codes(codec: Codec) -> None:
    X = rows()
    expect_equal(fitted(codec).encode(X), fitted(codec).encode(X), "codes")


def check_sizes_are_those_of_the_codes(codec: Codec) -> None:
    found = fitted(codec)
    codes = found.encode(rows())
    expect(codes.dtype == found.dtype, f"codes are {codes.dtype}, not {found.dtype}")
    expect(codes.shape == (600, found.n_columns), f"codes have shape {codes.shape}")
    expect(codes.nbytes == 600 * found.n_bytes_stored, f"n_bytes_stored is {found.n_bytes_stored}")
    expect(found.n_bytes <= found.n_bytes_stored, f"n_bytes is {found.n_bytes}")


def check_decoded_rows_point_where_the_rows_do(codec: Codec) -> None:
    X, found = rows(), fitted(codec)
    if not found.decodes:
        expect_refused(partial(found.decode, found.encode(X)), "Use search or scores")
        return
    decoded, asked = found.decode(found.encode(X)), found.queries(X)
    expect(decoded.dtype == asked.dtype == np.float32, "rows must be float32")
    expect(decoded.shape == asked.shape, f"decode gives {decoded.shape}, queries {asked.shape}")
    for part, what in ((decoded, "decoded rows"), (asked, "queries")):
        expect_close(np.linalg.norm(part, axis=1), np.ones(600), 1e-5, f"the length of {what}")
    cosines = asked @ decoded.T
    own, others = np.diag(cosines).mean(), cosines.mean()
    expect(own > 0.5 + others / 2, f"a row's cosine with its code is {own}, others' {others}")


def check_parts_are_encoded_like_the_whole(codec: Codec) -> None:
    X, found = rows(), fitted(codec)
    parts = [found.encode(part) for part in np.array_split(X, 7)]
    expect_alike(found, np.concatenate(parts), found.encode(X))


def check_streams_give_the_same_codes(codec: Codec) -> None:
    X = rows()
    wanted = fitted(codec).encode(X)
    streamed = clone(codec).fit(ArraySource(X, chunk_rows=70))
    with _file("codes.npy") as path:
        mapped = streamed.encode(ArraySource(X, chunk_rows=70), out=path)
        expect_alike(streamed, np.asarray(mapped), wanted)
        expect(mapped.dtype == wanted.dtype, f"streamed codes are {mapped.dtype}")
        expect_refused(partial(streamed.encode, X, out=path), "exists. Pass overwrite=True")


def check_save_then_load_gives_the_same_codes(codec: Codec) -> None:
    X, found = rows(), fitted(codec)
    codes = found.encode(X)
    with _file() as path:
        found.save(path, note="some text")
        loaded: Any = load(path)
    expect(type(loaded) is type(found), f"load gives {type(loaded).__name__}")
    expect(str(loaded.get_params()) == str(found.get_params()), "parameters must be kept")
    expect(loaded.note_ == "some text", "the note must be kept")
    expect(loaded.n_samples_seen_ == 600, f"n_samples_seen_ is {loaded.n_samples_seen_}")
    expect_equal(loaded.encode(X), codes, "codes of the loaded codec")
    expect_equal(loaded.scores(X, codes), found.scores(X, codes), "scores of the loaded codec")
    for mine, theirs in zip(loaded.search(X, codes, 5), found.search(X, codes, 5), strict=True):
        expect_equal(mine, theirs, "what the loaded codec finds")


def check_damaged_files_are_refused(codec: Codec) -> None:
    with _file() as path:
        fitted(codec).save(path)
        data = bytearray(path.read_bytes())
        for at, message in ((-1, "damaged"), (len(data) // 2, "damaged"), (9, "damaged")):
            broken = data.copy()
            broken[at] ^= 1
            path.write_bytes(broken)
            expect_refused(partial(load, path), message)
        path.write_bytes(data[:-3])
        expect_refused(partial(load, path), "damaged")


def check_search_equals_brute_force(codec: Codec) -> None:
    X, found = rows(), fitted(codec)
    codes, Q = found.encode(X), X[::5] + np.float32(0.1)
    everything = found.scores(Q, codes)
    scores, indices = found.search(Q, codes, 7)
    order = np.argsort(-everything, axis=1, kind="stable")[:, :7]
    wanted = np.take_along_axis(everything, order, axis=1)
    expect_close(scores, wanted, 1e-5, "the best scores")
    expect_close(np.take_along_axis(everything, indices, axis=1), wanted, 1e-5, "what was found")
    expect(all(len(set(row)) == 7 for row in indices.tolist()), "no code may be found twice")
    expect(indices.dtype == np.int64 and scores.dtype == np.float32, "indices or scores' dtype")


def check_scores_are_products_of_queries_and_decoded_rows(codec: Codec) -> None:
    X, found = rows(), fitted(codec)
    if not found.decodes:
        return
    codes, Q = found.encode(X), X[::5]
    wanted = found.queries(Q).astype(np.float64) @ found.decode(codes).astype(np.float64).T
    expect_close(found.scores(Q, codes), wanted, 1e-5, "scores")


def check_ties_go_to_the_lower_index(codec: Codec) -> None:
    X, found = rows(), fitted(codec)
    codes = np.tile(found.encode(X[:3]), (4, 1))
    order = np.argsort(-found.scores(X[:3], codes), axis=1, kind="stable")
    expect_equal(found.search(X[:3], codes, 5)[1], order[:, :5], "indices of equal codes")


def check_tensors_stay_tensors(codec: Codec) -> None:
    if find_spec("torch") is None:
        return
    import torch

    X, found = rows(), fitted(codec)
    tensor = torch.from_numpy(X)
    codes = found.encode(tensor)
    for name, mine, wanted in (
        ("codes", codes, found.encode(X)),
        ("queries", found.queries(tensor), found.queries(X)),
        ("indices", found.search(tensor, codes, 3)[1], found.search(X, found.encode(X), 3)[1]),
    ):
        expect(isinstance(mine, torch.Tensor), f"{name} of tensors are {type(mine).__name__}")
        expect_equal(mine.numpy(), wanted, f"{name} of tensors")


def check_bad_input_is_refused_in_one_line(codec: Codec) -> None:
    X, found = rows(), fitted(codec)
    codes, owner = found.encode(X), type(codec).__name__
    bad = X.copy()
    bad[[17, 30], 2] = np.nan
    for call in (clone(codec).fit, found.encode, found.queries):
        expect_refused(partial(call, bad), r"^\w+: .* in 2 rows \(first: 17\b")
    message = f"X has 5 features, but {owner} is expecting 24 features"
    expect_refused(partial(found.encode, X[:, :5]), message)
    expect_refused(partial(found.search, X[:, :5], codes), message)
    for call in (found.decode, partial(found.search, X)):
        expect_refused(partial(call, codes[:, 1:]), f"^{owner}: codes must have rows of")
    other = np.uint8 if codes.dtype == np.int8 else np.int8
    expect_refused(partial(found.decode, codes.astype(other)), f"^{owner}: codes must be")
    expect_refused(partial(found.search, X, codes, 601), f"^{owner}: k must be")
    expect_refused(partial(clone(codec).encode, X), "not fitted yet")
    if "n_dims" in codec.get_params():
        wide = clone(codec).set_params(n_dims=25)
        expect_refused(partial(wide.fit, X), f"^{owner}: n_dims must be")


def check_awkward_rows_have_finite_scores(codec: Codec) -> None:
    for name, wide in awkward().items():
        X = np.tile(wide, 24)[:, :24].astype(np.float32)
        try:
            found = fitted(codec, X)
        except InputError as error:
            expect("Give more rows" in str(error), f"rows that are {name}: {error}")
            continue
        finite = np.isfinite(found.scores(X, found.encode(X))).all()
        expect(finite, f"rows that are {name} must have finite scores")


CODEC_CHECKS = [
    check_fit_and_encode_leave_the_rows_as_they_were,
    check_the_same_fit_gives_the_same_codes,
    check_sizes_are_those_of_the_codes,
    check_decoded_rows_point_where_the_rows_do,
    check_parts_are_encoded_like_the_whole,
    check_streams_give_the_same_codes,
    check_save_then_load_gives_the_same_codes,
    check_damaged_files_are_refused,
    check_search_equals_brute_force,
    check_scores_are_products_of_queries_and_decoded_rows,
    check_ties_go_to_the_lower_index,
    check_tensors_stay_tensors,
    check_bad_input_is_refused_in_one_line,
    check_awkward_rows_have_finite_scores,
]
