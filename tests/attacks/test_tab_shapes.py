"""Sets as their authors distribute them are read in one command: files of the same shape."""

import gzip
import json
import string

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isotropy.errors import InputError
from isotropy.tasks import open_task

WORDS = [a + b for a in "btms" for b in ("ank", "est", "oon", "ill", "ax", "ug", "it", "ap")]
PAIRS = [(WORDS[i], WORDS[(3 * i + 1) % 32], round(i * 10 / 31, 2)) for i in range(32)]
SENTENCES = [f"A {w} is near the {v} ." for w, v, _ in PAIRS]
OTHERS = [f'The {v}, so they say, "is" a {w} .' for w, v, _ in PAIRS]
LABELS = ["ENTAILMENT", "NEUTRAL"]


def rows(separator, header, cells, end="\n"):
    lines = [header] if header else []
    return end.join([*lines, *(separator.join(map(str, row)) for row in cells)]) + end


def numbered(function):
    return [function(i, SENTENCES[i], OTHERS[i], PAIRS[i][2]) for i in range(32)]


def quoted(*cells):
    return ",".join('"' + str(cell).replace('"', '""') + '"' for cell in cells)


PLAIN = [s.replace('"', "").replace(",", "") for s in OTHERS]
SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\tSemEval_set"
SICK_ROWS = numbered(
    lambda i, a, b, s: (i, a, b, s, LABELS[i % 2], ("TRAIN", "TRIAL", "TEST")[i % 3])
)
SIMLEX = "word1\tword2\tPOS\tSimLex999\tconc(w1)\tconc(w2)\tconcQ\tAssoc(USF)\tSimAssoc333\tSD"
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
MRPC = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"
STSB = "genre,filename,year,id,score,sentence1,sentence2"

SHAPES = {
    # name: (task, file, content, options of the command)
    "SICK for relatedness": ("sts", "SICK.txt", rows("\t", SICK, SICK_ROWS), ()),
    "SICK for entailment": (
        "classification", "SICK.txt", rows("\t", SICK, SICK_ROWS), ("--option", "head=logistic"),
    ),
    "SICK with CRLF": ("sts", "SICK_train.txt", rows("\t", SICK, SICK_ROWS, "\r\n"), ()),
    "SICK packed": ("sts", "SICK.txt.gz", rows("\t", SICK, SICK_ROWS), ()),
    "SimLex-999": (
        "word-similarity", "SimLex-999.txt",
        rows("\t", SIMLEX, [(*p[:2], "N", p[2], 1, 2, 3, 0.1, 0, 1) for p in PAIRS]), (),
    ),
    "WordSim-353 with commas": (
        "word-similarity", "combined.csv",
        rows(",", "Word 1,Word 2,Human (mean)", PAIRS, "\r\n"), (),
    ),
    "WordSim-353 with tabs": (
        "word-similarity", "combined.tab", rows("\t", "Word 1\tWord 2\tHuman (mean)", PAIRS), (),
    ),
    "MEN": (
        "word-similarity", "MEN_dataset_natural_form_full", rows(" ", "", PAIRS),
        ("--header", "word1,word2,score"),
    ),
    "MEN as .txt": (
        "word-similarity", "men.txt", rows(" ", "", PAIRS), ("--header", "word1,word2,score"),
    ),
    "RW": (
        "word-similarity", "rw.txt",
        rows("\t", "", [(*p, *range(10)) for p in PAIRS]), ("--header", "word1,word2,score"),
    ),
    "SimVerb-3500": (
        "word-similarity", "SimVerb-3500.txt",
        rows("\t", "", [(p[0], p[1], "V", p[2], "NONE") for p in PAIRS]),
        ("--header", "word1,word2,_,score"),
    ),
    "MTurk-771": (
        "word-similarity", "MTURK-771.csv", rows(",", "", PAIRS),
        ("--header", "word1,word2,score"),
    ),
    "RG-65 with semicolons": (
        "word-similarity", "rg65.csv", rows(";", "", PAIRS), ("--header", "word1,word2,score"),
    ),
    "TREC's questions": (
        "classification", "train_5500.label",
        rows(" ", "", numbered(lambda i, a, b, s: (("DESC:manner", "NUM:date")[i % 2], b))),
        ("--header", "label,text"),
    ),
    "TREC's questions as .txt": (
        "clustering", "train_5500.txt",
        rows(" ", "", numbered(lambda i, a, b, s: (("DESC:manner", "NUM:date")[i % 2], b))),
        ("--header", "label,text"),
    ),
    "MRPC": (
        "pair-classification", "msr_paraphrase_train.txt",
        rows("\t", MRPC, numbered(lambda i, a, b, s: (i % 2, i, i + 9, b, a)), "\r\n"), (),
    ),
    "MRPC with a head": (
        "classification", "msr_paraphrase_train.txt",
        rows("\t", MRPC, numbered(lambda i, a, b, s: (i % 2, i, i + 9, b, a))), (),
    ),
    "STS-B's own": (
        "sts", "sts-dev.csv",
        "".join(
            "\t".join(map(str, ("main-news", "MSRpar", 2012, i, p[2], OTHERS[i], SENTENCES[i])))
            + ("\tlicence\tsource\n" if i % 3 == 0 else "\n")
            for i, p in enumerate(PAIRS)
        ),
        ("--header", STSB),
    ),
    "GLUE's STS-B": (
        "sts", "dev.tsv",
        rows("\t", "index\tgenre\tsentence1\tsentence2\tscore",
             numbered(lambda i, a, b, s: (i, "main", b, a, s))), (),
    ),
    "QQP": (
        "pair-classification", "quora_duplicate_questions.tsv",
        rows("\t", QQP, numbered(lambda i, a, b, s: (i, i, i, b, a, i % 2))), (),
    ),
    "QQP with every cell quoted": (
        "pair-classification", "train.tsv",
        "\n".join(
            "\t".join(f'"{cell}"' for cell in line.split("\t"))
            for line in rows("\t", QQP, numbered(
                lambda i, a, b, s: (i, i, i, a, PLAIN[i], i % 2))).splitlines()
        ), (),
    ),
    "QQP of Kaggle": (
        "pair-classification", "train.csv",
        "\n".join([quoted(*QQP.split("\t")), *numbered(
            lambda i, a, b, s: quoted(i, i, i, b, a, i % 2))]), (),
    ),
    "AG News": (
        "classification", "train.csv",
        "\n".join(numbered(lambda i, a, b, s: quoted(1 + i % 3, a, b))),
        ("--header", "label,title,text"),
    ),
    "banking77": (
        "classification", "train.csv",
        "text,category\n" + "\n".join(
            numbered(lambda i, a, b, s: f'{quoted(b)},{("card_arrival", "top_up")[i % 2]}')), (),
    ),
    "CLINC": (
        "classification", "clinc.jsonl",
        "\n".join(numbered(
            lambda i, a, b, s: json.dumps({"text": b, "intent": ["pay", "bank"][i % 2]}))), (),
    ),
    "utterances with a name of their own": (
        "clustering", "x.jsonl",
        "\n".join(numbered(
            lambda i, a, b, s: json.dumps({"said": b, "domain": ["pay", "bank"][i % 2]}))),
        ("--option", "text=said", "--option", "label=domain"),
    ),
    "SNLI": (
        "classification", "snli_1.0_dev.jsonl",
        "\n".join(numbered(lambda i, a, b, s: json.dumps(
            {"gold_label": "-" if i == 5 else LABELS[i % 2], "sentence1": a, "sentence2": b}))),
        (),
    ),
    "CoLA's own": (
        "classification", "in_domain_train.tsv",
        rows("\t", "", numbered(lambda i, a, b, s: ("gj04", i % 2, "*" if i % 2 else "", b))),
        ("--header", "source,label,mark,text"),
    ),
    "columns in capitals": (
        "sts", "x.csv", rows(",", "SENTENCE 1,Sentence 2,Similarity", numbered(
            lambda i, a, b, s: (a, PLAIN[i], s))), (),
    ),
    "s1 and s2": (
        "sts", "x.tsv", rows("\t", "s1\ts2\tgold", numbered(lambda i, a, b, s: (a, b, s))), (),
    ),
    "query and document": (
        "pair-classification", "x.tsv",
        rows("\t", "query\tdocument\tlabel", numbered(lambda i, a, b, s: (a, b, i % 2))), (),
    ),
    "a score with a name of its own": (
        "sts", "x.tsv", rows("\t", "one\ttwo\tgrade", numbered(lambda i, a, b, s: (a, b, s))),
        ("--option", "text=one,two", "--option", "score=grade"),
    ),
}  # fmt: skip


def vectors(texts):
    """A file of vectors for these texts."""
    rng = np.random.default_rng(0)
    flat = pa.array(rng.normal(size=(len(texts), 6)).ravel())
    column = pa.FixedSizeListArray.from_arrays(flat, 6)
    pq.write_table(pa.table({"text": texts, "vector": column}), "v.parquet")


def everything():
    return sorted({*SENTENCES, *OTHERS, *PLAIN, *WORDS})


@pytest.mark.parametrize("name", SHAPES)
def test_a_set_as_it_is_distributed_is_read_in_one_command(name, done, folder):
    kind, file, content, options = SHAPES[name]
    data = content.encode()
    (folder / file).write_bytes(gzip.compress(data) if file.endswith(".gz") else data)
    vectors(everything())
    command = ("compare", "v.parquet", "--task", kind, "--data", file, *options)
    shown = json.loads(done(*command, "--repairs", "center", "--json").stdout)
    n_items = {"SICK": 11, "SNLI": 31}.get(name.split()[0], 32)  # of SICK the part TRIAL
    assert shown["results"][0]["n_items"] == n_items, shown


def written(folder, files):
    for name, content in files.items():
        path = folder / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder / "set"


def smart(texts, title=False, ids=None):
    found = []
    for i, text in enumerate(texts):
        number = ids[i] if ids else i + 1
        found.append(
            f".I {number}\n" + (f".T\nTitle {i}\n.A\nSomebody\n.B\n1961\n" if title else "")
        )
        first, _, rest = text.partition(" is ")
        found.append(f".W\n{first}\nis {rest}\n" + (".X\n1\t5\t1\n" if title else ""))
    return "".join(found)


N = 12
TITLED = [f"Title {i} {text}" for i, text in enumerate(SENTENCES[:N])]
QUERIES = [f"what is {w} ?" for w in WORDS[:N]]
BEIR = {
    "corpus.jsonl": "".join(
        json.dumps({"_id": f"d{i}", "title": f"Title {i}", "text": t, "metadata": {"url": "x"}})
        + "\n" for i, t in enumerate(SENTENCES[:N])
    ),
    "queries.jsonl": "".join(
        json.dumps({"_id": f"q{i}", "text": q, "metadata": {}}) + "\n"
        for i, q in enumerate(QUERIES)
    ),
}  # fmt: skip
GAPS = [f"{i:03}" for i in (1, 2, 4, 8, 9, 10, 12, 13, 15, 18, 20, 22)]
COLLECTIONS = {
    "BEIR": BEIR | {
        "qrels/test.tsv": "query-id\tcorpus-id\tscore\n"
        + "".join(f"q{i}\td{i}\t1\n" for i in range(N)),
    },
    "TREC's judgements": BEIR | {"qrels.txt": "".join(f"q{i} 0 d{i} 1\n" for i in range(N))},
    "TREC's judgements with tabs": BEIR | {
        "qrels/test.trec": "".join(f"q{i}\tQ0\td{i}\t{1 + i % 2}\n" for i in range(N)),
    },
    "TREC's judgements by suffix": BEIR | {
        "mine.qrels": "".join(f"q{i} 0 d{i} 1\nq{i} 0 d{(i + 1) % N} 0\n" for i in range(N)),
    },
    "CISI": {
        "CISI.ALL": smart(SENTENCES[:N], title=True),
        "CISI.QRY": smart([f"{q} is so" for q in QUERIES]),
        "CISI.REL": "".join(f"     {i + 1}     {i + 1}\t0\t0.000000\n" for i in range(N)),
    },
    "CACM": {
        "cacm.all": smart(SENTENCES[:N], title=True),
        "query.text": smart([f"{q} is so" for q in QUERIES]),
        "qrels.text": "".join(f"{i + 1:02} {i + 1:04}  0 0\n" for i in range(N)),
        "README": "about",
    },
    "Cranfield": {
        "cran.all.1400": smart(SENTENCES[:N], title=True),
        "cran.qry": smart([f"{q} is so" for q in QUERIES], ids=GAPS),
        "cranqrel": "".join(f"{i + 1} {i + 1} {1 + i % 4}\n" for i in range(N)),
        "cranqrel.readme": "codes",
    },
    "Medline": {
        "MED.ALL": smart(SENTENCES[:N]),
        "MED.QRY": smart([f"{q} is so" for q in QUERIES]),
        "MED.REL": "".join(f"{i + 1} 0 {i + 1} 1\n" for i in range(N)),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_search_as_it_is_distributed_is_read_in_one_command(name, done, folder):
    source = written(folder, COLLECTIONS[name])
    task = open_task("retrieval", source)
    assert task.n_items == N
    judged = task.relevance.toarray()
    assert (judged > 0).sum() == N
    assert np.array_equal(np.argmax(judged, axis=1), np.arange(N))
    if name == "Cranfield":  # code 1 is the best
        assert np.diag(judged).tolist() == [4 - i % 4 for i in range(N)]
    vectors(list(map(str, task.texts)))
    command = ("compare", "v.parquet", "--task", "retrieval", "--data", "set")
    shown = json.loads(done(*command, "--repairs", "center", "--json").stdout)
    assert shown["results"][0]["n_items"] == N


def test_smart_documents_are_title_and_text_and_queries_their_text(folder):
    task = open_task("retrieval", written(folder, COLLECTIONS["CISI"]))
    assert task.corpus == TITLED
    assert task.texts[0] == "what is bank ? is so"


def test_sick_in_one_file_has_its_parts(folder):
    (folder / "SICK.txt").write_text(SHAPES["SICK for relatedness"][2])
    task = open_task("sts", "SICK.txt")
    assert {part: len(items) for part, items in task.parts.items()} == {
        "train": 11, "dev": 11, "test": 10,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "file", "content", "says"),
    [
        ("word-similarity", "men.txt", rows(" ", "", PAIRS), "--header word1,word2,..."),
        ("word-similarity", "rw.txt", rows("\t", "", PAIRS), "the file has no header"),
        ("sts", "x.csv", rows(",", "", [("a b", "c", 0.5)] * 3), "the file has no header"),
        (
            "classification",
            "x.label",
            "A:b how do you\nC:d why, then\n",
            "--header label",
        ),
        ("classification", "x.tsv", "kind\ttext\nx\ty\nz\tw\n", "--option label=NAME"),
        ("clustering", "x.tsv", "label\tbody\nx\ty\nz\tw\n", "--option text=NAME"),
        ("sts", "x.tsv", "a\tsentence1\tsentence2\n1\tx\ty\n", "--option score=NAME"),
        ("sts", "x.tsv", "score\tleft\tright\n1\tx\ty\n", "--option text=NAME"),
    ],
)
def test_what_is_missing_is_named_with_what_to_do(kind, file, content, says, refused, folder):
    (folder / file).write_text(content)
    vectors(everything())
    refused("compare", "v.parquet", "--task", kind, "--data", file, says=says)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("", "header must name each column once"),
        ("word1,word1,score", "header must name each column once"),
        ("word1,,score", "header must name each column once"),
        ("_,_", "header must name each column once"),
        (",".join(string.ascii_letters), "must have the 52 columns"),
        ("a" * 10_000, "must have the columns"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(header, says, refused, folder):
    (folder / "men.txt").write_text(rows(" ", "", PAIRS))
    vectors(everything())
    command = ("--task", "word-similarity", "--data", "men.txt", "--header", header)
    refused("compare", "v.parquet", *command, says=says)


def test_a_header_goes_with_a_task_and_with_tables(refused, folder):
    vectors(everything())
    (folder / "x.jsonl").write_text('{"text": "a", "label": 1}\n' * 2)
    (folder / "x.txt").write_text("a\nb\nc\nd\n")
    refused("advise", "v.parquet", "--data", "x.txt", "--header", "a", says="needs --task")
    task = ("--task", "pseudo", "--header", "a")
    refused(
        "advise", "v.parquet", "--data", "x.txt", *task, says="can't be used with --task pseudo"
    )
    task = ("--task", "retrieval", "--header", "a")
    refused("advise", "v.parquet", "--data", "x.txt", *task, says="can't be used with --task")
    task = ("--task", "classification", "--header", "label,text")
    refused(
        "advise", "v.parquet", "--data", "x.jsonl", *task, says="has column names in every line"
    )
    with pytest.raises(InputError, match="must name 1 columns, got 'a,b'"):
        open_task("clustering", "x.jsonl", text="a,b")
