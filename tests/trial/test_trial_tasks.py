"""Tasks of the trial: what is read, how it is divided and scored."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from isotropy.errors import InputError
from isotropy.trial import task_data
from isotropy.trial.task_data import TASKS, Part, TaskData, first, read_task, scores, split

from . import trial_data

SIZES = {  # published: train, dev
    "rte": (2490, 277),
    "mrpc": (3668, 408),
    "cola": (8551, 1043),
    "stsb": (5749, 1500),
    "wnli": (635, 71),
    "sst2": (67349, 872),
    "wic": (5428, 638),
    "multi30k": (29000, 1014),
}


@pytest.mark.data
@pytest.mark.parametrize("task", SIZES)
def test_sizes_are_the_published_ones(task, data):
    found = read_task(task, data)
    assert (len(found.train), len(found.evaluated)) == SIZES[task]
    assert found.divided


@pytest.mark.filterwarnings("ignore:.*was not read")  # a sample lies beside the part
@pytest.mark.data
@pytest.mark.parametrize("task", ["qnli", "cnndm", "wmt16-enro"])
def test_sets_without_training_rows_are_divided_once(task, data):
    found, again = read_task(task, data), read_task(task, data)
    assert not found.divided
    n = len(found.train) + len(found.evaluated)
    assert len(found.evaluated) == round(0.2 * n)
    assert found.train.texts == again.train.texts
    assert not set(found.train.texts) & set(found.evaluated.texts) or task != "cnndm"


def test_yes_is_the_class_that_f1_is_of(tmp_path):
    folder = trial_data.tasks(tmp_path)
    assert read_task("rte", folder).classes == ["entailment", "not_entailment"]
    assert read_task("rte", folder).positive == 0
    assert read_task("mrpc", folder).positive == 1


def task(name, classes=("0", "1")):
    part = Part([("a",)], np.zeros(1), np.array(["dev.tsv"]))
    return TaskData(name, TASKS[name], part, part, list(classes), True)


def part(labels, files="dev.tsv"):
    files = np.array([files] * len(labels) if isinstance(files, str) else files)
    return Part([("a",)] * len(labels), np.asarray(labels), files)


def one_hot(called):
    return np.eye(2)[called]


def test_scores_are_their_formulas():
    gold, called = [1, 1, 0, 0, 1, 0, 1], [1, 0, 0, 1, 1, 0, 1]
    tp, fp, fn, tn = 3, 1, 1, 2
    found = scores(task("mrpc"), part(gold), one_hot(called))
    assert found["f1"] == pytest.approx(2 * tp / (2 * tp + fp + fn))
    assert found["accuracy"] == pytest.approx(5 / 7)
    assert next(iter(found)) == "f1"
    matthews = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert scores(task("cola"), part(gold), one_hot(called))["matthews"] == pytest.approx(matthews)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 30))
    found = scores(task("stsb"), part(x), y)
    assert found["pearson"] == pytest.approx(np.corrcoef(x, y)[0, 1])
    ranks = [np.argsort(np.argsort(v)) for v in (x, y)]
    assert found["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1])


def test_a_model_that_calls_everything_the_same_scores_zero_and_nan():
    found = scores(task("cola"), part([0, 1, 1]), one_hot([1, 1, 1]))
    assert (found["matthews"], found["n_called"]) == (0, 1)
    assert scores(task("mrpc"), part([0, 1, 1]), one_hot([0, 0, 0]))["f1"] == 0
    assert math.isnan(scores(task("stsb"), part([0.0, 1.0, 2.0]), np.ones(3))["pearson"])


def test_parts_of_several_files_are_scored_apart():
    files = ["validation_matched", "validation_matched", "validation_mismatched"]
    found = scores(task("mnli"), part([0, 1, 1], files), one_hot([0, 1, 0]))
    assert found["accuracy_validation_matched"] == 1
    assert found["accuracy_validation_mismatched"] == 0


def test_generated_texts_are_scored_by_bleu_and_rouge():
    sacrebleu = pytest.importorskip("sacrebleu")
    pytest.importorskip("rouge_score")
    gold = np.array(["the cat sat on the mat", "a dog ran under the log"], dtype=object)
    texts = ["the cat sat on a mat", "a dog ran under the log"]
    found = scores(task("multi30k", ()), part(gold), texts)
    expected = sacrebleu.corpus_bleu(texts, [gold.tolist()]).score
    assert found["bleu"] == pytest.approx(expected / 100)
    found = scores(task("cnndm", ()), part(gold), texts)
    assert found["rouge1"] == pytest.approx((5 / 6 + 1) / 2)  # 5 of 6 words, both ways
    assert found["rouge2"] == pytest.approx((3 / 5 + 1) / 2)


def test_split_and_first_are_drawn_with_their_seed(tmp_path):
    train = read_task("rte", trial_data.tasks(tmp_path)).train
    rest, kept = split(train, 0.25, 3)
    assert (len(rest), len(kept)) == (36, 12)
    assert sorted(rest.texts + kept.texts) == sorted(train.texts)
    assert split(train, 0.25, 3)[1].texts == kept.texts
    assert split(train, 0.25, 4)[1].texts != kept.texts
    assert len(first(train, 10, 0)) == 10
    assert first(train, 1000, 0) is train
    with pytest.raises(InputError, match="got 0 and 48"):
        split(train, 0.001, 0)


def rewritten(folder, name, old, new):
    path = folder / name
    path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")


def test_labels_outside_of_the_range_are_named_with_their_line(tmp_path):
    folder = trial_data.tasks(tmp_path)
    lines = (folder / "stsb" / "dev.tsv").read_text().splitlines()
    cells = lines[4].split("\t")
    rewritten(folder, "stsb/dev.tsv", lines[4], "\t".join(["7.5", *cells[1:]]))
    with pytest.raises(InputError, match=r"dev.tsv, line 5 must have a score in \[0, 5\], got 7.5"):
        read_task("stsb", folder)
    lines = (folder / "rte" / "dev.tsv").read_text().splitlines()
    cells = lines[2].split("\t")
    rewritten(folder, "rte/dev.tsv", lines[2], "\t".join(["perhaps", *cells[1:]]))
    with pytest.raises(InputError, match=r"dev.tsv, line 3 must have one of the labels entailment"):
        read_task("rte", folder)


def test_a_task_of_one_class_or_without_the_wanted_part_is_refused(tmp_path):
    folder = trial_data.tasks(tmp_path)
    rewritten(folder, "rte/train.tsv", "not_entailment", "entailment")
    with pytest.raises(InputError, match=r"one of the labels|two classes"):
        read_task("rte", folder)
    with pytest.raises(InputError, match="part 'test', got dev, train"):
        read_task("cola", folder, "test")
    with pytest.raises(InputError, match="TASK must be one of"):
        read_task("glue", folder)


def test_rows_to_train_on_must_have_labels(tmp_path):
    """Otherwise the dev rows would be divided and trained on."""
    folder = trial_data.tasks(tmp_path)
    rewritten(folder, "rte/train.tsv", "label\t", "answer\t")
    with pytest.raises(InputError, match="must have labelled rows in its part 'train'"):
        read_task("rte", folder)


def test_a_folder_that_is_not_there_is_named(tmp_path, monkeypatch):
    def unreachable(name):
        raise InputError("data must be a file, a folder or a data set of the hub.")

    with pytest.raises(InputError, match=r"data must be a folder, got '.*none'"):
        read_task("rte", tmp_path / "none")
    monkeypatch.setattr(task_data.reading, "read_table", unreachable)
    with pytest.raises(InputError, match=r"there is no folder '.*rte', and data must be"):
        read_task("rte", tmp_path)


def test_wic_shows_the_word_before_its_sentences(tmp_path):
    for name in ("train", "dev"):
        trial_data.write(
            tmp_path / "wic",
            name,
            label=["T", "F"],
            lemma=["cat", "dog"],
            sentence1=["the cat sat", "a dog"],
            sentence2=["a cat", "dog ran"],
        )
    found = read_task("wic", tmp_path)
    assert found.train.texts[0] == ("cat: the cat sat", "a cat")
    assert found.classes == ["F", "T"]
    assert found.positive == 1


def test_pairs_in_a_column_of_their_own_and_lines_of_json_are_read(tmp_path):
    for name in ("train", "dev"):
        (tmp_path / "wmt16-enro").mkdir(exist_ok=True)
        (tmp_path / "boolq").mkdir(exist_ok=True)
        rows = [{"translation": {"en": f"cat {i}", "ro": f"pisica {i}"}} for i in range(3)]
        text = "\n".join(json.dumps(row) for row in rows)
        (tmp_path / "wmt16-enro" / f"{name}.jsonl").write_text(text)
        rows = [{"question": "is it", "passage": f"it is {i}", "label": i < 1} for i in range(3)]
        text = "\n".join(json.dumps(row) for row in rows)
        (tmp_path / "boolq" / f"{name}.jsonl").write_text(text)
    found = read_task("wmt16-enro", tmp_path).train
    assert (found.texts[1], found.labels[1]) == (("cat 1",), "pisica 1")
    found = read_task("boolq", tmp_path)
    assert found.classes == ["False", "True"]
    assert found.train.labels.tolist() == [1, 0, 0]
