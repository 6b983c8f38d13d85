"""A missing package is named with the extra that has it."""

import sys

import numpy as np
import pytest

from isotropy import export, repairs
from isotropy.errors import MissingExtraError

from .elsewhere import run_fresh


@pytest.mark.parametrize("name", ["faiss", "onnx", "mteb"])
def test_a_missing_package_is_named_with_its_extra(name, monkeypatch):
    for loaded in [name, *(m for m in sys.modules if m.startswith(f"{name}."))]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.delitem(sys.modules, f"isotropy.export._{name}", raising=False)
    monkeypatch.delattr(export, f"_{name}", raising=False)
    repair = repairs.Center().fit(np.eye(3))
    arguments = (object(), repair) if name == "mteb" else (repair,)
    with pytest.raises(MissingExtraError, match=rf"export.{name}: .*isotropy\[{name}\]"):
        getattr(export, name)(*arguments)


def test_the_exports_are_imported_on_use():
    heavy = "{'faiss', 'onnx', 'onnxruntime', 'mteb', 'torch'}"
    assert run_fresh(f"import sys, isotropy.export; print({heavy} & set(sys.modules))") == "set()\n"
