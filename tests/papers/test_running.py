"""What `reproduce` keeps, reads again, and says of it."""

import json
import shutil

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("plotly")
pytest.importorskip("jinja2")

from isotropy.errors import InputError
from isotropy.papers import experiments, reproduce, results
from isotropy.papers.experiment import Layout, chosen, matching
from isotropy.trial.settings import weights_checksum


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduced")
    for name in ("drift/isotropy", "drift/rare"):
        reproduce(name, out=folder, quick=True)
    return folder


def test_there_are_34_experiments():
    assert len(experiments()) == 34


def test_the_page_has_experiments_that_were_run_before(out):
    page = (out / "drift" / "index.html").read_text("utf-8")
    listed = (out / "drift" / "README.md").read_text("utf-8")
    for name in ("isotropy", "rare"):
        assert f'<section id="{name}"' in page
        assert f"({name}/README.md)" in listed
    figures = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert any(name.startswith("isotropy-") for name in figures)
    assert any(name.startswith("rare-") for name in figures)


def test_what_is_finished_is_not_repeated_and_tells_of_other_versions(out):
    part = out / "drift" / "rare" / "parts" / "tiny-bert.json"
    kept = json.loads(part.read_text("utf-8"))
    kept["records"][0]["value"] = 1234.5
    kept["versions"]["numpy"] = "0.0.1"
    part.write_text(json.dumps(kept), "utf-8")
    found = reproduce("drift/rare", out=out, quick=True)["drift/rare"]
    assert found["records"][0]["value"] == 1234.5
    assert "tiny-bert was computed with other versions: numpy 0.0.1." in found["notes"]
    found = reproduce("drift/rare", out=out, quick=True, overwrite=True)["drift/rare"]
    assert found["records"][0]["value"] != 1234.5


@pytest.mark.parametrize("text", ["{", "[]", '{"records": []}'])
def test_a_damaged_part_gets_one_line(out, text):
    path = out / "drift" / "isotropy" / "parts" / "tiny-glove.json"
    sound = path.read_text("utf-8")
    path.write_text(text, "utf-8")
    with pytest.raises(InputError, match=r"tiny-glove\.json"):
        reproduce("drift/isotropy", out=out, quick=True)
    path.write_text(sound, "utf-8")


def test_a_model_that_changed_is_measured_again(out, tmp_path):
    models = tmp_path / "models"
    shutil.copytree(out / "quick" / "models" / "tiny-glove", models / "words")
    options = {"out": tmp_path / "out", "folder": models, "models": ["words"]}
    first = reproduce("drift/isotropy", **options)["drift/isotropy"]
    np.save(models / "words" / "vectors.npy", 3 * np.load(models / "words" / "vectors.npy"))
    weights_checksum.cache_clear()
    second = reproduce("drift/isotropy", **options)["drift/isotropy"]
    norms = [matching(one["records"], measure="mean norm")[0]["value"] for one in (first, second)]
    assert norms[1] == pytest.approx(3 * norms[0])


def test_results_name_a_folder_by_its_last_part_and_refuse_two_of_one_name(out, tmp_path):
    model = shutil.copytree(out / "quick" / "models" / "tiny-glove", tmp_path / "a" / "words")
    found = reproduce("drift/isotropy", out=tmp_path / "out", models=[str(model)])["drift/isotropy"]
    assert found["models"] == ["words"]
    assert "--model words" in found["command"]
    for path in (tmp_path / "out").rglob("*"):
        if path.suffix in (".json", ".md"):
            assert str(tmp_path) not in path.read_text("utf-8")
    other = shutil.copytree(model, tmp_path / "b" / "words")
    with pytest.raises(InputError, match="must differ in the last part of the names"):
        reproduce("drift/isotropy", out=tmp_path / "out", models=[str(model), str(other)])


def test_the_papers_own_model_has_the_difference_in_its_cell():
    layout = Layout(("model",), forms={"change": "+.1f"})
    ours, theirs = ({"measure": "change", "value": value} for value in (2.0, 3.5))
    assert results._cell(layout, ours, theirs) == "+2.0; paper +3.5 (-1.5)"


def test_an_unknown_experiment_gets_one_line(tmp_path):
    with pytest.raises(InputError, match=r"got 'drift/nothing'\. isotropy reproduce --list"):
        reproduce("drift/nothing", out=tmp_path)


def test_several_experiments_can_be_named_and_some_skipped():
    found = [one.full_name for one in chosen(["drift", "cluster/sts"], skip=["drift/training"])]
    assert "cluster/sts" in found
    assert "drift/zipf" in found
    assert "drift/training" not in found
    assert len(found) == len(chosen(["drift"]))
    with pytest.raises(InputError, match="skip must be a paper"):
        chosen(["drift"], skip=["drift/none"])


def test_what_is_missing_is_named_and_left_out(tmp_path, monkeypatch):
    monkeypatch.delenv("ISOTROPY_DATA", raising=False)
    said = []
    found = reproduce("cluster/local", out=tmp_path / "out", folder=tmp_path, tell=said.append)
    assert found == {}
    assert said == ["cluster/local: left out, since it needs stsb in --data."]
