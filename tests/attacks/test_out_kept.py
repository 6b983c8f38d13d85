"""What is there is kept: files that exist, folders of others, and every file of a source."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import isotropy
from isotropy.repairs import ScoreCalibrator
from isotropy.sources import guard, open_sink

from .conftest import snapshot

X = np.random.default_rng(0).standard_normal((40, 4))


@pytest.fixture
def files(folder):
    """A file of each kind that commands read, and folders of them."""
    np.save("x.npy", X)
    isotropy.Center().fit(X).save("r.safetensors")
    for name in ("many", "spark"):
        os.mkdir(name)
    for i in range(3):
        np.save(f"many/{i}.npy", X)
        rows = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 4)
        pq.write_table(pa.table({"embedding": rows}), f"spark/part-0000{i}.parquet")
    for name in ("t.txt", "e.json", "page.html"):
        (folder / name).write_text("somebody's own\n")
    return folder


EXISTING = {
    "repair --out": ["repair", "x.npy", "--method", "center", "--out", "many/0.npy"],
    "repair --save": ["repair", "x.npy", "--method", "center", "--save", "e.json"],
    "repair --save, --out new": ["repair", "x.npy", "--method", "center", "--out", "new.npy",
                                 "--save", "e.json"],
    "apply --out": ["apply", "r.safetensors", "x.npy", "--out", "many/0.npy"],
    "calibrate --save": ["calibrate", "x.npy", "--save", "e.json"],
    "report --out": ["report", "x.npy", "--out", "page.html"],
    "embed --out": ["embed", "no-model", "t.txt", "--out", "many/0.npy"],
    "layers --out": ["layers", "no-model", "t.txt", "--out", "page.html"],
    "advise --save": ["advise", "x.npy", "--task", "sts", "--data", "t.txt", "--save", "e.json"],
}  # fmt: skip


@pytest.mark.parametrize("case", EXISTING)
def test_a_file_that_exists_is_kept(case, files, refused):
    if case.startswith(("report", "layers")):
        pytest.importorskip("plotly")
    said = refused(*EXISTING[case], says="exists. Add --overwrite to replace it.")
    assert said.startswith(f"{case.split()[0]}: --")


@pytest.mark.parametrize("case", ["repair --out", "repair --save", "apply --out", "report --out"])
def test_a_file_that_exists_is_replaced_when_asked(case, files, done):
    if case.startswith("report"):
        pytest.importorskip("plotly")
    line = EXISTING[case]
    done(*line, "--overwrite", writes=[line[-1].split("/")[0]])


SOURCES = {  # what is read, and what is written, which is one of its files or all of them
    "a file of a glob": ("many/*.npy", "many/1.npy"),
    "a file of a deep glob": ("**/*.npy", "many/1.npy"),
    "a file of a folder": ("many", "many/1.npy"),
    "a file of a folder by its URL": ("file://{}/many", "many/1.npy"),
    "a file of a folder by a link": ("many", "link.npy"),
    "a file of a folder by a hard link": ("many", "hard.npy"),
    "the folder of a glob": ("many/*.npy", "many"),
    "the folder itself": ("many", "many"),
    "the folder with a slash": ("many/", "many/"),
    "the folder by a link": ("many", "door"),
    "the folder above": ("deep/many/*.npy", "deep"),
    "parts of Spark": ("spark", "spark"),
    "parts of Spark by a glob": ("spark/*.parquet", "spark"),
    "one part of Spark": ("spark", "spark/part-00001.parquet"),
    "a data set's state": ("saved", "saved/state.json"),
    "a data set's rows": ("saved", "saved/data.arrow"),
    "a data set": ("saved", "saved"),
}


def saved_dataset(folder):
    """A folder as `save_to_disk` writes it."""
    folder.mkdir()
    table = pa.table({"v": pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 4)})
    with pa.ipc.new_stream(folder / "data.arrow", table.schema) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    (folder / "dataset_info.json").write_text("{}")


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)], ids=["plain", "overwrite"])
@pytest.mark.parametrize("command", ["repair --out", "repair --save", "apply", "calibrate"])
@pytest.mark.parametrize("case", SOURCES)
def test_no_file_of_a_source_is_written_over(case, command, overwrite, files, refused):
    (files / "link.npy").symlink_to("many/1.npy")
    os.link("many/1.npy", "hard.npy")
    (files / "door").symlink_to("many", target_is_directory=True)
    os.mkdir("deep")
    shutil.copytree("many", "deep/many")
    saved_dataset(files / "saved")
    source, out = SOURCES[case]
    source = source.format(files)
    name, *option = command.split()
    line = {
        "repair": ["repair", source, "--method", "center", *option, out],
        "apply": ["apply", "r.safetensors", source, "--out", out],
        "calibrate": ["calibrate", source, "--save", out],
    }[name]
    refused(*line, *overwrite)


FOREIGN = {  # what was put into a folder that we wrote
    "nothing of ours": lambda folder: (folder / ".isotropy.json").unlink(),
    "another file": lambda folder: (folder / "thesis.tex").write_text("years of work"),
    "a hidden file": lambda folder: (folder / ".hidden").write_text("years of work"),
    "a folder": lambda folder: (folder / "chapter").mkdir(),
    "another part": lambda folder: (folder / "part-00009.parquet").write_bytes(b"PAR1"),
    "a part of another": lambda folder: (folder / "part-00000.parquet").write_bytes(b"PAR1"),
    "a link": lambda folder: (folder / "part-00008.parquet").symlink_to("part-00000.parquet"),
    "no marker that can be read": lambda folder: (folder / ".isotropy.json").write_text("[[[["),
    "a marker of another shape": lambda folder: (folder / ".isotropy.json").write_text(
        '{"files":3}'
    ),
    "a marker that lists folders": lambda folder: (folder / ".isotropy.json").write_text(
        '{"files": {"..": null, "part-00000.parquet": null}}'
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_folder_with_files_of_others_is_kept_also_with_overwrite(case, files, done, refused):
    line = ["apply", "r.safetensors", "x.npy", "--out", "parts", "--chunk-rows", "20"]
    done(*line, writes=["parts"])
    FOREIGN[case](files / "parts")
    for options in ((), ("--overwrite",)):
        refused(*line, *options, says="a folder with files that isotropy did not write")


def test_a_folder_of_ours_is_replaced_when_asked(files, done, refused):
    line = ["apply", "r.safetensors", "x.npy", "--out", "parts", "--chunk-rows"]
    done(*line, "10", writes=["parts"])
    refused(*line, "10", says="Add --overwrite to replace it.")
    run = isotropy.load("r.safetensors")
    run.transform("x.npy", out="parts", overwrite=True)
    assert sorted(os.listdir("parts")) == [".isotropy.json", "part-00000.parquet"]
    assert isotropy.open("parts").n_samples == 40


def test_a_folder_that_gets_a_file_while_parts_are_written_is_kept(files, raises):
    with open_sink("parts", 4) as sink:
        sink.write(X)
    again = open_sink("parts", 4, overwrite=True)

    def write():
        with again:
            again.write(X)
            (files / "parts" / "thesis.tex").write_text("years of work")

    with pytest.raises(isotropy.errors.InputError, match="has appeared or changed in the meantime"):
        write()
    assert (files / "parts" / "thesis.tex").read_text() == "years of work"
    assert [name for name in os.listdir() if "part" in name and name != "parts"] == []


TWO = {
    "one name": ("new.npy", "new.npy"),
    "two spellings": ("new.npy", "./new.npy"),
    "a URL": ("new.npy", "file://{}/new.npy"),
    "names that differ in case": ("new.npy", "NEW.NPY"),
    "two forms of one letter": ("n\u00e9w.npy", "ne\u0301w.npy"),
    "a link that leads nowhere yet": ("new.npy", "nowhere"),
    "one that exists": ("many/0.npy", "many/0.npy"),
    "a file in the other's folder": ("parts", "parts/r.safetensors"),
}


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)], ids=["plain", "overwrite"])
@pytest.mark.parametrize("case", TWO)
def test_two_outputs_are_two_files(case, overwrite, files, refused):
    (files / "nowhere").symlink_to("new.npy")
    out, save = (name.format(files) for name in TWO[case])
    line = ["repair", "x.npy", "--method", "center", "--out", out, "--save", save]
    refused(*line, *overwrite, says="must be another file than --out, and not in it")


@pytest.mark.parametrize("out", ["kept", "kept/new.npy"])
def test_an_output_is_not_in_the_checkpoint(out, files, refused):
    line = ["repair", "x.npy", "--method", "center", "--checkpoint", "kept", "--out", out]
    refused(*line, says="--checkpoint")


@pytest.mark.parametrize("name", ["new.npy.part", ".new.npy.part", "new.npy.tmp", "new.npy~"])
@pytest.mark.parametrize("command", ["--out", "--save"])
def test_files_named_like_temporary_ones_are_kept(name, command, files, done):
    (files / name).write_text("somebody's own")
    done("repair", "x.npy", "--method", "center", command, "new.npy", writes=["new.npy"])
    assert (files / name).read_text() == "somebody's own"


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ""])
def test_a_folder_named_like_a_temporary_one_is_kept(suffix, files, done):
    os.mkdir(f"new{suffix}.part")
    (files / f"new{suffix}.part" / "part-00000.parquet").write_text("somebody's own")
    done("apply", "r.safetensors", "x.npy", "--out", f"new{suffix}", writes=[f"new{suffix}"])
    assert (files / f"new{suffix}.part" / "part-00000.parquet").read_text() == "somebody's own"


FITTED = isotropy.Center().fit(X)
CALLS = {  # in Python
    "transform a path": lambda o: FITTED.transform("x.npy", out="x.npy", overwrite=o),
    "transform a list": lambda o: FITTED.transform(
        ["x.npy", "many/0.npy"], out="many/0.npy", overwrite=o
    ),
    "transform a folder": lambda o: FITTED.transform("many", out="many", overwrite=o),
    "transform a source": lambda o: FITTED.transform(
        isotropy.open("x.npy"), out=os.path.abspath("x.npy"), overwrite=o
    ),
    "transform a mapped array": lambda o: FITTED.transform(
        np.load("x.npy", mmap_mode="r"), out="x.npy", overwrite=o
    ),
    "transform a part of a mapped array": lambda o: FITTED.transform(
        np.asarray(np.load("x.npy", mmap_mode="r")[5:]), out="x.npy", overwrite=o
    ),
    "transform by another spelling": lambda o: FITTED.transform(
        "x.npy", out="./many/../x.npy", overwrite=o
    ),
    "a sink": lambda o: open_sink("x.npy", 4, like=isotropy.open("x.npy"), overwrite=o),
    "parts": lambda o: open_sink("spark", 4, like=isotropy.open("spark"), overwrite=o),
}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("case", CALLS)
def test_python_is_held_to_the_same_rule(case, overwrite, files, raises):
    raises(CALLS[case], overwrite)


def page(**options):
    from isotropy.report import write

    write("x.npy", "page.html", **options)


def image(**options):
    from isotropy.report import charts, write_image

    write_image(charts.norms(X), "page.html", **options)


SAVED = {
    "a repair": lambda **o: FITTED.save("e.json", **o),
    "a calibrator": lambda **o: ScoreCalibrator(500).fit(X).save("e.json", **o),
    "rows": lambda **o: FITTED.transform(X, out="many/0.npy", **o),
    "a page": page,
    "a chart": image,
    "a geometry's page": lambda **o: isotropy.measure(X).report("page.html", **o),
}


@pytest.mark.parametrize("case", SAVED)
def test_python_replaces_when_asked(case, files, raises):
    if "page" in case or "chart" in case:
        pytest.importorskip("plotly")
    raises(SAVED[case], says="exists. Pass overwrite=True to replace it.")
    SAVED[case](overwrite=True)


@pytest.mark.parametrize("bad", [5, b"x.npy", True, 1.5, ["x.npy"], "a\0b.npy"], ids=str)
def test_what_is_no_path_gets_one_line(bad, files, raises):
    raises(FITTED.transform, X, out=bad)
    raises(FITTED.save, bad)


def test_a_page_is_not_one_of_its_inputs(files, raises):
    pytest.importorskip("plotly")
    from isotropy.report import write

    for options in (
        {"repairs": ["r.html"]},
        {"evidence": ["r.html"]},
        {"layers": "r.html"},
    ):
        shutil.copy("r.safetensors", "r.html")
        raises(write, X, "r.html", overwrite=True, says="must be another file than", **options)


def test_a_new_file_beside_those_of_a_folder_is_written(files, done):
    done("repair", "many", "--method", "center", "--out", "many/new.npy", writes=["many"])
    assert len(np.load("many/new.npy")) == 120


def test_a_page_in_the_folder_it_is_of_is_replaced_when_asked(files, done):
    pytest.importorskip("plotly")
    done("report", "many", "--out", "many/report.html", writes=["many"])
    done("report", "many", "--out", "many/report.html", "--overwrite", writes=["many"])


def test_long_and_odd_names_give_a_bounded_line(files, refused):
    long = "d" * 200
    os.makedirs("/".join([long] * 10))
    for name in ("/".join([long] * 10), "line\nbreak", "\x1b[31mred"):
        os.makedirs(name, exist_ok=True)
        with open(f"{name}/new.npy", "w") as file:
            file.write("somebody's own")
        refused("apply", "r.safetensors", "x.npy", "--out", f"{name}/new.npy", says="exists.")


def test_the_demo_replaces_its_own_files_only(files):
    from isotropy.cli.demo import prepared
    from isotropy.errors import InputError

    shown = files / "shown"
    prepared(shown, ["planted"], False)
    prepared(shown, ["planted"], False)
    (shown / "pairs.tsv").write_text("my own pairs")
    before = snapshot(files)
    with pytest.raises(InputError, match=r"a 'pairs.tsv' that the demo did not write.*Add --over"):
        prepared(shown, ["planted"], False)
    assert snapshot(files) == before
    prepared(shown, ["planted"], True)
    (shown / "planted.html").write_text("my own page")
    with pytest.raises(InputError, match=r"hold a 'planted.html' that the demo did not write"):
        prepared(shown, ["planted"], False)


def test_a_cache_is_written_whole(files):
    from isotropy.models.cache import Cache

    Cache("cache", {"model": "a"})
    (identity,) = files.glob("cache/*/identity.json")
    assert json.loads(identity.read_text()) == {"model": "a"}
    assert [path.name for path in identity.parent.iterdir()] == ["identity.json"]


def test_a_mapped_file_far_below_is_found(files, raises):
    mapped = np.load("x.npy", mmap_mode="r")
    below = {"X": mapped[3:].T[1:].view()}
    raises(guard, {"out": "x.npy"}, below, overwrite=True, says="must be another file than X")
