"""Saved repairs: complete or not at all, and one clear line for other files."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import isotropy
from isotropy.errors import RepairFileError
from isotropy.repairs import files
from isotropy.stored import checksum

KEY = "isotropy.repair"  # of the header, in every file ever saved


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "repair.safetensors"
    X = np.random.default_rng(0).standard_normal((100, 8))
    isotropy.AllButTheTop(2).fit(X).save(path, note="vectors of a test")
    return path


def rewritten(path, change):
    with safe_open(str(path), framework="numpy") as file:
        header = json.loads(file.metadata()[KEY])
    tensors = load_file(path)
    header = {k: v for k, v in header.items() if k != "checksum"} | change
    header["checksum"] = checksum(header, tensors)
    save_file(tensors, path, metadata={KEY: json.dumps(header)})


def test_the_header_says_what_it_was_fitted_on(saved):
    with safe_open(str(saved), framework="numpy") as file:
        header = json.loads(file.metadata()[KEY])
    assert header["method"] == "all-but-the-top"
    assert header["params"] == {
        "centered": True,
        "n_components": 2,
        "normalize": False,
        "side": "top",
    }
    assert (header["n_samples"], header["n_features"]) == (100, 8)
    assert header["note"] == "vectors of a test"
    assert header["time"].endswith("+00:00")
    assert header["versions"]["isotropy"] == isotropy.__version__


def test_the_level_is_kept(saved, tmp_path):
    repair = isotropy.load(saved)
    assert repair.level_ == ""
    repair.save(saved, level="token", overwrite=True)
    loaded = isotropy.load(saved)
    assert loaded.level_ == "token"
    loaded.save(tmp_path / "again")
    assert isotropy.load(tmp_path / "again").level_ == "token"
    with pytest.raises(ValueError, match="save: level must be one of 'token', 'sentence', got 'w"):
        loaded.save(saved, level="word")


def test_a_file_from_before_levels_has_none(saved):
    with safe_open(str(saved), framework="numpy") as file:
        header = json.loads(file.metadata()[KEY])
    tensors = load_file(saved)
    del header["level"], header["checksum"]
    header["checksum"] = checksum(header, tensors)
    save_file(tensors, saved, metadata={KEY: json.dumps(header)})
    assert isotropy.load(saved).level_ == ""


def test_a_file_from_before_the_uncentred_form_projects_centred_rows(saved):
    before = isotropy.load(saved)
    rewritten(saved, {"params": {"n_components": 2, "normalize": False, "side": "top"}})
    X = np.random.default_rng(1).standard_normal((20, 8))
    np.testing.assert_array_equal(isotropy.load(saved).transform(X), before.transform(X))


def test_a_loaded_repair_can_be_fitted_on(saved):
    X = np.random.default_rng(0).standard_normal((150, 8))
    whole = isotropy.AllButTheTop(2).fit(X)
    resumed = isotropy.load(saved).partial_fit(X[100:])
    assert np.allclose(resumed.transform(X), whole.transform(X), atol=1e-9)


def test_a_missing_file_gets_one_line(tmp_path):
    with pytest.raises(RepairFileError, match=r"gone.safetensors' does not exist"):
        isotropy.load(tmp_path / "gone.safetensors")


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_a_truncated_file_gets_one_line(saved, kept):
    saved.write_bytes(saved.read_bytes()[:kept])
    with pytest.raises(RepairFileError, match="is damaged or not a safetensors file"):
        isotropy.load(saved)


def test_a_flipped_bit_is_noticed(saved):
    content = bytearray(saved.read_bytes())
    content[-20] ^= 1
    saved.write_bytes(content)
    with pytest.raises(RepairFileError, match="its checksum does not fit"):
        isotropy.load(saved)


def test_another_safetensors_file_is_no_repair(tmp_path):
    save_file({"weights": np.ones(3)}, tmp_path / "model.safetensors")
    with pytest.raises(RepairFileError, match=r"holds no repair, only 'weights'\. Name the file"):
        isotropy.load(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("notes.txt", b"hello", "is a .txt file, not a repair. Name the file that --save"),
        ("rows", b"\x93NUMPY\x01\x00", r"is an array of numpy \(.npy\), not a repair"),
        ("rows", b"PAR1" + bytes(20), "is a Parquet file, not a repair"),
        ("model.pt", b"PK\x03\x04" + bytes(20), "is a zip file, such as .npz or .pt, not a repair"),
        ("rows", b"hello", "is damaged or not a safetensors file"),
    ],
)
def test_another_file_is_named_for_what_it_is(name, content, what, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RepairFileError, match=what):
        isotropy.load(tmp_path / name)


@pytest.mark.parametrize("change", [{"format": 2}, {"method": "flow-of-the-future"}])
def test_a_newer_file_asks_for_an_upgrade(saved, change):
    rewritten(saved, change)
    with pytest.raises(RepairFileError, match="Upgrade isotropy"):
        isotropy.load(saved)


def test_unknown_parameters_get_one_line(saved):
    rewritten(saved, {"params": {"colour": "blue"}})
    with pytest.raises(RepairFileError, match="colour"):
        isotropy.load(saved)


def test_missing_arrays_get_one_line(saved):
    with safe_open(str(saved), framework="numpy") as file:
        header = json.loads(file.metadata()[KEY])
    tensors = load_file(saved)
    del tensors["components_"], header["checksum"]
    header["checksum"] = checksum(header, tensors)
    save_file(tensors, saved, metadata={KEY: json.dumps(header)})
    with pytest.raises(RepairFileError, match="components_"):
        isotropy.load(saved)


def test_a_failed_save_leaves_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()

    def fail(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr(files, "save", fail)
    with pytest.raises(ValueError, match="could not be written: No space left"):
        isotropy.Center().fit(np.ones((3, 2))).save(saved, overwrite=True)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def test_saving_into_no_folder_gets_one_line(tmp_path):
    with pytest.raises(ValueError, match="path must be in an existing folder"):
        isotropy.Center().fit(np.ones((3, 2))).save(tmp_path / "no" / "repair.safetensors")


def test_saving_before_fitting_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not fitted yet"):
        isotropy.Center().save(tmp_path / "repair.safetensors")


def test_a_changed_header_is_noticed(saved):
    content = saved.read_bytes()
    assert content.count(b'\\"top\\"') == 1
    saved.write_bytes(content.replace(b'\\"top\\"', b'\\"Top\\"'))
    with pytest.raises(RepairFileError, match="its checksum does not fit"):
        isotropy.load(saved)
