"""compare, advise and calibrate from the command line: what they print, write and refuse."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import isotropy
from isotropy import KeyedVectors, ScoreCalibrator, specs
from isotropy.cli import app
from isotropy.cli.evidence import option_values
from isotropy.errors import InputError
from isotropy.evidence import advise, compare
from isotropy.tasks import open_task

from .. import tiny_models
from ..evidence import examples

PROMISED = {"choice", "params", "baseline", "score", "interval", "p", "reason", "candidates"}


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def done(*arguments, stderr=""):
    """stdout of a command that ends well."""
    result = run(*arguments)
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert result.stderr == stderr
    return result.stdout


def refused(*arguments):
    """The one line of a command that does not."""
    result = run(*arguments)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def write_vectors(path, texts, X):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.astype(np.float32).ravel()), X.shape[1])
    pq.write_table(pa.table({"text": texts, "vector": lists}), path)
    return path


def write_pairs(path, task, items=slice(None)):
    lines = ["score\tsentence1\tsentence2"]
    for (a, b), score in zip(task.members[items], task.scores[items], strict=True):
        lines.append(f"{float(score)!r}\t{task.texts[a]}\t{task.texts[b]}")
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@pytest.fixture
def planted(tmp_path):
    """(file of vectors, file of pairs) with a direction planted in all rows."""
    task, X = examples.sts("planted", n=100, d=14)
    vectors = write_vectors(tmp_path / "vectors.parquet", task.texts, X)
    return vectors, write_pairs(tmp_path / "pairs.tsv", task)


@pytest.fixture
def texts(planted, tmp_path):
    names = KeyedVectors.load(planted[0]).words
    (tmp_path / "texts.txt").write_text("\n".join(names) + "\n", "utf-8")
    return tmp_path / "texts.txt"


def line(command, files, *options):
    vectors, pairs = files
    return (command, vectors, "--task", "sts", "--data", pairs, *options)


def timeless(found):
    return {key: value for key, value in found.items() if key != "seconds"}


# compare


def test_compare_prints_what_it_finds_in_python(planted):
    repairs = ("--repairs", "center", "--repairs", "all-but-the-top:n_components=1")
    found = json.loads(done(*line("compare", planted, "--json", *repairs)))
    task, vectors = open_task("sts", planted[1]), KeyedVectors.load(planted[0])
    expected = compare(vectors, task, ["center", "all-but-the-top:n_components=1"]).to_dict()
    assert set(found) == {"transductive", "notes", "results"}
    assert [timeless(r) for r in found["results"]] == [timeless(r) for r in expected["results"]]
    assert [result["method"] for result in found["results"]] == [
        "none", "center", "all-but-the-top",
    ]  # fmt: skip


def test_compare_prints_a_table_of_every_repair(planted):
    output = done(*line("compare", planted, "--seeds", 1))
    assert output.startswith("pairs: spearman, 100 items, fitted on the other folds\n")
    for name in ("none", *isotropy.repairs.Repair.by_name):
        assert f"\n{name} " in output


def test_repairs_may_be_separated_by_commas(planted):
    both = ("--repairs", "center,all-but-the-top:n_components=2", "--seeds", 1, "--json")
    each = ("--repairs", "center", "--repairs", "all-but-the-top:n_components=2", *both[2:])
    first, second = (json.loads(done(*line("compare", planted, *o))) for o in (both, each))
    assert [timeless(r) for r in first["results"]] == [timeless(r) for r in second["results"]]


def test_a_file_of_vectors_alone_is_told_what_it_lacks(planted, tmp_path):
    np.save(tmp_path / "x.npy", np.eye(4))
    said = refused(*line("compare", (tmp_path / "x.npy", planted[1])))
    assert "must hold words or texts beside the vectors" in said
    assert "column" not in said


def test_compare_says_where_it_is_transductive(planted):
    options = ("--repairs", "center", "--transductive")
    assert "(transductive)" in done(*line("compare", planted, *options))
    assert json.loads(done(*line("compare", planted, *options, "--json")))["transductive"] is True


def test_compare_evaluates_a_part_and_fits_on_another(tmp_path):
    task, X = examples.sts("planted", n=90, d=8)
    vectors = write_vectors(tmp_path / "vectors.parquet", task.texts, X)
    data = tmp_path / "data"
    data.mkdir()
    for name, items in (("train", slice(0, 50)), ("dev", slice(50, 70)), ("test", slice(70, 90))):
        write_pairs(data / f"{name}.tsv", task, items)
    options = ("--repairs", "center", "--json")
    for part, n_items in (((), 20), (("--part", "test"), 20), (("--part", "train"), 50)):
        found = json.loads(done(*line("compare", (vectors, data), *options, *part)))
        assert [result["n_items"] for result in found["results"]] == [n_items] * 2
    said = refused(*line("compare", (vectors, data), "--part", "validation"))
    assert "--part must be one of train, dev, test for 'data', got 'validation'" in said


def test_compare_fits_on_text_that_is_given(planted, tmp_path):
    vectors, pairs = planted
    keyed = KeyedVectors.load(vectors)
    words = [f"word {i}" for i in range(60)]
    more = np.vstack([keyed.vectors, keyed.vectors[:60] + 0.01])
    write_vectors(vectors, [*keyed.words, *words], more)
    for name, part in (("one", words[:30]), ("two", words[30:])):
        (tmp_path / f"{name}.txt").write_text("\n".join([*part, "a0"]), "utf-8")
    options = ("--repairs", "center", "--fit-on", tmp_path / "one.txt", "--json")
    found = json.loads(done(*line("compare", planted, *options, "--fit-on", tmp_path / "two.txt")))
    expected = compare(
        KeyedVectors.load(vectors), open_task("sts", pairs), ["center"], fit_on=[*words, "a0"]
    )
    assert found["results"][1]["score"] == expected.to_dict()["results"][1]["score"]
    assert found["results"][1]["fitted_on"] == "other text"
    assert found["notes"] == ["pairs: 1 evaluated text was excluded from fitting."]


def test_compare_takes_scorers_in_a_search(planted, tmp_path):
    random = np.random.default_rng(0)
    folder = tmp_path / "search"
    (folder / "qrels").mkdir(parents=True)
    for name, n in (("corpus", 60), ("queries", 40)):
        lines = [json.dumps({"_id": f"{name}{i}", "text": f"{name} text {i}"}) for i in range(n)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), "utf-8")
    for part, numbers in (("train", range(25)), ("test", range(25, 40))):
        judged = [f"queries{i}\tcorpus{i}\t1" for i in numbers]
        text = "\n".join(["query-id\tcorpus-id\tscore", *judged])
        (folder / "qrels" / f"{part}.tsv").write_text(text, "utf-8")
    task = open_task("retrieval", folder)
    X = random.standard_normal((len(task.texts), 8)) + 0.5
    vectors = write_vectors(tmp_path / "searched.parquet", task.texts, X)
    options = ("--task", "retrieval", "--data", folder, "--repairs", "csls:k=3,center+csls")
    printed = done("compare", vectors, *options)
    assert printed == f"{compare(X, task, ['csls:k=3', 'center+csls'])}\n"
    assert "center + csls" in printed
    note = "search: csls(k=3) looks for the neighbours of a document among 25 training queries."
    assert note in printed
    words, pairs = planted
    line = refused("compare", words, "--task", "sts", "--data", pairs, "--repairs", "center,csls")
    assert line == "compare: csls must be used with a retrieval task, got 'pairs'. Leave it out.\n"


def test_compare_takes_few_components(planted):
    options = ("--repairs", "whiten:n_components=5", "--json")
    found = json.loads(done(*line("compare", planted, *options)))
    assert found["results"][1]["params"] == {"n_components": 5}
    said = refused(*line("compare", planted, "--repairs", "whiten:n_components=15"))
    assert "n_components must be an integer in [1, 14], got 15" in said


def test_options_go_to_the_task(planted):
    vectors, pairs = planted
    rows = pairs.read_text("utf-8").splitlines()
    cut = [f"{row}\t{'ab'[i % 2]}" for i, row in enumerate(rows[1:])]
    pairs.write_text("\n".join([f"{rows[0]}\tsubset", *cut]), "utf-8")
    options = ("--option", "combine=mean", "--option", "name=2024")
    found = json.loads(done(*line("compare", planted, "--json", "--repairs", "center", *options)))
    task = open_task("sts", pairs, combine="mean", name="2024")
    expected = compare(KeyedVectors.load(vectors), task, ["center"]).to_dict()
    assert [timeless(r) for r in found["results"]] == [timeless(r) for r in expected["results"]]
    assert {r["metric"] for r in found["results"]} == {"spearman (mean of subsets)"}
    found = json.loads(done(*line("advise", planted, "--json", "--budget", 2, *options)))
    assert (found["task"], found["metric"]) == ("2024", "spearman (mean of subsets)")


def test_values_of_options_are_what_the_task_wants():
    given = ["label=fine", "positive=1", "head=mlp"]
    expected = {"label": "fine", "positive": "1", "head": "mlp"}
    assert option_values("classification", given) == expected
    assert option_values("clustering", ["seed=3"]) == {"seed": 3}
    plain = {"3": 3, "0.5": 0.5, "true": True, "False": False, "dot": "dot"}
    assert {text: specs.value(text) for text in plain} == plain


# advise


def test_advise_chooses_from_the_repairs_that_are_named(planted):
    repairs = ("center", "all-but-the-top:n_components=1")
    options = [word for repair in repairs for word in ("--repairs", repair)]
    found = json.loads(done(*line("advise", planted, "--json", *options)))
    assert [c["method"] for c in found["candidates"]] == ["none", "center", "all-but-the-top"]
    assert found["choice"] == "all-but-the-top"


def test_advise_passes_on_that_it_is_transductive(planted, monkeypatch):
    given = []

    def nothing(*_, **options):
        given.append(options.get("transductive"))
        raise InputError("advise: enough.")

    monkeypatch.setattr("isotropy.cli.evidence.find_advice", nothing)
    refused(*line("advise", planted, "--transductive"))
    refused(*line("advise", planted))
    assert given == [True, None]


def test_advise_prints_what_it_finds_in_python(planted):
    found = json.loads(done(*line("advise", planted, "--json", "--budget", 6)))
    assert set(found) >= PROMISED
    task, vectors = open_task("sts", planted[1]), KeyedVectors.load(planted[0])
    expected = json.loads(json.dumps(advise(vectors, task, budget=6).to_dict()))
    assert timeless(found) == timeless(expected)
    assert found["choice"] == "all-but-the-top"
    assert found["score"] > found["baseline"] + 5


def test_advise_says_it_in_words(planted):
    output = done(*line("advise", planted, "--budget", 5))
    assert output.startswith("Repair it: all-but-the-top(n_components=1).\n")
    assert "one-sided p" in output


def test_a_saved_repair_is_one_that_apply_takes(planted, tmp_path):
    saved, out = tmp_path / "repair.safetensors", tmp_path / "fixed.parquet"
    result = run(*line("advise", planted, "--budget", 5, "--save", saved, "--json"))
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["choice"] == "all-but-the-top"
    assert result.stderr == f"saved AllButTheTop(n_components=1) to {saved}\n"
    assert done("apply", saved, planted[0], "--column", "vector", "--out", out) == ""
    X = KeyedVectors.load(planted[0]).vectors
    expected = isotropy.AllButTheTop(1).fit(X).transform(X)
    np.testing.assert_allclose(KeyedVectors.load(out).vectors, expected, rtol=1e-4, atol=1e-4)
    assert isotropy.load(saved).level_ == "sentence"
    assert isotropy.load(saved).origin_.evidence == json.loads(result.stdout)["reason"]
    assert len(isotropy.load(saved).origin_.fingerprint) == 64
    assert isotropy.load(saved).note_ == f"sentence level, {planted[0].name}, {planted[1].name}"


def test_nothing_is_saved_where_nothing_is_recommended(tmp_path):
    task, X = examples.sts("random", n=60, d=14)
    files = write_vectors(tmp_path / "v.parquet", task.texts, X), tmp_path / "pairs.tsv"
    write_pairs(files[1], task)
    saved = tmp_path / "repair.safetensors"
    said = "nothing was saved, as no repair is recommended\n"
    found = json.loads(done(*line("advise", files, "--save", saved, "--json"), stderr=said))
    assert found["choice"] == "none"
    assert found["score"] == found["baseline"]
    assert not saved.exists()


def test_several_texts_to_fit_on_are_reported(planted, texts, tmp_path):
    vectors, _ = planted
    keyed = KeyedVectors.load(vectors)
    words = [f"word {i}" for i in range(200)]
    write_vectors(vectors, [*keyed.words, *words], np.vstack([keyed.vectors, keyed.vectors]))
    paths = [tmp_path / "one.txt", tmp_path / "two.txt"]
    for path, part in zip(paths, (words[::2], words[1::2]), strict=True):
        path.write_text("\n".join(part), "utf-8")
    options = ("--budget", 5, "--json", "--fit-on", paths[0])
    found = json.loads(done(*line("advise", planted, *options, "--fit-on", paths[1])))
    assert list(found["by_fit_text"]) == [str(path) for path in paths]
    assert json.loads(done(*line("advise", planted, *options)))["by_fit_text"] == {}


def test_without_a_task_it_diagnoses(planted, texts):
    found = json.loads(done("advise", planted[0], "--data", texts, "--json"))
    assert set(found) >= PROMISED
    assert (found["choice"], found["p"]) == ("none", None)
    assert found["items_needed"] > 1
    assert found["geometry"]["n_samples"] == 200
    assert "nothing is recommended" in done("advise", planted[0], "--data", texts)


def test_a_pseudo_task_is_labelled_so(planted, texts):
    command = ("advise", planted[0], "--task", "pseudo", "--data", texts, "--budget", 2)
    found = json.loads(done(*command, "--json"))
    assert "pseudo" in found["task"]
    assert "pseudo" in found["reason"]
    assert "pseudo" in done(*command)
    assert "pseudo" in done("compare", *command[1:-2], "--repairs", "center")


def test_pairs_of_unknown_words_are_counted(tmp_path):
    random = np.random.default_rng(0)
    words = [f"w{i}" for i in range(50)]
    vectors = write_vectors(tmp_path / "v.parquet", words, random.standard_normal((50, 4)))
    rows = [f"w{i}\tw{(i * 7 + 1) % 50 if i < 40 else 'unknown'}\t{i % 9}" for i in range(50)]
    (tmp_path / "men.tsv").write_text("word1\tword2\tscore\n" + "\n".join(rows), "utf-8")
    command = ("compare", vectors, "--task", "word-similarity", "--data", tmp_path / "men.tsv")
    said = "both words are known in 40 of 50 pairs of 'men'\n"
    found = json.loads(done(*command, "--repairs", "center", "--json", stderr=said))
    assert found["results"][0]["n_items"] == 40


def test_word_vectors_on_sentences_are_averaged_and_unknown_words_counted(tmp_path):
    random = np.random.default_rng(0)
    words = [f"w{i}" for i in range(50)]
    vectors = write_vectors(tmp_path / "v.parquet", words, random.standard_normal((50, 4)))
    rows = [f"{i % 9}\tw{i} W{i + 1}, unseen\tw{(i * 7 + 1) % 50} w3!" for i in range(40)]
    (tmp_path / "pairs.tsv").write_text("score\tsentence1\tsentence2\n" + "\n".join(rows), "utf-8")
    files = vectors, tmp_path / "pairs.tsv"
    note = "Each text is the mean of the vectors of its words, since the vectors are of words: "
    for command in ("compare", "advise"):
        options = ("--repairs", "center")
        output = done(*line(command, files, *options))
        assert f"{note}40 of 200 words are unknown and left out" in output
        found = json.loads(done(*line(command, files, *options, "--json")))
        assert any(note in said for said in found["notes"])


# calibrate


def test_calibrate_gives_the_threshold_of_a_rate(planted):
    options = ("--column", "vector", "--rate", 0.05, "--score", 0.9, "--score", -0.5)
    found = json.loads(done("calibrate", planted[0], *options, "--json"))
    expected = ScoreCalibrator().fit(KeyedVectors.load(planted[0]).vectors)
    assert found == {
        "threshold": expected.threshold(0.05),
        "false_match_rate": 0.05,
        "mean": expected.mean_,
        "std": expected.std_,
        "n_pairs": 200 * 199 // 2,
        "repair": None,
        "scores": [
            {"score": s, "p": expected.p_value(s), "percentile": expected.percentile(s)}
            for s in (0.9, -0.5)
        ],
    }
    output = done("calibrate", planted[0], *options)
    assert f"threshold for a false-match rate of 0.05: {found['threshold']:.4f}" in output
    assert "0.9: above" in output


def test_calibrate_after_a_repair_and_save(planted, tmp_path):
    X = KeyedVectors.load(planted[0]).vectors
    repair = isotropy.Center().fit(X)
    repair.save(tmp_path / "repair")
    options = ("--column", "vector", "--repair", tmp_path / "repair", "--n-pairs", 5000)
    saved = tmp_path / "calibrator"
    found = json.loads(done("calibrate", planted[0], *options, "--save", saved, "--json"))
    loaded = ScoreCalibrator.load(saved)
    expected = ScoreCalibrator(5000).fit(X, repair=repair)
    np.testing.assert_array_equal(loaded.scores_, expected.scores_)
    assert (found["repair"], found["n_pairs"]) == ("center", 5000)
    assert found["threshold"] == loaded.threshold(0.01)
    assert abs(found["mean"]) < 0.1 < ScoreCalibrator().fit(X).mean_


def test_calibrate_leaves_bad_rows_out_where_asked(tmp_path):
    X = np.random.default_rng(0).standard_normal((90, 4))
    X[4, 1] = np.nan
    np.save(tmp_path / "x.npy", X)
    command = ("calibrate", tmp_path / "x.npy", "--rate", 0.1, "--json")
    assert "NaN in 1 row (first: 4, " in refused(*command)
    found = json.loads(done(*command, "--skip-bad-rows", stderr="1 bad row left out\n"))
    assert found["n_pairs"] == 89 * 88 // 2


# A model


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return tiny_models.bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture
def sentences(tmp_path):
    words = tiny_models.WORDS[:10]
    random = np.random.default_rng(0)
    rows = ["score\tsentence1\tsentence2"]
    for i in range(60):
        first, second = (" ".join(random.choice(words, 5)) for _ in range(2))
        rows.append(f"{random.random():.3f}\t{first} {i}\t{second} {i}")
    (tmp_path / "pairs.tsv").write_text("\n".join(rows), "utf-8")
    return tmp_path / "pairs.tsv"


def test_a_model_is_compared_on_both_levels(bert, sentences, tmp_path):
    repairs = ("--repairs", "center", "--repairs", "sentence/center")
    options = (*repairs, "--cache", tmp_path / "cache", "--json")
    first = json.loads(done(*line("compare", (bert, sentences), *options)))
    assert [result["level"] for result in first["results"][1:]] == ["token", "sentence"]
    assert first["results"][1]["score"] == first["results"][2]["score"]
    again = json.loads(done(*line("compare", (bert, sentences), *options)))
    assert [timeless(r) for r in again["results"]] == [timeless(r) for r in first["results"]]
    other = json.loads(done(*line("compare", (bert, sentences), "--layer", 1, *repairs, "--json")))
    assert other["results"][0]["isotropy"] != first["results"][0]["isotropy"]
    found = json.loads(done(*line("advise", (bert, sentences), "--budget", 4, "--json")))
    assert {candidate["level"] for candidate in found["candidates"]} == {"token", "sentence"}


@pytest.mark.parametrize(
    "option",
    [("--layer", -1), ("--pool", "mean"), ("--special-tokens",), ("--device", "cpu")],
)
@pytest.mark.parametrize("command", ["compare", "advise"])
def test_vectors_refuse_what_they_would_ignore(planted, command, option):
    said = refused(*line(command, planted, *option))
    expected = "can't be used with a file of vectors, for which no model is run. Leave it out.\n"
    assert said == f"{command}: {option[0]} {expected}"


def test_a_diagnosis_refuses_what_it_would_ignore(planted, texts):
    said = refused("advise", planted[0], "--data", texts, "--layer", 0)
    assert said.startswith("advise: --layer can't be used with a file of vectors")


@pytest.mark.parametrize("option", ["--column", "--text-column"])
def test_models_refuse_what_they_would_ignore(bert, sentences, option):
    said = refused(*line("compare", (bert, sentences), option, "vector"))
    assert said.startswith(f"compare: {option} can't be used with a model")


@pytest.mark.parametrize("command", ["compare", "advise"])
@pytest.mark.parametrize("option", [("--layer", -1), ("--pool", "mean"), ("--special-tokens",)])
def test_words_refuse_what_they_would_ignore(bert, tmp_path, command, option):
    (tmp_path / "men.tsv").write_text("word1\tword2\tscore\ncat\tdog\t1\ncat\tmat\t2\n")
    files = ("--task", "word-similarity", "--data", tmp_path / "men.tsv")
    said = refused(command, bert, *files, *option)
    assert said.startswith(f"{command}: {option[0]} can't be used with --task word-similarity")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--layer", "many"), "--layer must be a number or first-last, got 'many'"),
        (("--layer", "9"), "layer"),
        (("--pool", "max"), "pool must be one of"),
        (("--pool", "tokens"), "must pool its tokens"),
    ],
)
def test_a_wrong_option_of_a_model_gets_one_line(bert, sentences, options, message):
    assert message in refused(*line("compare", (bert, sentences), *options))


# What is refused


def constant(folder, vectors, pairs):
    rows = [f"1\t{part[1]}\t{part[2]}" for part in cells(pairs)]
    pairs.write_text("score\tsentence1\tsentence2\n" + "\n".join(rows), "utf-8")
    return (), "scores of 'pairs' must differ, got 1 for every pair"


def cells(pairs):
    return [row.split("\t") for row in pairs.read_text("utf-8").splitlines()[1:]]


def unlabelled(folder, vectors, pairs):
    rows = [f"-\t{part[1]}\t{part[2]}" for part in cells(pairs)]
    pairs.write_text("score\tsentence1\tsentence2\n" + "\n".join(rows), "utf-8")
    return (), "'pairs' must have at least 2 items, got 0"


def no_labels(folder, vectors, pairs):
    rows = ["\t".join(part[1:]) for part in cells(pairs)]
    pairs.write_text("sentence1\tsentence2\n" + "\n".join(rows), "utf-8")
    return (), "'pairs' must have the columns 'score' or"


def no_number(folder, vectors, pairs):
    pairs.write_text(pairs.read_text("utf-8") + "high\ta\tb\n", "utf-8")
    return (), "pairs.tsv, line 102 must have a number in 'score', got 'high'"


def empty_text(folder, vectors, pairs):
    pairs.write_text(pairs.read_text("utf-8") + "1\t\tb\n", "utf-8")
    return (), "pairs.tsv, line 102 must have text in 'sentence1', got none"


def not_utf8(folder, vectors, pairs):
    pairs.write_bytes(pairs.read_bytes() + b"1\t\xe9t\xe9\tb\n")
    return (), "must be UTF-8, got byte 0xe9 in line 102"


def unknown_texts(folder, vectors, pairs):
    pairs.write_text(pairs.read_text("utf-8") + "1\tnobody\tknows\n", "utf-8")
    return (), "texts must be among the keys, got 2 that are not: 'nobody', 'knows'"


def bad_vectors(folder, vectors, pairs):
    keyed = KeyedVectors.load(vectors)
    X = keyed.vectors.copy()
    X[7, 2] = np.nan
    write_vectors(vectors, list(keyed.words), X)
    return (), "NaN in 1 row (first: 7"


def no_texts_beside_vectors(folder, vectors, pairs):
    pq.write_table(pq.read_table(vectors).drop_columns("text"), vectors)
    return (), "vectors, got vectors only"


def wrong_key(folder, vectors, pairs):
    return ("--text-column", "sentence"), "must have the column sentence, got text"


def missing_vectors(folder, vectors, pairs):
    vectors.unlink()
    return (), f"there is no file {str(vectors)!r}"


def missing_data(folder, vectors, pairs):
    pairs.unlink()
    return (), f"data must be a file or a folder, but {str(pairs)!r} does not exist"


def missing_fit_text(folder, vectors, pairs):
    return ("--fit-on", folder / "no.txt"), "no.txt"


def evaluated_fit_text(folder, vectors, pairs):
    (folder / "fit.txt").write_text("a0\nb0\n", "utf-8")
    return ("--fit-on", folder / "fit.txt"), "--fit-on must have text that is not evaluated"


def empty_fit_text(folder, vectors, pairs):
    (folder / "fit.txt").write_text("\n\n", "utf-8")
    return ("--fit-on", folder / "fit.txt"), "fit.txt"


def one_group(folder, vectors, pairs):
    rows = [f"{i}\ta0\t{part[2]}" for i, part in enumerate(cells(pairs))]
    pairs.write_text("score\tsentence1\tsentence2\n" + "\n".join(rows), "utf-8")
    return (), "must have items in at least 2 groups that share no sentence and no vector, got 1"


BAD = (
    constant,
    unlabelled,
    no_labels,
    no_number,
    empty_text,
    not_utf8,
    unknown_texts,
    bad_vectors,
    no_texts_beside_vectors,
    wrong_key,
    missing_vectors,
    missing_data,
    missing_fit_text,
    evaluated_fit_text,
    empty_fit_text,
    one_group,
)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.__name__)
@pytest.mark.parametrize("command", ["compare", "advise"])
def test_bad_input_gets_one_line(command, bad, planted, tmp_path):
    options, message = bad(tmp_path, *planted)
    assert message in refused(*line(command, planted, "--json", *options))


def test_too_few_items_get_one_line(planted):
    vectors, pairs = planted
    few = pairs.read_text("utf-8").splitlines()[:4]
    pairs.write_text("\n".join(few), "utf-8")
    assert "at least 20 labelled items to choose with, got 3" in refused(*line("advise", planted))
    write_vectors(vectors, ["a0", "b0", "a1", "b1", "a2", "b2"], np.eye(6))
    said = refused(*line("compare", planted, "--repairs", "center"))
    assert "'pairs' must have at least 10 items (two in each of 5 folds), got 3" in said


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("compare", ("--repairs", "whitening"), "method must be one of 'none'"),
        ("compare", ("--repairs", "whiten:strength=3"), "params of whiten must be among"),
        ("compare", ("--repairs", "whiten:power=much"), "power must be"),
        ("compare", ("--part", "dev"), "--part must be one of all for 'pairs', got 'dev'"),
        ("compare", ("--seeds", 0), "--seeds"),
        ("compare", ("--transductive", "--fit-on", "PAIRS"), "--fit-on must not be given with"),
        ("advise", ("--budget", 0), "--budget"),
        ("advise", ("--repairs", "whitening"), "method must be one of 'none'"),
        ("advise", ("--option", "head=mlp"), "options of sts must be one of"),
        ("compare", ("--option", "head=mlp"), "options of sts must be one of"),
        ("compare", ("--option", "combine"), "--option must be name=value, got 'combine'"),
        ("compare", ("--option", "combine=sum"), "combine must be one of 'all'"),
        ("advise", ("--save", "no/folder/repair"), "existing folder"),
    ],
)
def test_a_wrong_option_gets_one_line(planted, command, options, message):
    given = [planted[1] if option == "PAIRS" else option for option in options]
    assert message in refused(*line(command, planted, *given))


def test_an_unknown_task_gets_one_line(planted):
    vectors, pairs = planted
    for command in ("compare", "advise"):
        said = refused(command, vectors, "--task", "poetry", "--data", pairs)
        assert "'poetry' is not one of" in said
        assert "'sts'" in said


def test_a_diagnosis_has_nothing_to_save(planted, texts):
    for option in ("--save", "--fit-on", "--repairs", "--option", "--transductive"):
        value = () if option == "--transductive" else (texts,)
        said = refused("advise", planted[0], "--data", texts, option, *value)
        assert said == f"advise: {option} needs --task, got none. Name a task.\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rate", 2), "--rate must be a number in (0, 1), got 2"),
        (("--rate", 1e-9), "--rate must be at least 0.00051 with 19,900 pairs of 200 rows"),
        (("--n-pairs", 5), "must be more than 10 pairs of different rows, got 5 from 200 rows"),
        (("--score", "nan"), "--score"),
        (("--score", 60), "--score"),
        (("--repair", "no.safetensors"), "does not exist"),
        (("--n-pairs", 0), "--n-pairs"),
        (("--save", "no/folder/calibrator"), "existing folder"),
    ],
)
def test_calibrate_refuses_in_one_line(planted, options, message):
    said = refused("calibrate", planted[0], "--column", "vector", *options)
    assert message in said


def test_the_least_rate_that_is_named_is_one_that_works(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((10, 4)))
    said = refused("calibrate", tmp_path / "x.npy")
    least = re.search(r"--rate must be at least (\S+) with 45 pairs of 10 rows", said)[1]
    done("calibrate", tmp_path / "x.npy", "--rate", least)


# Progress


SLOWLY = """
import sys, time
from isotropy import cli
from isotropy.evidence import bench

outcomes = bench.Bench.outcomes

def slowly(*arguments):
    time.sleep(0.3)
    return outcomes(*arguments)

bench.Bench.outcomes = slowly
from rich.progress import Progress

def drawn(method):
    def call(self, *arguments, **options):
        method(self, *arguments, **options)
        self.refresh()
    return call

Progress.advance, Progress.update = drawn(Progress.advance), drawn(Progress.update)
cli.app(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["compare", "advise"])
def test_a_terminal_gets_a_bar_of_repairs(planted, command):
    options = {"compare": ("--repairs", "center", "--repairs", "whiten"), "advise": ("--budget", 2)}
    ours, theirs = pty.openpty()
    arguments = map(str, line(command, planted, "--json", *options[command]))
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-c", SLOWLY, *arguments],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment,
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
        assert json.loads(process.stdout.read())
    os.close(ours)
    assert process.returncode == 0
    text = shown.decode()
    assert "pairs" in text
    assert "1/2" in text or "1/3" in text
    assert "repairs" in text


def test_a_pipe_gets_the_result_alone(planted):
    command = line("advise", planted, "--json", "--budget", 2)
    result = subprocess.run(
        [sys.executable, "-m", "isotropy", *map(str, command)],
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert set(json.loads(result.stdout)) >= PROMISED


def test_a_folder_that_is_neither_model_nor_vectors_gets_the_line_of_a_model(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "x.txt").write_text("a text\n")
    (tmp_path / "pairs.tsv").write_text("score\tsentence1\tsentence2\n1\ta\tb\n2\tc\td\n")
    line = refused("compare", tmp_path / "texts", "--task", "sts", "--data", tmp_path / "pairs.tsv")
    assert "holds no model" in line
