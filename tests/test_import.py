"""What `import isotropy` brings along."""

import subprocess
import sys


def test_import_brings_no_extra():
    code = (
        "import sys, isotropy; "
        "heavy = {'torch', 'transformers', 'dask', 'plotly', 'pyarrow.dataset'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there():
    import isotropy

    assert all(hasattr(isotropy, name) for name in isotropy.__all__)
