"""Static models with a repaired table, as their own packages load them."""

import json
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from safetensors.numpy import load_file

import isotropy
from isotropy import export, repairs
from isotropy.errors import InputError

from ..static_models import TEXTS, formula, model2vec, small, static_embedding
from .common import CLOSE, REPAIRS, fitted, off, put
from .elsewhere import LIMIT, largest_difference, run_elsewhere
from .elsewhere import fitted as every_repair


def rows_of(folder):
    source = isotropy.open(folder)
    batches = [batch for chunk in source.chunks() for batch in source.read(chunk)]
    return np.concatenate([batch.rows for batch in batches])


@pytest.mark.parametrize("name", REPAIRS)
def test_every_repair_of_a_model2vec_table(name, tmp_path):
    base = model2vec(tmp_path / "base")
    table = small()[0]
    repair = fitted(name, table)
    export.static(base, repair, tmp_path / "out")
    tensors = load_file(tmp_path / "out/model.safetensors")
    assert list(tensors) == ["embeddings"]
    assert tensors["embeddings"].dtype == np.float32
    np.testing.assert_array_equal(tensors["embeddings"], repair.transform(table))
    for file in ("tokenizer.json", "config.json"):
        assert (tmp_path / "out" / file).read_bytes() == (base / file).read_bytes()
    assert "token vectors" in (tmp_path / "out/README.md").read_text()


TABLES = """
import numpy as np
from model2vec import StaticModel
for folder in sys.argv[1:]:
    np.save(folder + "/found.npy", StaticModel.from_pretrained(folder).embedding)
"""


@pytest.mark.parametrize("shift", [0.0, 10.0])
def test_tables_of_every_repair_where_isotropy_is_missing(shift, tmp_path):
    """One process loads them all; the rows are token vectors of wordllama."""
    pytest.importorskip("model2vec")
    table = small()[0] + np.float32(shift)
    base = model2vec(tmp_path / "base", embeddings=table)
    found = every_repair(table[:1000])
    if find_spec("torch"):
        found["flow"] = repairs.Flow(n_levels=1, n_steps=1).fit(table[:1000])
    for name, repair in found.items():
        export.static(base, repair, tmp_path / name)
    run_elsewhere(TABLES, *(tmp_path / name for name in found))
    for name, repair in found.items():
        rows = np.load(tmp_path / name / "found.npy")
        assert largest_difference(rows, repair, table) <= LIMIT, name


def test_weights_and_mapping_are_multiplied_into_the_table(tmp_path):
    table, _ = small()
    random = np.random.default_rng(0)
    n_tokens = len(table)
    mapping = random.integers(0, n_tokens, n_tokens)
    weights = random.random(n_tokens)
    base = model2vec(tmp_path / "base", weights=weights, mapping=mapping)
    config = json.loads((base / "config.json").read_text())
    more = {"embedding_dtype": "float16", "vocabulary_quantization": 9, "hidden_dim": 16}
    put(base / "config.json", config | more)
    rows = (table[mapping] * weights[:, None]).astype(np.float32)
    np.testing.assert_allclose(rows_of(base), rows, rtol=1e-6)
    repair = repairs.Whiten(method="pca", n_components=7).fit(base)
    export.static(base, repair, tmp_path / "out")
    np.testing.assert_allclose(rows_of(tmp_path / "out"), repair.transform(rows), atol=1e-5)
    new = json.loads((tmp_path / "out/config.json").read_text())
    assert new == config | {"embedding_dtype": "float32", "hidden_dim": 7}


def test_model2vec_and_sentence_transformers_load_it(tmp_path):
    model2vec_package = pytest.importorskip("model2vec")
    base = model2vec(tmp_path / "base", modules=True)
    repair = repairs.ClusterRemoval(4, 2).fit(base)
    export.static(base, repair, tmp_path / "out")
    found = model2vec_package.StaticModel.from_pretrained(str(tmp_path / "out")).encode(TEXTS)
    wanted = formula(tmp_path / "out", TEXTS, normalize=True)
    assert off(found, wanted) < CLOSE
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    known = [TEXTS[i] for i in (0, 1, 4)]  # without unknown tokens, which the two treat differently
    assert off(model.encode(known), formula(tmp_path / "out", known, normalize=True)) < CLOSE


ALONE = """
import sys
class Refusal:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "isotropy":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refusal())
import numpy as np
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
np.save(sys.argv[2], model[0].embedding.weight.detach().numpy())
"""


def test_a_static_embedding_keeps_its_format(tmp_path):
    base = static_embedding(tmp_path / "base", normalize=True)
    X = rows_of(base)
    repair = repairs.ScaledCenter(normalize=True).fit(X)
    export.static(base, repair, tmp_path / "out")
    (place,) = {p.relative_to(base) for p in base.rglob("model.safetensors")}
    assert list(load_file(tmp_path / "out" / place)) == ["embedding.weight"]
    assert (tmp_path / "out/modules.json").read_bytes() == (base / "modules.json").read_bytes()
    command = [sys.executable, "-c", ALONE, str(tmp_path / "out"), str(tmp_path / "rows.npy")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), repair.transform(X))


def test_sentence_vectors_of_a_static_model(tmp_path):
    """They are repaired after the mean, by the other export."""
    SentenceTransformer = pytest.importorskip("sentence_transformers").SentenceTransformer

    base = static_embedding(tmp_path / "base")
    model = SentenceTransformer(str(base), device="cpu")
    texts = [" ".join(TEXTS[i][::k]) for i in range(6) for k in (1, 2, 3, -1, -2)]
    X = model.encode(texts)
    repair = repairs.Center().fit(X)
    export.sentence_transformers(base, repair, tmp_path / "out")
    new = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert off(new.encode(texts), repair.transform(X)) < CLOSE
    repair.level_ = "token"
    with pytest.raises(InputError, match="export for static tables"):
        export.sentence_transformers(base, repair, tmp_path / "other")


def test_what_is_no_static_model_is_refused(tmp_path):
    base = model2vec(tmp_path / "base")
    repair = repairs.Center().fit(base)
    with pytest.raises(InputError, match="export for static tables"):
        export.sentence_transformers(base, repair, tmp_path / "out")
    with pytest.raises(InputError, match=r"table of width 16, got one for 8\. Fit it"):
        export.static(base, repairs.Center().fit(rows_of(base)[:, :8]), tmp_path / "out")
    put(tmp_path / "other" / "config.json", {"model_type": "bert"})
    with pytest.raises(InputError, match="must be a static model"):
        export.static(tmp_path / "other", repair, tmp_path / "out")
    export.static(base, repair, tmp_path / "out")
    with pytest.raises(InputError, match="overwrite=True"):
        export.static(base, repair, tmp_path / "out")
    export.static(base, repair, tmp_path / "out", overwrite=True)
