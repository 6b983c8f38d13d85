"""isotropy doctor: what it finds here, what it says is missing, and what is broken."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata

import pytest
from typer.testing import CliRunner

import isotropy
from isotropy.cli import app, doctor


def run(*arguments):
    return CliRunner().invoke(app, ["doctor", *arguments])


def found(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


def test_it_says_what_is_here():
    result = run()
    assert (result.exit_code, result.stderr) == (0, "")
    for part in (f"isotropy {isotropy.__version__}", "device", "BLAS", "cores", "numpy"):
        assert part in result.stdout
    here = found()
    assert here["extras"]["core"]["there"] is True
    assert here["extras"]["core"]["packages"]["numpy"] == metadata.version("numpy")
    assert here["python"] == ".".join(map(str, sys.version_info[:3]))
    assert here["blas"][0]["n_threads"] >= 1
    assert here["broken"] == {}


def test_every_extra_that_all_holds_is_explained():
    requires = metadata.requires("isotropy")
    extras = set(metadata.metadata("isotropy").get_all("Provides-Extra")) - {"all"}

    def packages(extra):
        return {line.partition(";")[0].strip() for line in requires if f"'{extra}'" in line}

    assert {extra for extra in extras if packages(extra) <= packages("all")} <= set(doctor.ENABLES)
    assert all(doctor.required().values())


def test_a_missing_extra_is_named_with_what_it_enables_and_how_to_get_it(monkeypatch):
    missing = ("plotly", "torch")
    monkeypatch.setattr(doctor, "version", lambda name: None if name in missing else "1.0")
    monkeypatch.setattr(doctor, "fault", lambda name, run: "")
    result = run()
    assert result.exit_code == 0
    for extra in ("report", "torch", "models"):
        command = f'pip install "isotropy[{extra}]"  # {doctor.ENABLES[extra]}\n'
        assert command in result.stdout
    assert "isotropy[dask]" not in result.stdout
    here = found()
    assert here["extras"]["report"]["there"] is False
    assert here["extras"]["report"]["packages"]["plotly"] is None
    assert here["device"] == "none: torch is not installed"


def test_what_is_installed_but_cannot_be_imported_is_said_with_exit_code_1(tmp_path, monkeypatch):
    (tmp_path / "jinja2.py").write_text("raise ImportError('no shared object\\nand more')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "jinja2", raising=False)
    monkeypatch.setattr(doctor, "version", lambda name: "1.0")
    monkeypatch.setattr(doctor, "required", lambda: {"core": ["numpy"], "report": ["jinja2"]})
    result = run()
    assert result.exit_code == 1
    expected = "jinja2 is installed but can't be imported (ImportError: no shared object)."
    assert expected in result.stdout
    assert "broken" in result.stdout
    assert found()["broken"] == {"jinja2": "ImportError: no shared object"}


def test_a_package_without_its_module_is_broken(monkeypatch):
    monkeypatch.setattr(doctor, "MODULES", {"typer": "no_such_module"})
    assert "No module named 'no_such_module'" in doctor.fault("typer", run=True)
    assert doctor.fault("typer", run=False) == "there is no module no_such_module"


def test_torch_is_not_imported_where_there_is_no_driver():
    pytest.importorskip("torch", reason="torch is not installed")
    code = (
        "import sys; from isotropy.cli import doctor\n"
        "doctor.has_driver = lambda: False\n"
        "doctor.examined()\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_torch_is_asked_for_its_device(monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(doctor, "has_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"card {i}")
    assert found()["device"] == "cuda: card 0, card 1"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert found()["device"].startswith("none: torch")


def test_folders_that_are_set_are_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("ISOTROPY_MODELS", str(tmp_path))
    monkeypatch.setenv("ISOTROPY_DATA", str(tmp_path / "none"))
    monkeypatch.delenv("ISOTROPY_CACHE", raising=False)
    result = run()
    assert f"{tmp_path / 'none'}, which does not exist\n" in result.stdout
    assert "ISOTROPY_CACHE  not set" in " ".join(result.stdout.splitlines())
    folders = found()["folders"]
    assert folders["ISOTROPY_MODELS"] == {"path": str(tmp_path), "exists": True}
    assert folders["ISOTROPY_DATA"]["exists"] is False
    assert folders["ISOTROPY_CACHE"] == {"path": None, "exists": False}


def test_what_a_package_logs_at_import_is_not_shown(tmp_path, monkeypatch, caplog):
    talker = "import logging\nlogging.warning('w')\nlogging.info('i')\n"
    (tmp_path / "talker.py").write_text(talker)
    monkeypatch.syspath_prepend(tmp_path)
    with caplog.at_level("INFO"):
        assert doctor.fault("talker", run=True) == ""
    assert [record.getMessage() for record in caplog.records] == ["w"]
