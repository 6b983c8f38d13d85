"""The cache: the same rows as without it, no text run twice, and damage that costs time only."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

import isotropy
from isotropy.errors import InputError, IsotropyWarning
from isotropy.models import texts as texts_module
from isotropy.models.cache import Cache
from isotropy.models.encoder import Encoder
from isotropy.models.models import Encoding, Model
from isotropy.models.texts import Span

from .. import tiny_models
from ..tiny_models import TEXTS

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return tiny_models.bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture
def runs(monkeypatch):
    """Numbers of texts of each batch that a model was run on."""
    found = []
    hidden = Model.hidden

    def counted(self, encodings, layers):
        found.append(len(encodings))
        return hidden(self, encodings, layers)

    monkeypatch.setattr(Model, "hidden", counted)
    return found


def shards(folder, suffix):
    return sorted(folder.rglob(f"*{suffix}"))


@pytest.mark.parametrize("pool", ["tokens", "mean", "cls", "last"])
def test_rows_are_those_without_a_cache(pool, bert, tmp_path, rows):
    texts = [*TEXTS, Span(TEXTS[0], 4, 7)]
    expected = Encoder(bert, pool=pool).encode(texts)
    for _ in range(2):
        cached = Encoder(bert, pool=pool, cache=tmp_path)
        np.testing.assert_allclose(cached.encode(texts), expected, rtol=0, atol=1e-6)
        np.testing.assert_allclose(rows(cached.source(texts)), expected, rtol=0, atol=1e-6)


def test_no_text_is_run_twice(bert, tmp_path, runs):
    encoder = Encoder(bert, pool="mean", cache=tmp_path)
    encoder.encode([*TEXTS, *TEXTS])
    assert sum(runs) == len(TEXTS)
    for settings in ({"pool": "mean"}, {"pool": "cls"}, {"pool": "tokens", "special_tokens": True}):
        again = Encoder(bert, cache=tmp_path, **settings)
        again.encode(TEXTS)
    again.encode([Span(TEXTS[0], 4, 7)])
    assert sum(runs) == len(TEXTS)
    again.encode([*TEXTS, "a new cat"])
    assert sum(runs) == len(TEXTS) + 1


def test_other_models_and_settings_do_not_share_rows(bert, tmp_path, runs):
    for settings in ({}, {"layer": 1}, {"layer": "first-last"}, {"max_length": 20}):
        Encoder(bert, cache=tmp_path, **settings).encode(TEXTS[:1])
    other = tiny_models.bert(tmp_path / "other", seed=1)
    found = Encoder(other, pool="tokens", cache=tmp_path).encode(TEXTS[:1])
    assert sum(runs) == 5
    np.testing.assert_array_equal(found, Encoder(other, pool="tokens").encode(TEXTS[:1]))


def test_cut_texts_are_counted_from_the_cache_too(bert, tmp_path):
    for _ in range(2):
        encoder = Encoder(bert, pool="mean", max_length=6, cache=tmp_path)
        with pytest.warns(IsotropyWarning, match="2 of 3 texts were longer than 6 tokens"):
            encoder.encode(["the cat sat on the mat", "dog", "the dog sat on the mat"])


def test_repairs_are_not_kept(bert, tmp_path):
    plain = Encoder(bert, pool="mean")
    repair = isotropy.ClusterRemoval(2, 1).fit(Encoder(bert, pool="tokens").encode(TEXTS))
    cached = Encoder(bert, pool="mean", cache=tmp_path)
    expected = plain.with_repair(repair).encode(TEXTS)
    np.testing.assert_allclose(cached.with_repair(repair).encode(TEXTS), expected, atol=1e-6)
    np.testing.assert_allclose(cached.encode(TEXTS), plain.encode(TEXTS), atol=1e-6)


def lost_index(folder):
    shards(folder, ".npz")[0].unlink()


def half_an_index(folder):
    path = shards(folder, ".npz")[0]
    path.write_bytes(path.read_bytes()[:100])


def lost_rows(folder):
    shards(folder, ".npy")[0].unlink()


def half_the_rows(folder):
    path = shards(folder, ".npy")[0]
    path.write_bytes(path.read_bytes()[:200])


def empty_rows(folder):
    shards(folder, ".npy")[0].write_bytes(b"")


def rows_of_others(folder):
    np.save(shards(folder, ".npy")[0], np.zeros((3, 16), np.float32))


@pytest.mark.parametrize(
    "damage",
    [lost_index, half_an_index, lost_rows, half_the_rows, empty_rows, rows_of_others],
    ids=lambda function: function.__name__,
)
def test_a_damaged_shard_is_as_good_as_none(damage, bert, tmp_path, runs, monkeypatch):
    monkeypatch.setattr(texts_module, "BLOCK_SIZE", 60)  # several shards
    expected = Encoder(bert, pool="mean").encode(TEXTS)
    Encoder(bert, pool="mean", cache=tmp_path).encode(TEXTS)
    assert len(shards(tmp_path, ".npz")) > 1
    damage(tmp_path)
    runs.clear()
    found = Encoder(bert, pool="mean", cache=tmp_path).encode(TEXTS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert 0 < sum(runs) < len(TEXTS)
    runs.clear()
    Encoder(bert, pool="mean", cache=tmp_path).encode(TEXTS)
    assert not runs


def test_a_crash_between_the_two_files_leaves_a_cache_that_works(bert, tmp_path, monkeypatch):
    encoder = Encoder(bert, pool="mean", cache=tmp_path)
    replace = os.replace

    def killed(source, target):
        if str(target).endswith(".npz"):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        encoder.encode(TEXTS)
    monkeypatch.setattr(os, "replace", replace)
    assert len(shards(tmp_path, ".npy")) == 1
    assert not shards(tmp_path, ".npz")
    found = Encoder(bert, pool="mean", cache=tmp_path).encode(TEXTS)
    np.testing.assert_allclose(found, Encoder(bert, pool="mean").encode(TEXTS), atol=1e-6)
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert not [name for name in names if name.startswith(".")]


def test_a_cache_pickles_as_its_folder(tmp_path):
    cache = Cache(tmp_path, {"model": "x"})
    encoding = Encoding([5, 6], np.array([True, False]), np.array([[0, 0], [0, 3]]), True)
    cache.add(["cat"], [encoding], [np.ones((2, 4), np.float32)])
    assert len(pickle.dumps(cache)) < 500
    copy = pickle.loads(pickle.dumps(cache))
    found, rows = copy.get("cat")
    assert (found.ids, found.truncated, rows.tolist()) == ([5, 6], True, [[1.0] * 4] * 2)
    np.testing.assert_array_equal(found.offsets, encoding.offsets)
    assert copy.missing(["cat", "dog", "dog"]) == ["dog"]


def one_token(number):
    encoding = Encoding([number], np.array([False]), np.array([[0, 1]]))
    return [str(number)], [encoding], [np.full((1, 4), number, np.float32)]


def test_more_shards_than_a_process_may_open_files(tmp_path):
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir("/dev/fd")))
    free = [number for number in range(len(used) + 40) if number not in used]
    cache = Cache(tmp_path, {"model": "x"})
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[39], hard))
    try:
        for number in range(60):
            cache.add(*one_token(number))
        kept = [cache.get(str(number))[1] for number in range(60)]
        assert not Cache(tmp_path, {"model": "x"}).missing([str(number) for number in range(60)])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    np.testing.assert_array_equal(np.concatenate(kept)[:, 0], np.arange(60))


def test_a_shard_that_does_not_open_again_gives_one_line(tmp_path, monkeypatch):
    cache = Cache(tmp_path, {"model": "x"})
    cache.add(*one_token(1))

    def fails(*_, **__):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(np, "load", fails)
    with pytest.raises(InputError, match=r"must keep what is written to it, .* not open again"):
        cache.add(*one_token(2))
    with pytest.raises(InputError, match=r"must keep what is written to it, .* not open again"):
        cache.get("1")


def test_cached_texts_of_several_batches_keep_their_order(bert, tmp_path, monkeypatch):
    monkeypatch.setattr("isotropy.models.encoder.CACHE_BATCH", 2)
    found = Encoder(bert, pool="mean", cache=tmp_path).encode(TEXTS)
    np.testing.assert_allclose(found, Encoder(bert, pool="mean").encode(TEXTS), atol=1e-6)


def test_a_folder_that_cannot_be_written_gives_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="must be a folder that can be written"):
        Cache(tmp_path / "file", {})
