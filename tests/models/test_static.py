"""Static models against model2vec's formula and sentence-transformers' own encode."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

import isotropy
from isotropy.errors import InputError, IsotropyWarning
from isotropy.models.encoder import Encoder
from isotropy.models.keyed import embeddings
from isotropy.models.loading import pools_itself, static_folder
from isotropy.models.texts import Span

from .. import static_models, tiny_models
from ..static_models import TEXTS

pytest.importorskip("transformers")

N = static_models.N_TOKENS
CLOSE = {"rtol": 0, "atol": 1e-6}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return static_models.model2vec(tmp_path_factory.mktemp("static") / "plain")


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """With weights, and a mapping of all tokens to 500 rows."""
    random = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("static") / "full"
    table = random.standard_normal((500, 16)).astype(np.float16)
    return static_models.model2vec(
        folder,
        weights=random.random(N),
        mapping=random.integers(0, 500, N),
        embeddings=table,
    )


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("modules", [True, False])
def test_a_text_is_what_model2vec_makes_of_it(tmp_path, normalize, modules):
    folder = static_models.model2vec(tmp_path / "m", normalize=normalize, modules=modules)
    found = Encoder(folder, pool="own").encode(TEXTS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, static_models.formula(folder, TEXTS, normalize), **CLOSE)
    means = Encoder(folder, pool="mean").encode(TEXTS)
    np.testing.assert_allclose(means, static_models.formula(folder, TEXTS, False), **CLOSE)


def test_weights_and_mapping_are_followed(full):
    found = Encoder(full, pool="own").encode(TEXTS)
    np.testing.assert_allclose(found, static_models.formula(full, TEXTS, True), **CLOSE)


@pytest.mark.parametrize("normalize", [True, False])
def test_a_text_is_what_sentence_transformers_makes_of_it(tmp_path, normalize):
    folder = static_models.static_embedding(tmp_path / "m", normalize)
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(Encoder(folder, pool="own").encode(TEXTS), expected, **CLOSE)
    assert Encoder(folder, pool="own").max_length > 100_000


def test_sentence_transformers_reads_the_folders_these_tests_make(tmp_path):
    """So the fixtures are what they are taken for."""
    transformer = pytest.importorskip("sentence_transformers").SentenceTransformer
    random = np.random.default_rng(0)
    folder = static_models.model2vec(
        tmp_path / "m", weights=random.random(N).astype(np.float32), modules=True
    )
    known = TEXTS[:3]  # of tokens that are all known, as unknown ones count there
    expected = transformer(str(folder), device="cpu").encode(known)
    np.testing.assert_allclose(Encoder(folder, pool="own").encode(known), expected, **CLOSE)


def test_tokens_are_rows_with_their_labels(plain):
    encoder = Encoder(plain, pool="tokens")
    found = encoder.encode(["the cat"])
    labels = encoder.labels(["the cat"])
    table = encoder.model.table
    np.testing.assert_array_equal(found, table[labels["token_id"].to_pylist()])
    assert "".join(labels["token"].to_pylist()).replace("▁", " ").strip() == "the cat"
    assert encoder.source(["the cat", "a dog"]).n_samples == len(
        encoder.encode(["the cat", "a dog"])
    )


def test_a_word_in_its_sentence_has_the_rows_of_its_tokens(plain):
    encoder = Encoder(plain, pool="mean")
    alone = encoder.encode(["the moon"]), encoder.encode(["the"])
    assert not np.allclose(*alone)
    found = encoder.encode([Span("the moon", 0, 3)])
    np.testing.assert_allclose(found, alone[1], atol=1e-6)


def test_a_text_without_known_tokens_is_a_zero_row_and_said_once(tmp_path):
    folder = static_models.model2vec(tmp_path / "m")
    settings = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    settings["model"]["byte_fallback"], settings["normalizer"] = False, None
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    encoder = Encoder(folder, pool="own")
    with pytest.warns(IsotropyWarning, match="get a vector of zeros, such as '漢'") as caught:
        found = encoder.encode(["漢", "the cat", "字"])
    assert len(caught) == 1
    assert (np.linalg.norm(found, axis=1).round(5) == [0, 1, 0]).all()
    tokens = Encoder(folder, pool="tokens")
    with pytest.warns(IsotropyWarning):
        assert tokens.labels(["漢"])["token"].to_pylist() == [None]


def test_long_texts_are_cut_where_model2vec_cuts_them(plain):
    long = "the cat " * 600
    encoder = Encoder(plain, pool="own")
    assert encoder.max_length == 512
    with pytest.warns(IsotropyWarning, match="1 of 2 texts were longer than 512 tokens"):
        found = encoder.encode([long, "the"])
    expected = static_models.formula(plain, [long, "the"], True)
    np.testing.assert_allclose(found, expected, **CLOSE)
    short = Encoder(plain, pool="mean", max_length=4).encode(["the cat"])
    assert short.shape == (1, 16)


def test_it_is_pickled_cached_and_told_apart(plain, full, tmp_path):
    encoder = Encoder(plain, pool="own", cache=tmp_path / "cache")
    first = encoder.encode(TEXTS)
    np.testing.assert_array_equal(
        Encoder(plain, pool="own", cache=tmp_path / "cache").encode(TEXTS), first
    )
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(encoder)).encode(TEXTS), first)
    assert encoder.identity()["model"] != Encoder(full).identity()["model"]


def test_measure_reads_the_table(plain, tmp_path):
    table = Encoder(plain).model.table
    for folder in (plain, static_models.static_embedding(tmp_path / "m")):
        source = isotropy.open(folder)
        assert (source.n_samples, source.n_features) == table.shape
        found = isotropy.measure(folder, ["mean_cosine"]).mean_cosine
        assert found == pytest.approx(isotropy.measure(table, ["mean_cosine"]).mean_cosine)


def test_words_are_looked_up_in_the_table(full):
    found = embeddings(full)
    model = Encoder(full).model
    assert found.vectors.shape == (N, 16)
    row = found.words["the"]
    np.testing.assert_allclose(found.encode(["the"])[0], model.vectors(np.array([row]))[0])
    with pytest.raises(InputError, match="saved without output embeddings"):
        embeddings(full, "output")


def test_other_models_are_none(tmp_path, plain):
    assert static_folder(tiny_models.bert(tmp_path / "bert")) is None
    assert static_folder(tmp_path / "nothing") is None
    assert static_folder(plain) == plain
    assert pools_itself(plain)
    (tmp_path / "bert" / "modules.json").write_text(
        json.dumps([{"path": "../..", "type": "sentence_transformers.models.StaticEmbedding"}])
    )
    assert static_folder(tmp_path / "bert") is None


def test_a_static_model_on_the_hub_is_fetched(plain, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    asked = []

    def download(name, file):
        asked.append((name, file))
        if not (plain / file).is_file():
            raise FileNotFoundError(file)
        return str(plain / file)

    monkeypatch.setattr(hub, "hf_hub_download", download)
    monkeypatch.setattr(hub, "snapshot_download", lambda name, **_: str(plain))
    found = Encoder("someone/potion", pool="own").encode(TEXTS)
    np.testing.assert_array_equal(found, Encoder(plain, pool="own").encode(TEXTS))
    assert asked[:2] == [("someone/potion", "modules.json"), ("someone/potion", "config.json")]
    assert static_folder("someone/potion") == plain


def test_open_gives_the_vectors_that_texts_are_means_of(full, plain):
    from isotropy.models.static import StaticModel

    expected = StaticModel(str(full), full).vectors()
    source = isotropy.open(full)
    (chunk,) = source.chunks()
    assert np.array_equal(np.concatenate([b.rows for b in source.read(chunk)]), expected)
    assert isotropy.open(full, column="embeddings").n_samples == 500
    assert isotropy.open(plain).n_samples == N
