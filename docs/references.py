"""References of docstrings, which are written as numpydoc has them, in Markdown."""

import re

from griffe import Extension


class References(Extension):
    """`[1]_` is a mark and `.. [1] Title` an entry of a list."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring is None:
            return
        text = re.sub(r"\[(\d+)\]_", r"[\1]", obj.docstring.value)
        obj.docstring.value = re.sub(r"(?m)^(\s*)\.\. \[(\d+)\] ", r"\1- [\2] ", text)
