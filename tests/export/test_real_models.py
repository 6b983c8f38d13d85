"""Exported models on 1,000 real sentences, in a process where isotropy cannot be imported."""

import shutil
import warnings

import numpy as np
import pytest

from isotropy import export, repairs
from isotropy.errors import IsotropyWarning
from isotropy.models import Encoder, each, open_texts

from .common import CLOSE, clear, encode, encode_alone, off, put, unit

pytest.importorskip("sentence_transformers")
pytestmark = [pytest.mark.model, pytest.mark.data, pytest.mark.slow]

PLAIN = [
    repairs.Center(),
    repairs.ScaledCenter(),
    repairs.Standardize(),
    repairs.AllButTheTop(),
    repairs.AllButTheTop(centered=False),
    repairs.Whiten(),
    repairs.Whiten(method="pca", n_components=100),
    repairs.ClusterRemoval(5, 3),
    repairs.LearnedLayer(n_epochs=1, batch_size=512),
]


@pytest.fixture(scope="module")
def texts(data):
    return list(dict.fromkeys(each(open_texts(data / "stsb/train.tsv"))))[:1000]


def shifted(model, folder, pooled_width=384):
    """A copy of a model whose pooled vectors are shifted by 10, and not normalised."""
    from safetensors.numpy import save_file

    shutil.copytree(model, folder)
    config = {"in_features": pooled_width, "out_features": pooled_width, "bias": True}
    put(
        folder / "2_Dense/config.json",
        config | {"activation_function": "torch.nn.modules.linear.Identity"},
    )
    weight, bias = np.eye(pooled_width, dtype="f4"), np.full(pooled_width, 10, dtype="f4")
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "2_Dense/model.safetensors")
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense"}
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(paths.items())
    ]
    put(folder / "modules.json", listed)
    return folder


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "gte-small"])
def test_exported_models_give_what_transform_gives(name, models, texts, tmp_path):
    if not (models / name).is_dir():
        pytest.skip(f"{name} is not under ISOTROPY_MODELS")
    bases = {"as it is": models / name}
    pooled = Encoder(models / name, pool="mean", special_tokens=True, device="cpu").encode(texts)
    np.save(tmp_path / "pooled.npy", pooled)
    cases = [("as it is", pooled)]
    if name == "all-MiniLM-L6-v2":  # which ends with Normalize
        bases["shifted"] = shifted(models / name, tmp_path / "shifted")
        cases += [("as it is", unit(pooled)), ("shifted", pooled + np.float32(10))]
    jobs, rows = [], []
    for base, X in cases:
        for plain in PLAIN:
            for normalize in (False, True):
                repair = plain.__class__(**plain.get_params() | {"normalize": normalize})
                repair.fit(X, X[:, 0] > np.median(X[:, 0]))  # labels, for the layer
                out = tmp_path / f"out-{len(jobs)}"
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", IsotropyWarning)
                    export.sentence_transformers(bases[base], repair, out)
                wanted = repair.transform(X)
                if base == "as it is" and name == "all-MiniLM-L6-v2":
                    wanted = unit(wanted)
                job = {"folder": str(out), "vectors": str(tmp_path / "pooled.npy")}
                jobs.append(job | {"wanted": wanted})
                rows.append(clear(repair, X))
                spare = out / "model.safetensors"  # 90 MB each
                spare.unlink()
                spare.symlink_to(models / name / "model.safetensors")
    n_unclear = sum(int((~kept).sum()) for kept in rows)
    assert n_unclear <= 0.001 * sum(map(len, rows))
    for job, found, kept in zip(jobs, encode_alone(jobs, tmp_path), rows, strict=True):
        assert off(found[kept], job["wanted"][kept]) < CLOSE, job["folder"]


@pytest.mark.parametrize("before", [False, True])
def test_towers_of_a_model_are_repaired_apart(before, models, texts, tmp_path):
    """One repair per tower, fitted before or after the model's own Normalize."""
    model = models / "all-MiniLM-L6-v2"
    if not model.is_dir():
        pytest.skip("all-MiniLM-L6-v2 is not under ISOTROPY_MODELS")
    X = encode(model, texts)
    if before:
        X = Encoder(model, pool="mean", special_tokens=True, device="cpu").encode(texts)
    groups = np.resize(["query", "document"], len(texts))
    repair = repairs.PerGroup(repairs.Whiten(power=0.5)).fit(X, groups=groups)
    repair.origin_ = repairs.Origin(normalised=not before)
    with pytest.warns(IsotropyWarning, match="encode_query"):
        export.sentence_transformers(model, repair, tmp_path / "out")
    jobs = [
        {"folder": str(tmp_path / "out"), "texts": texts, "method": f"encode_{tower}"}
        for tower in repair.repairs_
    ]
    for tower, found in zip(repair.repairs_, encode_alone(jobs, tmp_path), strict=True):
        wanted = unit(repair.transform(X, groups=[tower] * len(X)))
        assert len(found) == 1000
        assert off(found, wanted) < CLOSE, tower


def test_what_advise_fits_is_what_encode_gives(models, texts, tmp_path):
    """A repair of our encoder's vectors, exported, against the encoder with the repair."""
    model = models / "all-MiniLM-L6-v2"
    if not model.is_dir():
        pytest.skip("all-MiniLM-L6-v2 is not under ISOTROPY_MODELS")
    encoder = Encoder(model, device="cpu")
    few = texts[:200]
    after = repairs.Whiten(power=0.5).fit(encoder.source(texts[200:]))
    with pytest.warns(IsotropyWarning, match="servers"):
        export.sentence_transformers(model, after, tmp_path / "after")
    wanted = unit(encoder.with_repair(after, "sentence").encode(few))
    assert off(encode(tmp_path / "after", few), wanted) < CLOSE
    before = Encoder(model, pool="mean", special_tokens=True, device="cpu")
    repair = repairs.Whiten(power=0.5).fit(before.source(texts[200:]))
    export.sentence_transformers(model, repair, tmp_path / "before")  # no warning
    wanted = unit(before.with_repair(repair, "sentence").encode(few))
    assert off(encode(tmp_path / "before", few), wanted) < CLOSE
