"""Readers on small files: every layout that is understood, and what is wrong with the others."""

import gzip
import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isotropy.errors import InputError, IsotropyWarning, MissingExtraError
from isotropy.models.texts import Span
from isotropy.tasks import (
    STS,
    Classification,
    Clustering,
    PairClassification,
    Retrieval,
    WordInContext,
    WordSimilarity,
    open_task,
)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def tsv(path, *rows):
    return write(path, "".join("\t".join(map(str, row)) + "\n" for row in rows))


def jsonl(path, *rows):
    return write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def sizes(task):
    return {part: len(items) for part, items in task.parts.items()}


HEADER = ("score", "sentence1", "sentence2")
ROWS = [(5, "a cat", "a kitten"), (1, "a cat", "a car"), (0.5, "a van", "a dog")]


def test_a_folder_has_a_file_for_each_part(tmp_path):
    folder = tmp_path / "stsx"
    tsv(folder / "test.tsv", HEADER, *ROWS)
    tsv(folder / "train.tsv.gz", HEADER, *ROWS[:2], ("-", "not", "labelled"))
    jsonl(folder / "validation_matched.jsonl", dict(zip(HEADER, ROWS[2], strict=True)))
    jsonl(folder / "dev2.jsonl.gz", dict(zip(HEADER, ROWS[1], strict=True)))
    write(folder / "SOURCE.md", "where it is from\tsome place\n")
    tsv(folder / "other.tsv", ("a",), ("b",))
    with pytest.warns(IsotropyWarning, match=r"'other\.tsv' in 'stsx' was not read"):
        task = STS.read(folder)
    assert task.name == "stsx"
    assert sizes(task) == {"train": 2, "dev": 2, "test": 3}
    assert task.n_unlabelled == 1
    assert "not" not in task.texts
    assert task.scores[task.parts["test"]].tolist() == [5, 1, 0.5]


def test_a_file_by_itself_is_undivided_whatever_its_name(tmp_path):
    task = STS.read(tsv(tmp_path / "dev.tsv", HEADER, *ROWS))
    assert task.name == "dev"
    assert sizes(task) == {"all": 3}
    assert task.groups.tolist() == [0, 0, 1]


def test_every_format_holds_the_same_task(tmp_path):
    columns = dict(zip(HEADER, map(list, zip(*ROWS, strict=True)), strict=True))
    rows = [dict(zip(HEADER, row, strict=True)) for row in ROWS]
    pq.write_table(pa.table(columns | {"score": [5.0, 1, 0.5]}), tmp_path / "x.parquet")
    comma = "score,sentence1,sentence2\n" + "".join(f'{a},"{b}",{c}\r\n' for a, b, c in ROWS)
    files = [
        tsv(tmp_path / "x.tsv", HEADER, *ROWS),
        tsv(tmp_path / "x.tsv.gz", HEADER, *ROWS),
        jsonl(tmp_path / "x.jsonl", *rows),
        write(tmp_path / "x.csv", comma),
        tmp_path / "x.parquet",
    ]
    for file in files:
        task = STS.read(file)
        assert task.texts == ["a cat", "a kitten", "a car", "a van", "a dog"]
        assert task.scores.tolist() == [5, 1, 0.5]


def test_text_is_taken_as_it_is(tmp_path):
    rows = [(5, '"quoted', "naïve\u2028one line"), (1, "  spaces ", "x")]
    text = "\ufeff" + "\n\n".join("\t".join(map(str, row)) for row in [HEADER, *rows]) + "\r\n"
    task = STS.read(write(tmp_path / "x.tsv", text))
    assert task.texts == ['"quoted', "naïve\u2028one line", "  spaces ", "x"]
    comma = 'score,sentence1,sentence2\n5,"one, ""two""\nthree","a\u2028b"\n1,x,y\n'
    task = STS.read(write(tmp_path / "x.csv", comma))
    assert task.texts == ['one, "two"\nthree', "a\u2028b", "x", "y"]


def test_subsets_come_from_their_column_or_from_undivided_files(tmp_path):
    tsv(tmp_path / "a" / "test.tsv", ("subset", *HEADER), *(("news", *row) for row in ROWS))
    assert STS.read(tmp_path / "a").subsets.tolist() == ["news"] * 3
    for name in ("headlines", "images"):
        tsv(tmp_path / "b" / f"{name}.tsv", HEADER, *ROWS)
    task = STS.read(tmp_path / "b", combine="wmean")
    assert task.subsets.tolist() == ["headlines"] * 3 + ["images"] * 3
    assert sizes(task) == {"all": 6}
    assert task.groups.tolist() == [0, 0, 1] * 2


def test_sick_in_both_its_layouts(tmp_path):
    header = ("pair_id", "score", "entailment", "sentence1", "sentence2")
    tsv(tmp_path / "sick" / "train.tsv", header, *((1, a, "N", b, c) for a, b, c in ROWS))
    assert STS.read(tmp_path / "sick").scores.tolist() == [5, 1, 0.5]
    header = ("pair_ID", "sentence_A", "sentence_B", "relatedness_score")
    tsv(tmp_path / "own" / "test.tsv", header, *((1, b, c, a) for a, b, c in ROWS))
    assert STS.read(tmp_path / "own").scores.tolist() == [5, 1, 0.5]


def test_word_sets_are_strata(tmp_path):
    words = [("sun", "moon", 7, "n"), ("sun", "tax", 1, "n")]
    tsv(tmp_path / "wordsim" / "one.tsv", ("word1", "word2", "score", "pos"), *words)
    tsv(tmp_path / "wordsim" / "two.tsv", ("word1", "word2", "score"), *(w[:3] for w in words))
    task = open_task("word-similarity", tmp_path / "wordsim", similarity="dot")
    assert (task.combine, task.similarity) == ("mean", "dot")
    assert task.n_listed == {"one": 2, "two": 2}
    assert task.groups.tolist() == [0, 1, 0, 1]
    single = WordSimilarity.read(tmp_path / "wordsim" / "two.tsv")
    assert single.n_listed == {"two": 2}


def searchable(folder):
    jsonl(
        folder / "corpus.jsonl.gz",
        {"_id": "d1", "title": "Cats", "text": "Cats purr."},
        {"_id": "d2", "title": "", "text": ""},
        {"_id": "d3", "title": "Vans", "text": "They drive."},
        {"_id": "d4", "text": "Neither."},
    )
    jsonl(folder / "queries.jsonl", *({"_id": q, "text": f"query {q}"} for q in "123456"))


JUDGED = [("1", "d1", 2), ("2", "d3", 1), ("2", "d1", 0), ("3", "d2", 1), ("4", "d4", -1)]


def test_cranfields_layout(tmp_path):
    folder = tmp_path / "cran"
    searchable(folder)
    tsv(
        folder / "qrels.tsv", ("query-id", "corpus-id", "score", "code"), *((*j, 1) for j in JUDGED)
    )
    task = open_task("retrieval", folder)
    assert task.name == "cran"
    assert task.corpus == ["Cats purr.", "Vans They drive.", "Neither."]
    assert task.texts == ["query 1", "query 2", *task.corpus]
    assert task.relevance.toarray().tolist() == [[2, 0, 0], [0, 1, 0]]
    assert task.n_unlabelled == 4  # judged without text, as irrelevant, and twice not at all
    assert sizes(task) == {"all": 2}


def test_beirs_layout(tmp_path):
    searchable(tmp_path)
    header = ("query-id", "corpus-id", "score")
    tsv(tmp_path / "qrels" / "test.tsv", header, *JUDGED)
    tsv(tmp_path / "qrels" / "train.tsv", header, ("5", "d4", 1), ("1", "d4", 1), ("5", "d9", 1))
    task = Retrieval.read(tmp_path, name="mine")
    assert task.name == "mine"
    assert sizes(task) == {"train": 2, "test": 2}
    assert task.relevance.toarray().tolist() == [[2, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]
    assert task.groups.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (("idx", "label", "sentence1", "sentence2"), (0, "entailment", "a", "b")),
        (("label", "id1", "id2", "sentence1", "sentence2"), (1, 5, 6, "a", "b")),
        (("idx", "label", "question", "sentence"), (0, "entailment", "a", "b")),
        (("label", "premise", "hypothesis"), ("neutral", "a", "b")),
        (("id", "question1", "question2", "label"), (3, "a", "b", 1)),
    ],
    ids=["rte", "mrpc", "qnli", "mnli", "qqp"],
)
def test_glue_pairs(columns, row, tmp_path):
    other = [f"{value}2" for value in row]
    task = Classification.read(tsv(tmp_path / "dev.tsv", columns, row, other))
    assert task.texts == ["a", "b", "a2", "b2"]
    assert len(task.classes) == 2


def test_pairs_and_labels_of_other_sets(tmp_path):
    rows = [{"question": f"q{i}", "passage": f"p{i}", "label": i > 0, "idx": i} for i in range(3)]
    jsonl(tmp_path / "boolq" / "dev.jsonl.gz", *rows)
    jsonl(tmp_path / "boolq" / "train32_fewglue.jsonl", *rows)
    task = Classification.read(tmp_path / "boolq")
    assert task.classes == ["False", "True"]
    assert sizes(task) == {"train": 3, "dev": 3}
    assert PairClassification.read(tmp_path / "boolq").labels.tolist() == [False, True, True] * 2
    tsv(tmp_path / "wnli" / "dev.tsv", ("idx", "label", "sentence1", "sentence2"), (0, 1, "a", "b"))
    tsv(tmp_path / "wnli" / "train.tsv", ("label", "sentence1", "sentence2"), (0, "a", "c"))
    tsv(tmp_path / "wnli" / "test.tsv", ("idx", "sentence1", "sentence2"), (0, "x", "y"))
    task = Classification.read(tmp_path / "wnli")
    assert sizes(task) == {"train": 1, "dev": 1}
    assert task.n_unlabelled == 1


def test_single_texts_and_their_usual_metric(tmp_path):
    for name, metric in (("cola", "matthews"), ("sst2", "accuracy")):
        tsv(
            tmp_path / name / "dev.tsv", ("label", "sentence"), (1, "it works ."), (0, "works it .")
        )
        task = open_task("classification", tmp_path / name)
        assert task.metric == metric
        assert task.texts == ["it works .", "works it ."]
    tsv(tmp_path / "mrpc.tsv", ("label", "sentence1", "sentence2"), (1, "a", "b"), (0, "c", "d"))
    assert Classification.read(tmp_path / "mrpc.tsv").metric == "f1"
    assert Classification.read(tmp_path / "mrpc.tsv", metric="accuracy").metric == "accuracy"


def test_trecs_fine_classes_are_told_apart_by_the_coarse_ones(tmp_path):
    rows = [("NUM", "other", "how far ?"), ("LOC", "other", "where ?"), ("LOC", "city", "whence ?")]
    file = tsv(tmp_path / "trec.tsv", ("coarse", "fine", "question"), *rows)
    assert Classification.read(file).classes == ["LOC", "NUM"]
    fine = Classification.read(file, label="fine")
    assert fine.classes == ["LOC:city", "LOC:other", "NUM:other"]
    assert Clustering.read(file, label="fine").classes == fine.classes


def test_words_in_context_are_found_by_word_or_by_character(tmp_path):
    sentences = ("Room and  board .", "He nailed boards .")
    header = ("label", "lemma", "pos", "token_idx", "sentence1", "sentence2")
    rows = [("F", "board", "N", "2-2", *sentences), ("T", "room", "N", "0-0", *sentences)]
    task = WordInContext.read(tsv(tmp_path / "wic.tsv", header, *rows, ("-", *rows[0][1:])))
    assert task.texts[:2] == [Span(sentences[0], 10, 15), Span(sentences[1], 10, 16)]
    assert task.labels.tolist() == [False, True]
    assert task.n_unlabelled == 1
    header = ("label", "sentence1", "sentence2", "start1", "end1", "start2", "end2")
    rows = [(1, *sentences, 10, 15, 10, 16), (0, *sentences, 0, 4, 0, 2)]
    assert WordInContext.read(tsv(tmp_path / "x.tsv", header, *rows)).texts[:2] == task.texts[:2]


def refused(match, call, *arguments, **options):
    with pytest.raises((InputError, MissingExtraError), match=match) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    named = call.__self__.__name__ if isinstance(caught.value, InputError) else ""
    assert message.startswith(named)


def test_what_is_wrong_in_a_file_is_named_with_its_line(tmp_path):
    head = "score\tsentence1\tsentence2\n"
    for text, match in [
        (head + "1\ta\tb\n\n2\tc\n", r"x\.tsv' must have 3 cells in every line, got 2 in line 4"),
        (head + "1\ta\tb\n2\tc\t \n", r"x\.tsv, line 3 must have text in 'sentence2', got none"),
        (head + "1\ta\tb\nhigh\tc\td\n", r"line 3 must have a number in 'score', got 'high'"),
        (head + "1\ta\tb\nnan\tc\td\n", r"scores must be finite, got nan for 1 item"),
        (head + "1\ta\tb\n1\tc\td\n", r"scores of 'x' must differ, got 1 for every pair"),
        (head + "1\ta\tb\n", r"'x' must have at least 2 items, got 1"),
        (head + "-\ta\tb\n\tc\td\n", r"'x' must have at least 2 items, got 0"),
        (head, r"must have rows, got none"),
        ("", r"must have rows, got none"),
        (
            "value\tsentence1\tsentence2\n1\ta\tb\n",
            "must have the columns 'score' or .*got 'value'",
        ),
        (
            "score\tleft\tright\n1\ta\tb\n",
            "columns 'sentence1', 'sentence2' or .*got 'score', 'left'",
        ),
    ]:
        refused(match, STS.read, write(tmp_path / "x.tsv", text))
    bad = head.encode() + b"1\ta\tb\n2\tcaf\xe9\td\n"
    refused(r"must be UTF-8, got byte 0xe9 in line 3", STS.read, write(tmp_path / "x.tsv", bad))
    refused("0xe9 in line 3", STS.read, write(tmp_path / "x.tsv.gz", bad))
    for name, text, match in [
        ("x.jsonl", '{"score": 1}\n{"score"\n', "is not valid JSON in line 2"),
        ("x.jsonl", "[1, 2]\n", "must hold a JSON object a line, got .* in line 1"),
        ("x.jsonl", '{"score": 1, "sentence1": "a", "sentence2": null}\n', "text in 'sentence2'"),
        (
            "x.csv",
            'score,sentence1,sentence2\n1,"a,b\n',
            "every quote closed, .* line 2",
        ),
        ("x.parquet", "no Parquet", "is damaged or not a Parquet file"),
        ("x.txt", "a line", "must have rows, got none"),
        ("x.pdf", b"%PDF\0\1\n", r"must be a \.tsv, .* file, got binary data"),
    ]:
        refused(match, STS.read, write(tmp_path / name, text))
    (tmp_path / "y.tsv.gz").write_bytes(gzip.compress(b"score\n" * 99)[:20])
    refused(r"is damaged .*\(Compressed file ended", STS.read, tmp_path / "y.tsv.gz")
    (tmp_path / "y.tsv.gz").write_bytes(b"not gzip")
    refused(r"is damaged .*\(Not a gzipped file", STS.read, tmp_path / "y.tsv.gz")


def test_what_is_wrong_with_a_folder_is_said(tmp_path):
    refused("must hold .* files, got nothing", STS.read, tmp_path)
    write(tmp_path / "README.md", "text")
    refused(r"must hold .* files, got README\.md", STS.read, tmp_path)
    tsv(tmp_path / "dev.tsv", HEADER, *ROWS)
    tsv(tmp_path / "dev.tsv.gz", HEADER, *ROWS)
    refused(r"each table once, got 'dev\.tsv' and 'dev\.tsv\.gz'", STS.read, tmp_path)
    refused(r"'.*none\.tsv' does not exist", STS.read, tmp_path / "none.tsv")
    refused(r"'./none' does not exist", STS.read, "./none")
    refused("data must be a folder, got", Retrieval.read, tmp_path / "dev.tsv")
    (tmp_path / "dev.tsv").unlink()
    refused("there is no corpus and no queries and no qrels", Retrieval.read, tmp_path)


def test_where_a_word_is_must_be_said(tmp_path):
    header = ("label", "token_idx", "sentence1", "sentence2")
    for place in ("1-9", "1", "a-b", "0-0-0"):
        file = tsv(tmp_path / "x.tsv", header, ("T", "0-0", "a", "b"), ("F", place, "a b", "c d"))
        refused(f"line 3 must say where the word is .*, got {place}", WordInContext.read, file)


def glue(datasets):
    names = ["not_equivalent", "equivalent"]
    features = datasets.Features(
        {
            "sentence1": datasets.Value("string"),
            "sentence2": datasets.Value("string"),
            "label": datasets.ClassLabel(names=names),
        }
    )
    columns = {"sentence1": ["a", "b"], "sentence2": ["c", "d"]}
    return datasets.DatasetDict(
        {
            "train": datasets.Dataset.from_dict(columns | {"label": [1, 0]}, features),
            "validation": datasets.Dataset.from_dict(columns | {"label": [0, 1]}, features),
            "test": datasets.Dataset.from_dict(columns | {"label": [-1, -1]}, features),
        }
    )


def test_a_folder_that_datasets_saved(tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    splits = glue(datasets)
    splits.save_to_disk(tmp_path / "mrpc")
    task = Classification.read(tmp_path / "mrpc")
    assert sizes(task) == {"train": 2, "dev": 2}
    assert task.n_unlabelled == 2
    assert task.classes == ["equivalent", "not_equivalent"]
    assert task.classes[task.positive] == "equivalent"
    splits["train"].save_to_disk(tmp_path / "one")
    assert sizes(PairClassification.read(tmp_path / "one")) == {"all": 2}


def test_a_data_set_of_the_hub_by_name(monkeypatch):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    asked = []

    def load(name, configuration=None):
        asked.append((name, configuration))
        if configuration == "mrpc":
            return glue(datasets)
        columns = {"sentence1": ["a", "b"], "sentence2": ["c", "d"]}
        return datasets.DatasetDict(
            {
                "train": datasets.Dataset.from_dict(columns | {"label": [3.5, 1.0]}),
                "test": datasets.Dataset.from_dict(columns | {"label": [-1.0, -1.0]}),
            }
        )

    monkeypatch.setattr(datasets, "load_dataset", load)
    task = open_task("pair-classification", "nyu-mll/glue:mrpc")
    assert task.name == "mrpc"
    assert task.labels.tolist() == [True, False, False, True]
    scores = STS.read("nyu-mll/glue:stsb")
    assert scores.scores.tolist() == [3.5, 1.0]
    assert scores.n_unlabelled == 2
    assert STS.read("owner/sts").name == "sts"
    assert asked == [("nyu-mll/glue", "mrpc"), ("nyu-mll/glue", "stsb"), ("owner/sts", None)]


def test_a_search_of_the_hub_by_name(monkeypatch):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    tables = {
        "corpus": {"_id": ["d1", "d2"], "title": ["A", ""], "text": ["cat", "van"]},
        "queries": {"_id": ["1", "2"], "text": ["pets?", "cars?"]},
        "default": {"query-id": ["1", "2"], "corpus-id": ["d1", "d2"], "score": [1.0, 2.0]},
    }

    def load(name, configuration=None):
        split = "test" if configuration == "default" else configuration
        return {split: datasets.Dataset.from_dict(tables[configuration])}

    monkeypatch.setattr(datasets, "load_dataset", load)
    task = open_task("retrieval", "mteb/pets")
    assert task.name == "pets"
    assert task.texts == ["pets?", "cars?", "A cat", "van"]
    assert sizes(task) == {"test": 2}
    assert np.array_equal(task.relevance.toarray(), np.diag([1, 2]))


def test_the_hub_that_cannot_be_reached_gives_one_line(monkeypatch):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")

    def load(name, configuration=None):
        raise ConnectionError("Couldn't reach the Hub\nmore\nlines")

    monkeypatch.setattr(datasets, "load_dataset", load)
    refused(
        r"got 'owner/x': there is no such file, .*\(Couldn't reach the Hub\)", STS.read, "owner/x"
    )


def test_without_datasets_the_hub_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused(
        "'owner/x' is not a file or folder here, .* Run: pip install datasets", STS.read, "owner/x"
    )
    write(tmp_path / "dataset_dict.json", "{}")
    refused("was saved by the package datasets: .*pip install datasets", STS.read, tmp_path)
