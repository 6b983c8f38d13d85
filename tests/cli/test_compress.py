"""compress from the command line: what it prints, writes and refuses."""

from __future__ import annotations

import json
from importlib.util import find_spec

import numpy as np
import pytest

import isotropy
from isotropy import KeyedVectors
from isotropy.evidence import compress
from isotropy.tasks import open_task

from .test_evidence import done, refused, run, timeless, write_vectors

needs_report = pytest.mark.skipif(find_spec("plotly") is None, reason="no plotly")


@pytest.fixture
def search(tmp_path):
    """A folder with a search, in which the third document and the second query are left out."""
    random = np.random.default_rng(0)
    n, d = 150, 32
    documents = random.standard_normal((n, d)) * np.geomspace(3, 0.3, d)
    queries = documents + 0.3 * random.standard_normal((n, d)) + 1
    np.save(tmp_path / "docs.npy", (documents + 1).astype(np.float32))
    np.save(tmp_path / "queries.npy", queries.astype(np.float32))
    (tmp_path / "search").mkdir()
    for name in ("corpus", "queries"):
        entries = [{"_id": f"{name[0]}{i}", "text": f"{name} text {i}"} for i in range(n)]
        if name == "corpus":
            entries[2]["text"] = ""
        lines = [json.dumps(entry) for entry in entries]
        (tmp_path / "search" / f"{name}.jsonl").write_text("\n".join(lines), "utf-8")
    judged = [f"q{i}\tc{i}\t1" for i in reversed(range(n)) if i != 1]
    lines = "\n".join(["query-id\tcorpus-id\tscore", *judged])
    (tmp_path / "search" / "qrels.tsv").write_text(lines, "utf-8")
    return tmp_path


def of_files(folder, *options):
    of_task = ("--task", "retrieval", "--data", folder / "search")
    vectors = (folder / "docs.npy", "--query-vectors", folder / "queries.npy")
    return ("compress", *vectors, *of_task, *options)


def test_vectors_in_the_order_of_files_are_those_of_the_texts(search):
    task = open_task("retrieval", search / "search")
    documents, queries = (np.load(search / f"{name}.npy") for name in ("docs", "queries"))
    assert task.n_items == 148  # neither q1, without a judgement, nor q2, whose document is empty
    X = task.arranged(documents, queries)
    for number in (0, 50, 147):
        assert (X[task.members[number, 0]] == queries[int(task.texts[number].split()[-1])]).all()
    for place in (0, 1, 2, 148):
        row = int(task.corpus[place].split()[-1])
        assert (X[task.documents[place]] == documents[row]).all()
    without_blanks = task.arranged(documents[task.corpus_rows], queries)  # as `embed` writes them
    assert len(task.corpus_rows) < len(documents)
    assert (without_blanks == X).all()
    part = task.subset([3, 5])
    assert (
        part.arranged(documents, queries)[part.members[:, 0]] == X[task.members[[3, 5], 0]]
    ).all()


def test_it_prints_what_it_finds_in_python(search):
    task = open_task("retrieval", search / "search")
    X = task.arranged(np.load(search / "docs.npy"), np.load(search / "queries.npy"))
    vectors = KeyedVectors(X, task.texts)
    found = json.loads(done(*of_files(search, "--json", "--margin", 3)))
    expected = compress(vectors, task, margin=3).to_dict()
    codes = [timeless(code) for code in found.pop("codes")]
    assert codes == [timeless(code) for code in expected.pop("codes")]
    assert timeless(found) == timeless(expected)
    write_vectors(search / "vectors.parquet", task.texts, X)
    by_text = ("compress", search / "vectors.parquet", *of_files(search)[4:], "--margin", 3)
    printed = done(*by_text)
    assert printed.startswith(found["reason"])
    assert printed.count("frontier") == sum(code["on_frontier"] for code in codes)


def test_the_codec_and_the_page_are_written(search):
    pytest.importorskip("plotly")
    codec, page = search / "codec.safetensors", search / "page.html"
    result = run(*of_files(search, "--margin", 5, "--save", codec, "--out", page))
    assert result.exit_code == 0, result.stderr
    saved = isotropy.load(codec)
    documents = np.load(search / "docs.npy")
    assert saved.encode(documents).shape == (150, saved.n_columns)
    assert saved.n_samples_seen_ == 149
    assert result.stdout.startswith("Use ")
    assert f"saved {result.stdout.split(': ')[0].removeprefix('Use ')} to {codec}" in result.stderr
    written = page.read_text("utf-8")
    assert "Quality against size" in written
    assert f"<code>isotropy {' '.join(map(str, of_files(search, '--margin', 5)))} " in written
    assert f"<code>isotropy apply {codec} vectors.npy --out codes.npy</code>" in written
    verdict = result.stdout.split(" with 95 %")[0]
    assert done("show", codec).count(verdict) == 1  # not in its note too
    said = refused(*of_files(search, "--save", codec))
    assert "exists" in said
    assert "--overwrite" in said


@pytest.mark.filterwarnings("ignore::isotropy.errors.IsotropyWarning")
def test_four_commands_lead_from_vectors_to_an_index(search):
    faiss = pytest.importorskip("faiss")
    codec, codes, index = (search / name for name in ("codec.safetensors", "codes.npy", "i.faiss"))
    for command in (
        of_files(search, "--max-bytes", 2, "--save", codec),
        ("show", codec),
        ("apply", codec, search / "docs.npy", "--out", codes),
        ("export", codec, "--to", "faiss", "--out", index, "--verify"),
    ):
        result = run(*command)
        assert result.exit_code == 0, result.stderr
    saved, found = isotropy.load(codec), faiss.read_index(str(index))
    found.add(np.load(search / "docs.npy"))
    queries = np.load(search / "queries.npy")
    moved = queries if saved.query_shift_ is None else queries + saved.query_shift_
    ids = found.search(moved.astype(np.float32), 10)[1]
    best, _ = saved.search(queries, np.load(codes), 10)
    scores = np.take_along_axis(saved.scores(queries, np.load(codes)), ids, axis=1)
    assert (np.abs(scores - best) > 2e-3).mean() < 0.02  # as good, though others where they tie


def test_max_bytes_asks_the_reverse_question(search):
    found = json.loads(done(*of_files(search, "--json", "--max-bytes", 4)))
    assert found["verdict"] == "best"
    assert found["reason"].startswith("Up to 4 bytes, use ")
    (chosen,) = [code for code in found["codes"] if code["chosen"]]
    assert chosen["name"] == found["choice"]
    assert chosen["n_bytes"] <= 4
    assert "--max-bytes must be at least 2" in refused(*of_files(search, "--max-bytes", 1))


def test_without_a_task_it_says_fidelity(search):
    printed = done("compress", search / "docs.npy")
    assert "This is fidelity, not quality" in printed
    assert "recall@10 of float32's own neighbours" in printed


def test_nothing_is_saved_if_nothing_is_recommended(search):
    random = np.random.default_rng(1)
    np.save(search / "queries.npy", random.standard_normal((150, 32)).astype(np.float32))
    result = run(*of_files(search, "--margin", 0.01, "--save", search / "codec.safetensors"))
    assert result.exit_code == 0
    if not result.stdout.startswith("Use "):
        assert result.stderr == "nothing was saved, as no code is recommended\n"
        assert not (search / "codec.safetensors").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data", "x"), "--data needs --task, got none"),
        (("--task", "retrieval"), "--task needs --data, got none"),
        (("--transductive",), "--transductive needs --task"),
        (("--query-vectors", "docs.npy"), "--query-vectors needs --task"),
        (("--layer", "3"), "--layer can't be used with a file of vectors"),
        pytest.param(("--out", "page.txt"), "--out must be an .html file", marks=needs_report),
        (("--save", "docs.npy"), "--save"),
        (("--margin", "0"), "--margin must be above 0, got 0: no number of items shows"),
        (("--max-stored-bytes", "1"), "--max-stored-bytes must be at least 2, the bytes of"),
    ],
)
def test_refused(search, monkeypatch, options, message):
    monkeypatch.chdir(search)
    assert message in refused("compress", "docs.npy", *options)


def test_query_vectors_of_another_width_are_refused(search):
    np.save(search / "queries.npy", np.ones((150, 31), np.float32))
    assert "queries must have a row of 32 dimensions" in refused(*of_files(search))
    np.save(search / "queries.npy", np.ones((100, 32), np.float32))
    assert "the 150 of 'search', got shape (100, 32)" in refused(*of_files(search))


def test_more_vectors_than_entries_are_refused(search):
    np.save(search / "queries.npy", np.ones((151, 32), np.float32))
    assert "queries must have a row of 32 dimensions for each of the 150" in refused(
        *of_files(search)
    )
    np.save(search / "queries.npy", np.ones((150, 32), np.float32))
    np.save(search / "docs.npy", np.ones((151, 32), np.float32))
    said = refused(*of_files(search))
    assert "documents must have a row of 32 dimensions for each of the 150 of 'search'" in said
    assert "or 149 without blank texts, got shape (151, 32)" in said


def test_vectors_of_the_documents_alone_need_those_of_the_queries(search):
    task = open_task("retrieval", search / "search")
    documents = np.load(search / "docs.npy")[task.corpus_rows]
    write_vectors(search / "docs.parquet", task.corpus, documents)
    alone = ("compress", search / "docs.parquet", *of_files(search)[4:])
    said = refused(*alone)
    assert "must hold documents and queries, got none of the 148 queries" in said
    assert said.strip().endswith("Give the file with their vectors as --query-vectors.")
    with_queries = (*alone, "--query-vectors", search / "queries.npy")
    codes = [json.loads(done(*one, "--json")) for one in (with_queries, of_files(search))]
    assert codes[0]["reason"] == codes[1]["reason"]  # a file with texts is read in order too


@pytest.mark.parametrize("task", [True, False])
def test_rows_that_are_not_finite_are_to_be_encoded_again(search, task):
    documents = np.load(search / "docs.npy")
    documents[7, 3], documents[9, 3] = np.inf, np.nan
    np.save(search / "docs.npy", documents)
    said = refused(*(of_files(search) if task else ("compress", search / "docs.npy")))
    assert "got NaN or infinity in 2 rows (first: 7, counting from 0). Encode these rows" in said
    assert "bad" not in said


def test_options_that_query_vectors_have_no_use_for_are_refused(search):
    said = refused(*of_files(search, "--text-column", "text"))
    assert "--text-column can't be used with --query-vectors" in said
    assert "has no names to choose from" in refused(*of_files(search, "--column", "v"))
    words = ["--task", "word-similarity", "--data", search / "words.tsv"]
    (search / "words.tsv").write_text("word1\tword2\tscore\nsun\tmoon\t1\ncat\tdog\t2\n")
    vectors = [search / "model", "--query-vectors", search / "queries.npy"]
    assert "--query-vectors must come with --task retrieval" in refused("compare", *vectors, *words)


def test_a_model_needs_texts(tmp_path):
    assert "a model needs --data, a file of texts" in refused("compress", tmp_path / "model")
