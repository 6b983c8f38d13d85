"""isotropy export: what is written, what is checked, what is refused."""

import numpy as np
import pytest
from typer.testing import CliRunner

import isotropy
from isotropy.cli import app
from isotropy.export import verify

from .. import static_models, tiny_models

N, D = 500, 12


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def saved(tmp_path):
    X = np.random.default_rng(0).standard_normal((N, D)) * np.geomspace(3, 0.3, D) + 10
    isotropy.Whiten(normalize=True).fit(X).save(tmp_path / "repair.safetensors")
    return tmp_path / "repair.safetensors"


@pytest.mark.parametrize(
    ("target", "package", "name"),
    [("onnx", "onnxruntime", "r.onnx"), ("faiss", "faiss", "r.faiss"), ("torch", "torch", "r.pt2")],
)
def test_it_writes_and_verifies(saved, target, package, name):
    pytest.importorskip(package)
    out = saved.with_name(name)
    done = run("export", saved, "--to", target, "--out", out, "--verify")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("largest difference")
    assert "1,000 rows" in done.stdout
    assert ("holds no vectors yet: fill it with index.add" in done.stderr) == (target == "faiss")
    again = run("export", saved, "--to", target, "--out", out)
    assert again.exit_code == 2
    assert "--overwrite" in again.stderr
    assert run("export", saved, "--to", target, "--out", out, "--overwrite").exit_code == 0


def test_a_wrong_artefact_is_noticed(saved, tmp_path):
    pytest.importorskip("onnxruntime")
    X = np.random.default_rng(1).standard_normal((N, D))
    isotropy.export.onnx(isotropy.Center().fit(X), tmp_path / "other.onnx")
    found = verify(isotropy.load(saved), tmp_path / "other.onnx", to="onnx")
    assert not found.close
    assert found.n_rows == 1000


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("--to", "sentence-transformers"),
            "--model must be given with --to sentence-transformers",
        ),
        (("--to", "onnx", "--model", "m"), "--model can't be used with --to onnx"),
        (("--to", "onnx", "--index", "i"), "--index needs --to faiss, got onnx"),
        (("--to", "sqlite"), "sqlite"),
    ],
)
def test_what_does_not_fit_is_refused(saved, words, line):
    done = run("export", saved, *words, "--out", saved.with_name("out"))
    assert done.exit_code == 2
    assert line in done.stderr
    assert not saved.with_name("out").exists()


def test_the_repair_is_not_written_over(saved):
    pytest.importorskip("onnx")
    before = saved.read_bytes()
    done = run("export", saved, "--to", "onnx", "--out", saved, "--overwrite")
    assert done.exit_code == 2
    assert saved.read_bytes() == before


@pytest.mark.filterwarnings("ignore:sentence_transformers. ")
@pytest.mark.parametrize("repair", [isotropy.Whiten(), isotropy.ClusterRemoval(3, 1)], ids=str)
def test_a_model_is_verified(tmp_path, repair):
    pytest.importorskip("sentence_transformers")
    model = tiny_models.sentence_bert(tmp_path / "model")
    X = isotropy.Encoder(model).encode([f"a text about {word}" for word in tiny_models.WORDS])
    repair.fit(X).save(tmp_path / "repair.safetensors")
    words = ("--to", "sentence-transformers", "--model", model, "--out", tmp_path / "new")
    done = run("export", tmp_path / "repair.safetensors", *words, "--verify")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("largest difference")


def test_a_static_table_is_verified(tmp_path):
    pytest.importorskip("sentence_transformers")
    model = static_models.model2vec(tmp_path / "model")
    isotropy.Center().fit(model).save(tmp_path / "repair.safetensors")
    words = ("--to", "static", "--model", model, "--out", tmp_path / "new", "--verify")
    done = run("export", tmp_path / "repair.safetensors", *words)
    assert done.exit_code == 0, done.output


def test_a_script_for_mteb_names_model_and_repair(saved):
    words = ("--to", "mteb", "--model", "all-MiniLM-L6-v2", "--out", saved.with_name("run.py"))
    assert run("export", saved, *words).exit_code == 0
    text = saved.with_name("run.py").read_text("utf-8")
    compile(text, "run.py", "exec")
    assert "all-MiniLM-L6-v2" in text
    assert str(saved) in text


@pytest.mark.parametrize("target", ["torch", "onnx", "mteb"])
def test_a_folder_is_not_written_over(saved, target):
    if target != "mteb":
        pytest.importorskip(target)
    folder = saved.with_name("folder")
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    words = ("--to", target, "--out", folder, "--overwrite")
    words += ("--model", "m") if target == "mteb" else ()
    done = run("export", saved, *words)
    assert done.exit_code == 2, done.output
    assert len(done.stderr.splitlines()) == 1
    assert (folder / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("target", ["torch", "onnx", "faiss"])
def test_groups_are_exported_one_by_one(tmp_path, target):
    pytest.importorskip(target)
    X = np.random.default_rng(0).standard_normal((60, 4))
    groups = np.repeat(["query", "document"], 30)
    isotropy.PerGroup(isotropy.Center()).fit(X, groups=groups).save(tmp_path / "r.safetensors")
    done = run("export", tmp_path / "r.safetensors", "--to", target, "--out", tmp_path / "o")
    assert done.exit_code == 2, done.output
    assert "repairs_[group]" in done.stderr


def test_rows_can_be_normalised_on_the_way(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    X = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32) + 3
    isotropy.Center().fit(X).save(tmp_path / "r.safetensors")
    words = ("--to", "onnx", "--normalize", "--out", tmp_path / "r.onnx", "--verify")
    assert run("export", tmp_path / "r.safetensors", *words).exit_code == 0
    session = onnxruntime.InferenceSession(tmp_path / "r.onnx")
    (found,) = session.run(None, {"vectors": X})
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_a_distilbert_has_a_width(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "distilbert", "dim": 4}')
    isotropy.Center().fit(np.eye(4)).save(tmp_path / "r.safetensors")
    words = ("--to", "sentence-transformers", "--model", tmp_path / "model")
    done = run("export", tmp_path / "r.safetensors", *words, "--out", tmp_path / "new")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "new" / "modules.json").exists()
