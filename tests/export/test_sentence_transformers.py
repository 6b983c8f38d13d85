"""Models with a repair in them, against `transform` of what the original model gives."""

import ast
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import isotropy
from isotropy import export, repairs
from isotropy.errors import InputError, InputTypeError, IsotropyWarning, NotAffineError
from isotropy.export._layers import as_layers
from isotropy.models import Encoder
from isotropy.repairs import Origin

from ..tiny_models import sentence_bert
from .common import (
    AFFINE,
    CLOSE,
    REPAIRS,
    clear,
    encode,
    encode_alone,
    fitted,
    off,
    put,
    sentences,
    tiny,
    unit,
)

SHIFT = (np.eye(16), np.full(16, 10.0))
FEW = ("scaled-center", "whiten", "cluster-removal")
MOST = [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in REPAIRS]


def quietly(*args, **kwargs):
    """The export, without its remarks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IsotropyWarning)
        return export.sentence_transformers(*args, **kwargs)


def files(folder):
    return {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}


def kinds(folder):
    listed = json.loads((folder / "modules.json").read_text())
    return [entry["type"].rsplit(".", 1)[-1] for entry in listed]


@pytest.fixture(scope="module")
def texts():
    return sentences()


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Models that end with a pooling, a Normalize, and a layer that adds 10."""
    folder = tmp_path_factory.mktemp("bases")
    return {
        "plain": tiny(folder / "plain"),
        "normalised": tiny(folder / "normalised", normalize=True),
        "shifted": tiny(folder / "shifted", dense=SHIFT),
        "shifted, normalised": tiny(folder / "both", dense=SHIFT, normalize=True),
    }


@pytest.fixture(scope="module")
def vectors(bases, texts):
    """What the models give, and what they give before their Normalize."""
    found = {name: encode(folder, texts) for name, folder in bases.items()}
    before = {"normalised": "plain", "shifted, normalised": "shifted"}
    return found | {f"before {name}": found[other] for name, other in before.items()}


@pytest.mark.parametrize("name", [f"{r}, {n}" for r in REPAIRS for n in ("as it is", "unit")])
def test_a_tiny_model_is_exported_in_any_form(name, alone):
    for job, found, rows in alone[name]:
        assert off(found[rows], job["wanted"][rows]) < CLOSE, job["folder"]


@pytest.fixture(scope="module")
def alone(bases, vectors, texts, tmp_path_factory):
    """What every exported model gives in a process without isotropy, by repair."""
    folder = tmp_path_factory.mktemp("alone")
    jobs, names, clear_rows = [], [], []
    for place, X in vectors.items():
        base = place.removeprefix("before ")
        for name in REPAIRS:
            for normalize in (False, True):
                out = folder / f"{place}, {name}, {normalize}"
                repair = fitted(name, X, normalize)
                quietly(bases[base], repair, out)
                wanted = repair.transform(X)
                if "normalised" in base:
                    wanted = unit(wanted)
                jobs.append({"folder": str(out), "texts": texts, "wanted": wanted})
                names.append(f"{name}, {'unit' if normalize else 'as it is'}")
                clear_rows.append(clear(repair, X))
    found = {}
    for name, *one in zip(names, jobs, encode_alone(jobs, folder), clear_rows, strict=True):
        found.setdefault(name, []).append(one)
    return found


def test_other_files_are_copied_byte_for_byte(bases, vectors, tmp_path):
    for name, base in bases.items():
        quietly(base, fitted("whiten", vectors[name]), tmp_path / name)
        old, new = files(base), files(tmp_path / name)
        changed = {"modules.json", "README.md"}
        assert set(old) <= set(new)
        for path in set(old) - changed:
            assert old[path].read_bytes() == new[path].read_bytes()
        added = {Path(path).name for path in set(new) - set(old)}
        assert added <= {"config.json", "model.safetensors", ".isotropy.json"}


@pytest.mark.parametrize("name", AFFINE)
def test_affine_repairs_need_only_long_lived_types(name, bases, vectors, tmp_path):
    for place, base in bases.items():
        out = tmp_path / place
        quietly(base, fitted(name, vectors[place], normalize=True), out)
        for entry in json.loads((out / "modules.json").read_text()):
            assert re.fullmatch(r"sentence_transformers\.models\.[A-Z]\w+", entry["type"])
        for path in out.rglob("*_Dense/config.json"):
            config = json.loads(path.read_text())
            assert config["activation_function"] == "torch.nn.modules.linear.Identity"
            assert set(config) == {"in_features", "out_features", "bias", "activation_function"}


def test_types_of_newer_versions_become_long_lived(tmp_path):
    base = sentence_bert(tmp_path)
    X = encode(base, sentences())
    assert "sentence_transformers.models." not in (base / "modules.json").read_text()
    repair = repairs.Center().fit(X)
    quietly(base, repair, tmp_path / "out")
    assert kinds(tmp_path / "out") == [*kinds(base), "Dense", "Normalize"]
    assert (tmp_path / "out/modules.json").read_text().count("sentence_transformers.models") == 6
    assert off(encode(tmp_path / "out", sentences()), unit(repair.transform(X))) < CLOSE


def test_fitted_before_normalize_is_what_servers_run(bases, vectors, tmp_path):
    """They pool, apply Dense, and normalise; no Dense may follow a Normalize."""
    for name in AFFINE:
        repair = fitted(name, vectors["before normalised"])
        export.sentence_transformers(bases["normalised"], repair, tmp_path / name)  # no warning
        order = kinds(tmp_path / name)
        assert order[:2] == ["Transformer", "Pooling"]
        assert order[-1] == "Normalize"
        assert set(order[2:-1]) == {"Dense"}


def test_fitted_after_normalize_is_right_here_and_warned_of(bases, vectors, tmp_path):
    repair = repairs.Center().fit(vectors["normalised"])
    with pytest.warns(IsotropyWarning, match=r"pool='mean', special_tokens=True") as caught:
        export.sentence_transformers(bases["normalised"], repair, tmp_path / "out")
    assert len(caught) == 1
    assert kinds(tmp_path / "out")[2:] == ["Normalize", "Dense", "Normalize"]


def test_what_the_origin_says_comes_first(bases, vectors, tmp_path):
    repair = repairs.Center().fit(vectors["normalised"])
    repair.origin_ = Origin(normalised=False, pooling="own", evidence="it helps")
    export.sentence_transformers(bases["normalised"], repair, tmp_path / "out")
    assert kinds(tmp_path / "out")[2:] == ["Dense", "Normalize"]
    assert "it helps" in (tmp_path / "out" / "README.md").read_text()


def test_vectors_of_another_origin_are_warned_of(bases, vectors, texts, tmp_path):
    def origin(**options):
        return Origin.from_dict(Encoder(bases["normalised"], **options).origin())

    repair = repairs.Center().fit(vectors["before normalised"])
    cases = {
        "pooling 'mean+special', and": {"pool": "mean"},
        "layer 3, and": {"pool": "mean", "special_tokens": True, "layer": 1},
        "": {"pool": "mean", "special_tokens": True},
    }
    for number, (words, options) in enumerate(cases.items()):
        repair.origin_ = origin(**options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", IsotropyWarning)
            export.sentence_transformers(bases["normalised"], repair, tmp_path / str(number))
        told = [str(w.message) for w in caught if issubclass(w.category, IsotropyWarning)]
        assert len(told) == bool(words)
        assert not words or words in told[0]
    repair.origin_ = Origin(model="another/model")
    with pytest.warns(IsotropyWarning, match="'another/model'. Fit again"):
        export.sentence_transformers(bases["plain"], repair, tmp_path / "other")


def test_far_from_zero_the_mean_is_subtracted_first():
    X = np.random.default_rng(0).standard_normal((500, 12))
    for shift, n_layers in ((0, 1), (10, 2), (1e4, 2)):
        for name in ("all-but-the-top", "whiten", "standardize"):
            repair = fitted(name, X + shift)
            assert len(as_layers(repair, unit_rows=False, unit_result=False)) == n_layers
        assert len(as_layers(fitted("center", X + shift), unit_rows=False, unit_result=False)) == 1


def test_a_last_dense_absorbs_the_repair(vectors, tmp_path, texts):
    weight = np.random.default_rng(0).standard_normal((12, 16))
    dense = weight, 1 - weight @ vectors["plain"].mean(0)
    base = tiny(tmp_path / "base", dense=dense, normalize=True)
    X = encode(tiny(tmp_path / "before", dense=dense), texts)
    repair = repairs.AllButTheTop(2).fit(X)
    export.sentence_transformers(base, repair, tmp_path / "out")
    assert kinds(tmp_path / "out") == kinds(base)
    assert off(encode(tmp_path / "out", texts), unit(repair.transform(X))) < CLOSE
    assert json.loads((tmp_path / "out/2_Dense/config.json").read_text())["in_features"] == 16
    short = fitted("whiten, pca", X)
    export.sentence_transformers(base, short, tmp_path / "short")
    assert encode(tmp_path / "short", texts).shape == (len(texts), 5)


def test_truncated_vectors_prompts_and_similarity(tmp_path, texts):
    kept = {"prompts": {"query": "the dog "}, "default_prompt_name": "query"}
    kept |= {"similarity_fn_name": "dot", "truncate_dim": 10}
    for ending in (False, True):
        base = tiny(tmp_path / f"base-{ending}", normalize=ending, **kept)
        X = encode(base, texts)
        assert X.shape[1] == 10
        for name in ("whiten", "cluster-removal", "whiten, pca", "scaled-center"):
            repair, out = fitted(name, X), tmp_path / f"{name}-{ending}"
            quietly(base, repair, out)
            wanted = repair.transform(X)
            assert off(encode(out, texts), unit(wanted) if ending else wanted) < CLOSE
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(out), device="cpu", trust_remote_code=True)
    assert (model.similarity_fn_name, model.default_prompt_name) == ("dot", "query")


def test_a_transformer_without_modules_gets_the_default_pooling(tmp_path, texts):
    base = tiny(tmp_path / "base")
    X = encode(base, texts)
    for name in ("modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"):
        (base / name).unlink()
    (base / "1_Pooling").rmdir()
    assert off(encode(base, texts), X) < CLOSE
    repair = repairs.Center().fit(X)
    export.sentence_transformers(base, repair, tmp_path / "out")
    assert kinds(tmp_path / "out") == ["Transformer", "Pooling", "Dense"]
    assert off(encode(tmp_path / "out", texts), repair.transform(X)) < CLOSE


def test_the_card_says_what_was_done(bases, vectors, tmp_path):
    repair = repairs.Whiten().fit(vectors["plain"])
    origin = repairs.Origin(evidence="whiten takes spearman from 50 to 60.")
    repair.save(tmp_path / "r.safetensors", note="tiny texts,\n+3.1 points", origin=origin)
    export.sentence_transformers(
        bases["plain"], isotropy.load(tmp_path / "r.safetensors"), tmp_path / "out"
    )
    old, new = ((p / "README.md").read_text() for p in (bases["plain"], tmp_path / "out"))
    assert new.startswith(old)
    section = new.removeprefix(old)
    for words in ("## Repair", "Whiten", "200", "width 16", "+3.1 points", "Pooling, Dense"):
        assert words in section
    assert section.count("from 50 to 60") == 1


# In memory


@pytest.mark.parametrize("name", MOST)
@pytest.mark.parametrize("place", ["plain", "normalised", "shifted"])
def test_a_loaded_model_is_repaired_like_its_folder(place, name, bases, vectors, texts, tmp_path):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(bases[place]), device="cpu")
    repair = fitted(name, vectors[place])
    found = quietly(model, repair)
    assert np.array_equal(model.encode(texts), vectors[place])
    assert len(model) == len(kinds(bases[place]))
    quietly(bases[place], repair, tmp_path / "folder")
    ours = [type(module).__name__ for module in found]
    assert ours == kinds(tmp_path / "folder")
    once = encode(tmp_path / "folder", texts)
    assert np.array_equal(found.encode(texts), once)
    found.save(str(tmp_path / "saved"))
    assert np.array_equal(encode(tmp_path / "saved", texts), once)
    assert "## Repair" in (tmp_path / "saved/README.md").read_text()


@pytest.mark.slow
def test_a_saved_copy_of_code_loads_without_isotropy(bases, vectors, texts, tmp_path):
    from sentence_transformers import SentenceTransformer

    X = vectors["plain"]
    repair = fitted("cluster-removal", X)
    with pytest.warns(IsotropyWarning, match="trust_remote_code=True"):
        export.sentence_transformers(bases["plain"], repair, tmp_path / "first")
    entry = json.loads((tmp_path / "first/modules.json").read_text())[-1]
    assert entry["type"] == "modeling_isotropy.FeatureRepair"
    model = SentenceTransformer(str(tmp_path / "first"), device="cpu", trust_remote_code=True)
    model.save(str(tmp_path / "second"))
    jobs = [{"folder": str(tmp_path / name), "texts": texts} for name in ("first", "second")]
    first, second = encode_alone(jobs, tmp_path)
    assert np.array_equal(first, second)
    rows = clear(repair, X)
    assert rows.sum() >= len(X) - 2
    assert off(first[rows], repair.transform(X)[rows]) < CLOSE


def test_the_code_in_a_model_imports_nothing_of_isotropy():
    tree = ast.parse(Path(repairs.__file__).with_name("module.py").read_text())
    named = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    for node in named:
        names = [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        assert not any(name.startswith("isotropy") for name in names)


# Towers


def of_towers(X, one="whiten", other="center"):
    """A repair of queries and one of documents, as `PerGroup` holds them."""
    repair = repairs.Center().fit(X)
    repair.repairs_ = {"query": fitted(one, X[::2]), "document": fitted(other, X[1::2])}
    return repair


@pytest.mark.parametrize("place", ["plain", "before normalised", "normalised", "shifted"])
def test_queries_and_documents_are_repaired_apart(place, bases, vectors, texts, tmp_path):
    from sentence_transformers import SentenceTransformer

    X, base = vectors[place], bases[place.removeprefix("before ")]
    repair = of_towers(X)
    with pytest.warns(IsotropyWarning, match="encode_query"):
        export.sentence_transformers(base, repair, tmp_path / "out")
    loaded = SentenceTransformer(str(base), device="cpu")
    in_memory = quietly(loaded, repair)
    in_memory.save(str(tmp_path / "saved"))
    wanted = {name: one.transform(X) for name, one in repair.repairs_.items()}
    for model in (tmp_path / "out", in_memory, tmp_path / "saved"):
        if isinstance(model, Path):
            model = SentenceTransformer(str(model), device="cpu")
        found = {"query": model.encode_query(texts), "document": model.encode_document(texts)}
        for name, rows in found.items():
            assert off(rows, unit(wanted[name]) if "normalised" in place else wanted[name]) < CLOSE
        assert np.array_equal(model.encode(texts), found["document"])


def test_towers_that_cannot_be_routed_are_refused(bases, vectors, tmp_path):
    X, base, out = vectors["plain"], bases["plain"], tmp_path / "out"
    refused("must be affine", base, of_towers(X, "cluster-removal"), out)
    other = of_towers(X)
    other.repairs_["en"] = other.repairs_.pop("query")
    refused("'query' and 'document'", base, other, out)


# Token level


@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken", "weightedmean", "max"])
@pytest.mark.parametrize("name", MOST)
def test_tokens_are_repaired_before_pooling(name, mode, texts, tmp_path):
    for ending in (False, True):
        base = tiny(tmp_path / f"{ending}", mode=mode, normalize=ending)
        model, repair = token_level(name, base, texts)
        out = tmp_path / f"out-{ending}"
        if name == "whiten, pca" and mode == "max":
            refused("keep the width 16", base, repair, out)
            continue
        quietly(base, repair, out)
        wanted = pooled(model, repair, texts, mode)
        assert off(encode(out, texts), unit(wanted) if ending else wanted) < 2 * CLOSE
        if mode in ("mean", "cls", "lasttoken") and name in AFFINE:
            assert set(kinds(out)) <= {"Transformer", "Pooling", "Dense", "Normalize"}
            assert "module_input_name" not in (out / "2_Dense/config.json").read_text()


def token_level(name, base, texts):
    """The model, and a repair of all of its token vectors."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(base), device="cpu")
    tokens = model.encode(texts, output_value="token_embeddings")
    repair = fitted(name, np.concatenate([part.numpy() for part in tokens]))
    repair.level_ = "token"
    return model, repair


def pooled(model, repair, texts, mode):
    """Repaired tokens, pooled one text at a time."""
    rows = []
    for part in model.encode(texts, output_value="token_embeddings"):
        own = repair.transform(part.numpy().astype(np.float64))
        weights = np.arange(1, len(own) + 1)
        ways = {"mean": own.mean(0), "cls": own[0], "lasttoken": own[-1], "max": own.max(0)}
        rows.append((ways | {"weightedmean": weights @ own / weights.sum()})[mode])
    return np.stack(rows)


def test_token_rows_of_our_encoder(texts, tmp_path):
    base = tiny(tmp_path / "base", normalize=True)
    encoder = Encoder(base)
    repair = fitted("whiten", encoder.tokens(texts).rows)
    repair.level_ = "token"
    export.sentence_transformers(base, repair, tmp_path / "out")
    wanted = encoder.with_repair(repair).encode(texts)
    assert off(encode(tmp_path / "out", texts), wanted) < CLOSE


# Refusals


def refused(match, *args, error=InputError, **kwargs):
    with pytest.raises(error, match=match) as caught:
        export.sentence_transformers(*args, **kwargs)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_exported_is_refused_in_one_line(bases, vectors, texts, tmp_path):
    X, out = vectors["plain"], tmp_path / "out"
    repair = repairs.Whiten().fit(X)
    plain = bases["plain"]
    refused("width 16, got one for 8", plain, repairs.Whiten().fit(X[:, :8]), out)
    refused("fitted repair", plain, "whiten", out, error=InputTypeError)
    refused("out must be the folder to write", plain, repair)
    refused("Leave out `out`", encode, repair, out)
    refused("SentenceTransformer, got", 7, repair, error=InputTypeError)
    refused("folder or a name on the hub", tmp_path / "absent", repair, out)
    (tmp_path / "empty").mkdir()
    refused("modules.json or config.json", tmp_path / "empty", repair, out)
    huge = repairs.LearnedLayer(n_epochs=1).fit(X, X[:, 0] > X[:, 0].mean())
    huge.weight_ = huge.weight_ * 1e300
    refused("float32 can hold", plain, huge, out)
    flow = repairs.Flow(n_levels=1, n_steps=1).fit(X)
    refused("Flow", plain, flow, out, error=NotAffineError)
    listed = [{"path": "../plain", "type": "sentence_transformers.models.Transformer"}]
    put(tmp_path / "astray" / "modules.json", listed)
    refused("paths in the folder", tmp_path / "astray", repair, out)
    put(tmp_path / "towers" / "modules.json", [listed[0] | {"path": "", "type": "a.Router"}])
    refused("one tower", tmp_path / "towers", repair, out)
    assert not out.exists()


def test_a_model_on_the_hub_is_downloaded(bases, vectors, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    repair = repairs.Center().fit(vectors["plain"])
    monkeypatch.setattr(hub, "snapshot_download", {"some/model": bases["plain"]}.__getitem__)
    export.sentence_transformers("some/model", repair, tmp_path / "out")
    assert kinds(tmp_path / "out")[-1] == "Dense"

    def offline(name):
        raise OSError("no route to host\nmore")

    monkeypatch.setattr(hub, "snapshot_download", offline)
    refused("'some/model' .no route to host.. Check", "some/model", repair, tmp_path / "other")


def test_token_level_repairs_that_do_not_fit_are_refused(bases, texts, tmp_path):
    _, repair = token_level("whiten", bases["plain"], texts)
    out = tmp_path / "out"
    bare = tiny(tmp_path / "bare")
    (bare / "modules.json").unlink()
    refused("special ones included", bare, repair, out)

    repair.origin_ = Origin(pooling="mean", layer=3)
    refused("special ones included", bases["plain"], repair, out)
    repair.origin_ = Origin(pooling="mean+special", layer=3)
    export.sentence_transformers(bases["plain"], repair, out)
    repair.origin_ = Origin(pooling="mean+special", layer=1)
    refused("last layer, 3, got layer 1", bases["plain"], repair, tmp_path / "other")
    _, short = token_level("whiten, pca", bases["plain"], texts)
    refused("keep the width 16", bases["shifted"], short, tmp_path / "other")


def test_a_folder_is_written_whole_or_not_at_all(bases, vectors, texts, tmp_path, monkeypatch):
    base, out = bases["plain"], tmp_path / "out"
    repair = repairs.Center().fit(vectors["plain"])
    refused("folder of model", base, repair, base / "inside")
    refused("must be another file than model", base, repair, base, overwrite=True)
    export.sentence_transformers(base, repair, out)
    refused("overwrite=True", base, repair, out)
    (out / "1_Pooling" / "mine.txt").write_text("kept")
    refused("did not write", base, repair, out, overwrite=True)
    (out / "1_Pooling" / "mine.txt").unlink()
    export.sentence_transformers(base, fitted("whiten", vectors["plain"]), out, overwrite=True)
    before = {name: path.read_bytes() for name, path in files(out).items()}
    module = export._sentence_transformers

    def full(*args, **facts):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "put_card", full)
    refused("disk is full", base, repair, out, overwrite=True)
    refused("disk is full", base, repair, tmp_path / "new")
    assert {name: path.read_bytes() for name, path in files(out).items()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_example_runs(tmp_path):
    base = tiny(tmp_path / "base", normalize=True)
    (tmp_path / "texts.txt").write_text("\n".join(sentences()), "utf-8")
    script = Path(__file__).parents[2] / "examples" / "sentence_transformers_model.py"
    command = [sys.executable, str(script), str(base), "texts.txt", "out"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    modules, difference = done.stdout.splitlines()
    assert modules.startswith("modules: Transformer, Pooling, Dense")
    assert float(difference.rsplit(" ", 1)[1]) < CLOSE
