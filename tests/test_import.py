"""What `import isotropy` brings along."""

import importlib
import pkgutil
import subprocess
import sys

import isotropy

HEAVY = {"torch", "transformers", "dask", "plotly", "scipy.stats", "sklearn", "pandas", "pyarrow"}


def imported_by(code):
    """The modules that a new process has imported after the code."""
    code = f"{code}\nimport sys; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_brings_nothing_heavy():
    assert not HEAVY & imported_by("import isotropy")


def test_measuring_brings_no_extra():
    code = "import isotropy; isotropy.measure, isotropy.load, isotropy.Encoder, isotropy.open"
    extras = {"torch", "transformers", "dask", "plotly", "pyarrow.dataset"}
    assert not extras & imported_by(code)


def test_every_public_name_is_there():
    assert all(hasattr(isotropy, name) for name in isotropy.__all__)
    assert {*isotropy.__all__} <= {*dir(isotropy)}


def test_no_module_hides_a_public_function():
    modules = {module.name for module in pkgutil.iter_modules(isotropy.__path__)}
    assert not modules & isotropy.HOME.keys()
    for name in isotropy.MODULES:
        assert name in modules
    importlib.import_module("isotropy.geometry")
    assert callable(isotropy.measure)
