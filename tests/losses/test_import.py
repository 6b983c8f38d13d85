"""What isotropy.losses brings along, and what it says where there is no torch."""

import subprocess
import sys

import pytest

WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, NoTorch())
"""


def printed(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_package_is_imported_without_torch():
    assert printed("import sys, isotropy.losses; print('torch' in sys.modules)") == "False"


USES = (
    "from isotropy.losses import FlowNetwork",
    "from isotropy.losses import functional",
    "import isotropy.losses; isotropy.losses.IsoBatchNorm(3)",
    "import isotropy.losses.functional",
    "from isotropy.repairs import Flow; Flow().fit([[1.0, 2.0], [2.0, 5.0]])",
    "from isotropy.repairs import LearnedLayer; LearnedLayer().fit([[1.0, 2.0]] * 4, [0, 1] * 2)",
)


def test_without_torch_one_line_says_how_to_get_it():
    tries = [f"try:\n    {use}\nexcept ImportError as error:\n    print(error)" for use in USES]
    expected = (
        'isotropy.losses needs torch, which is not installed. Run: pip install "isotropy[train]".'
    )
    lines = printed("\n".join([WITHOUT_TORCH, *tries])).splitlines()
    named = [f"{name}: {expected}" for name in ("Flow", "LearnedLayer")]
    assert lines == [expected] * (len(USES) - 2) + named


def test_every_public_name_is_there():
    pytest.importorskip("transformers", reason="transformers is not installed")
    import isotropy.losses

    assert set(isotropy.losses.__all__) <= set(dir(isotropy.losses))
    assert all(hasattr(isotropy.losses, name) for name in isotropy.losses.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Glow'"):
        _ = isotropy.losses.Glow
