"""Static matrices with their vocabulary, and vectors that are looked up by key."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import isotropy
from isotropy.errors import InputError
from isotropy.models.keyed import KeyedVectors, Words, embeddings
from isotropy.models.texts import Span
from isotropy.tasks import WordSimilarity

from .. import tiny_models

WORDS = ["sun", "moon", "New York", "tax"]
PUBLISHED = {  # inner product and cosine; PAPERS.md: mean of five sets, Pearson times 100
    "distilbert-base-cased": [(43.5, 54.0), (52.3, 54.9), (60.6, 61.6), (67.1, 67.3)],
    "smollm2-135m": [(28.8, 37.3), (25.5, 36.7), (39.2, 48.9), (58.7, 60.3)],
}
REPAIRS = (None, isotropy.Center(), isotropy.ScaledCenter(), isotropy.AllButTheTop())


@pytest.fixture
def vectors():
    return np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("transformers")
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def bert(folder):
    return tiny_models.bert(folder / "bert")


@pytest.fixture(scope="module")
def llama(folder):
    return tiny_models.llama(folder / "llama")


def plain_weight(path, kind, which):
    model = getattr(pytest.importorskip("transformers"), kind).from_pretrained(path)
    layer = getattr(model, f"get_{which}_embeddings")()
    return layer.weight.detach().numpy()


def test_the_input_matrix_is_whole_with_its_vocabulary(bert):
    found = embeddings(bert)
    np.testing.assert_array_equal(found.vectors, plain_weight(bert, "AutoModel", "input"))
    assert found.tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert found.vectors.shape == (found.n_samples, found.n_features) == (32, 16)
    assert len(found.tokens) == 32


def test_words_are_those_that_stay_one_ordinary_token(bert):
    found = embeddings(bert)
    assert "cat" in found
    assert "Cat" in found.words  # the tokenizer lower-cases
    for other in ("played", "[CLS]", "[MASK]", "[unused3]", "zebra", "the cat", "", " cat", 7):
        assert other not in found
    assert found.words["sun"] == found.tokens.index("sun")
    assert {"cat", "sun", "york", ","} <= set(found.words)
    assert "##ing" not in set(found.words)
    assert len(found.words) == len(set(found.words))


def test_the_tokenizer_is_asked_for_the_rows_of_all_words_at_once(bert, monkeypatch):
    words = embeddings(bert).words
    expected, asked, rows = {word: words[word] for word in words}, [], Words.rows
    monkeypatch.setattr(Words, "rows", lambda self, some: asked.append(some) or rows(self, some))
    assert dict(embeddings(bert).words.items()) == expected
    assert len(asked) == 1


def test_words_of_byte_level_vocabularies_are_those_after_a_space(llama):
    found = embeddings(llama)
    assert found.tokens[found.words["cat"]] == "Ġcat"
    letters = [token[1] for token in found.tokens if token[:1] == "Ġ" and len(token) == 2]
    assert letters
    for letter in letters:  # rather than the letter by itself
        assert found.tokens[found.words[letter]] == f"Ġ{letter}"
    assert found.tokens[found.words["z"]] == "z"  # of which there is no other
    assert "<end>" not in found
    assert found.tokens[-1] == ""  # the matrix has more rows than the tokenizer tokens


def test_encode_looks_words_up_and_names_those_it_does_not_have(bert):
    found = embeddings(bert)
    rows = found.encode(["sun", "cat", "sun"])
    expected = found.vectors[[found.tokens.index(word) for word in ("sun", "cat", "sun")]]
    np.testing.assert_array_equal(rows, expected)
    with pytest.raises(InputError, match="2 that are not: 'played', 'zebra'"):
        found.encode(["sun", "played", "zebra"])


def test_output_embeddings_tied_and_not(bert, llama, folder):
    tied = embeddings(llama, "output")
    np.testing.assert_array_equal(tied.vectors, embeddings(llama).vectors)
    masked = plain_weight(bert, "BertForMaskedLM", "output")
    np.testing.assert_array_equal(embeddings(bert, which="output").vectors, masked)
    untied = tiny_models.llama(folder / "untied", tied=False)
    found = embeddings(untied, "output").vectors
    np.testing.assert_array_equal(found, plain_weight(untied, "LlamaForCausalLM", "output"))
    assert not np.array_equal(found, embeddings(untied).vectors)
    t5 = tiny_models.t5(folder / "t5")
    found = embeddings(t5, "output").vectors
    np.testing.assert_array_equal(found, plain_weight(t5, "T5ForConditionalGeneration", "output"))


def test_a_model_without_output_embeddings_gives_one_line(folder):
    path = tiny_models.headless(folder / "headless")
    with pytest.raises(InputError, match=r"saved without output embeddings\. Use which='input'"):
        embeddings(path, "output")
    assert embeddings(path).n_samples == 32


def test_what_is_no_model_gives_one_line(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(InputError, match=r"embeddings: the folder .* holds no model"):
        embeddings(tmp_path)
    with pytest.raises(InputError, match="which must be one of 'input', 'output', got 'both'"):
        embeddings(tmp_path, "both")


def test_measure_and_fit_take_embeddings(bert):
    found = embeddings(bert)
    measured = isotropy.measure(found)
    assert measured.isoscore == isotropy.measure(found.vectors).isoscore
    repair = isotropy.AllButTheTop(1).fit(found)
    np.testing.assert_array_equal(
        repair.transform(found.vectors), found.with_repair(repair).vectors
    )
    np.testing.assert_array_equal(
        found.with_repair(repair).encode(["sun"]), repair.transform(found.encode(["sun"]))
    )


def test_embeddings_pickle(bert):
    copy = pickle.loads(pickle.dumps(embeddings(bert)))
    np.testing.assert_array_equal(copy.encode(["sun"]), embeddings(bert).encode(["sun"]))


def test_keyed_vectors_look_rows_up(vectors):
    span = Span("the tax", 4, 7)
    found = KeyedVectors(vectors, [*WORDS[:3], span])
    np.testing.assert_array_equal(found.encode([span, "sun"]), vectors[[3, 0]])
    assert span in found
    assert "tax" not in found
    np.testing.assert_array_equal(
        KeyedVectors(vectors, ["a", "b", "a", "c"]).encode(["a"]), vectors[:1]
    )
    with pytest.raises(InputError, match="keys must be as many as the 4 vectors, got 2"):
        KeyedVectors(vectors, ["a", "b"])
    with pytest.raises(InputError, match="1 that are not: 'tax'"):
        found.encode(["sun", "tax"])


def parquet(folder, vectors):
    table = pa.table({"n": [1, 2, 3, 4], "sentence": WORDS, "embedding": list(vectors)})
    pq.write_table(table, folder / "x.parquet")
    return folder / "x.parquet"


def parquet_with_its_own_name(folder, vectors):
    pq.write_table(pa.table({"title": WORDS, "embedding": list(vectors)}), folder / "x.parquet")
    return folder / "x.parquet"


def jsonl(folder, vectors):
    import json

    lines = [{"text": w, "vector": v} for w, v in zip(WORDS, vectors.tolist(), strict=True)]
    (folder / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder / "x.jsonl"


def word2vec(folder, vectors):
    lines = [f"{w} {' '.join(map(repr, v))}" for w, v in zip(WORDS, vectors.tolist(), strict=True)]
    (folder / "x.vec").write_text("4 6\n" + "\n".join(lines) + "\n")
    return folder / "x.vec"


def words_beside_npy(folder, vectors):
    np.save(folder / "vectors.npy", vectors)
    (folder / "words.txt").write_text("\n".join(WORDS) + "\n")
    return folder


@pytest.mark.parametrize(
    "write",
    [parquet, parquet_with_its_own_name, jsonl, word2vec, words_beside_npy],
    ids=lambda function: function.__name__,
)
def test_keyed_vectors_are_loaded_from_files(write, vectors, tmp_path):
    found = KeyedVectors.load(write(tmp_path, vectors))
    np.testing.assert_allclose(found.encode(WORDS[::-1]), vectors[::-1], rtol=1e-6)


def test_the_column_of_keys_is_chosen_or_asked_for(vectors, tmp_path):
    columns = {"query": WORDS, "answer": WORDS[::-1], "embedding": list(vectors)}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="must have the column word or text, got query, answer"):
        KeyedVectors.load(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="must have the column title, got query, answer"):
        KeyedVectors.load(tmp_path / "x.parquet", key="title")
    found = KeyedVectors.load(tmp_path / "x.parquet", key="answer")
    np.testing.assert_allclose(found.encode(["tax"]), vectors[:1], rtol=1e-6)
    np.save(tmp_path / "x.npy", vectors)
    with pytest.raises(InputError, match="got vectors only"):
        KeyedVectors.load(tmp_path / "x.npy")


def test_folders_of_words_and_vectors_that_are_damaged_give_one_line(vectors, tmp_path):
    np.save(tmp_path / "vectors.npy", vectors)
    (tmp_path / "words.txt").write_text("\n".join(WORDS))
    np.testing.assert_array_equal(KeyedVectors.load(tmp_path).vectors, vectors)
    (tmp_path / "words.txt").write_bytes(b"sun\ncaf\xe9\nmoon\ntax\n")
    with pytest.raises(InputError, match=r"words\.txt' must be UTF-8, got other bytes in line 2"):
        KeyedVectors.load(tmp_path)
    (tmp_path / "words.txt").write_text("\n".join(WORDS))
    whole = (tmp_path / "vectors.npy").read_bytes()
    for damaged in (whole[:-5], whole[:20], b"", b"no array"):
        (tmp_path / "vectors.npy").write_bytes(damaged)
        with pytest.raises(InputError, match=r"^KeyedVectors: .*vectors\.npy") as caught:
            KeyedVectors.load(tmp_path)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.data
@pytest.mark.parametrize("model", PUBLISHED)
def test_word_similarity_is_that_of_the_prototype(model, models, data):
    pytest.importorskip("transformers")
    if not (models / model).is_dir():
        pytest.skip(f"{model} is not in {models}")
    matrix = embeddings(models / model)
    task = WordSimilarity.read(data / "wordsim").known(matrix.words)
    for repair, expected in zip(REPAIRS, PUBLISHED[model], strict=True):
        repaired = matrix if repair is None else matrix.with_repair(repair.fit(matrix))
        rows = repaired.encode(task.texts)
        for similarity, score in zip(("dot", "cosine"), expected, strict=True):
            task.similarity = similarity
            found = 100 * task.score(rows, np.arange(task.n_items)).value
            assert found == pytest.approx(score, abs=0.2), (repair, similarity)
