"""How the fitted rows were made: recorded by `fit`, kept in the file, compared when applied."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import isotropy
from isotropy.errors import RepairFileError
from isotropy.repairs import Origin, origin_warning
from isotropy.stored import checksum

from .. import tiny_models

FULL = Origin("minilm", "abc", 6, "own", "query: ", True, 8, "f00d", "sts from 1 to 2")


@pytest.fixture
def X():
    return np.random.default_rng(0).standard_normal((100, 8))


def rewritten(path, origin):
    with safe_open(str(path), framework="numpy") as file:
        header = json.loads(file.metadata()["isotropy.repair"])
    tensors = load_file(path)
    del header["checksum"], header["origin"]
    if origin is not None:
        header["origin"] = origin
    header["checksum"] = checksum(header, tensors)
    save_file(tensors, path, metadata={"isotropy.repair": json.dumps(header)})


def test_rows_of_an_array_have_no_origin(X):
    assert isotropy.Center().fit(X).origin_ == Origin()


def test_the_origin_is_kept_in_the_file(X, tmp_path):
    path = tmp_path / "repair"
    isotropy.Center().fit(X).save(path, origin=FULL)
    loaded = isotropy.load(path)
    assert loaded.origin_ == FULL
    loaded.save(path, overwrite=True)
    assert isotropy.load(path).origin_ == FULL


def test_older_files_have_an_empty_origin(X, tmp_path):
    path = tmp_path / "repair"
    isotropy.Center().fit(X).save(path, origin=FULL)
    rewritten(path, None)
    assert isotropy.load(path).origin_ == Origin()


@pytest.mark.parametrize(
    ("origin", "why"),
    [
        ("minilm", "an origin must be an object, got 'minilm'"),
        ({"modell": "minilm"}, "an origin must have only model, revision, .*, got 'modell'"),
        ({"model": 3}, "model of an origin must be text, got 3"),
        ({"dimension": True}, "dimension of an origin must be an integer, got True"),
        ({"layer": 1.5}, "layer of an origin must be an integer or text, got 1.5"),
        ({"normalised": 1}, "normalised of an origin must be true or false, got 1"),
        ({"prompt": "a" * 10_001}, "prompt of an origin must have at most 10,000 characters"),
    ],
)
def test_an_origin_that_is_none_is_refused(X, tmp_path, origin, why):
    path = tmp_path / "repair"
    isotropy.Center().fit(X).save(path)
    rewritten(path, origin)
    with pytest.raises(RepairFileError, match=why):
        isotropy.load(path)


def test_parts_of_one_origin_keep_what_they_share(X):
    one, other = isotropy.Center().fit(X), isotropy.Center().fit(X)
    one.origin_ = FULL
    other.origin_ = Origin(model="minilm", layer=5)
    assert one.merge(other).origin_ == Origin(model="minilm")
    one.origin_ = FULL
    assert one.partial_fit(X).origin_ == Origin()


def test_a_model_over_texts_is_the_origin(tmp_path):
    folder = tiny_models.bert(tmp_path / "bert")
    encoder = isotropy.Encoder(folder, layer=-2)
    repair = isotropy.Center().fit(encoder.source(tiny_models.TEXTS))
    found = repair.origin_
    assert (found.model, found.layer, found.pooling) == ("bert", 2, "mean")
    assert (found.prompt, found.normalised, found.dimension) == ("", False, 16)
    again = isotropy.Center().fit(encoder.source(tiny_models.TEXTS[:-1])).origin_
    assert again.fingerprint != found.fingerprint
    treated = encoder.with_repair(repair, "sentence").source(tiny_models.TEXTS)
    assert isotropy.Center().fit(treated).origin_ == Origin()


def test_special_tokens_are_part_of_the_pooling(tmp_path):
    folder = tiny_models.bert(tmp_path / "bert")
    assert isotropy.Encoder(folder, special_tokens=True).origin()["pooling"] == "mean+special"
    assert isotropy.Encoder(folder, pool="cls", special_tokens=True).origin()["pooling"] == "cls"


@pytest.mark.model
def test_a_model_that_normalises_is_told_from_one_that_does_not(models):
    pytest.importorskip("sentence_transformers")
    folder = models / "all-MiniLM-L6-v2"
    if not folder.exists():
        pytest.skip(f"{folder} is missing")
    own, mean = (isotropy.Encoder(folder, pool=pool).origin() for pool in ("own", "mean"))
    assert (own["pooling"], own["normalised"]) == ("own", True)
    assert (mean["pooling"], mean["normalised"]) == ("mean", False)


def test_only_what_both_know_is_compared():
    assert origin_warning(Origin(), FULL) is None
    assert origin_warning(FULL, Origin()) is None
    assert origin_warning(Origin(model="hub/minilm", fingerprint="0"), FULL) is None
    assert "model 'bert'" in origin_warning(Origin(model="bert"), FULL)
    assert "normalised False" in origin_warning(Origin(normalised=False), FULL)
    assert "prompt ''" in origin_warning(Origin(prompt=""), FULL)


def test_a_folder_is_recorded_without_its_path(tmp_path):
    pytest.importorskip("torch")
    folder = tmp_path / "home" / "tiny"
    tiny_models.bert(folder)
    encoder = isotropy.Encoder(folder, device="cpu")
    repair = isotropy.Center().fit(encoder.source(["a cat", "the dog", "a mat"]))
    assert repair.origin_.model == "tiny"
    older = Origin(model=str(folder))  # files of earlier versions have the path
    assert origin_warning(Origin.from_dict(encoder.origin()), older) is None
