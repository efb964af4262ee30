"""Which attributes of a class its docstring does not name."""

import inspect
import re


def undocumented_attributes(kind):
    """Fields, and attributes that methods set, of the class and of the classes of fsachain that it is made of."""
    if issubclass(kind, Exception):
        return []
    own = [base for base in kind.__mro__ if base.__module__.startswith("fsachain.")]
    text = "\n".join(base.__doc__ or "" for base in own)
    source = "\n".join(map(inspect.getsource, own))
    names = re.findall(r"^    ([a-z]\w*): (?!ClassVar)", source, re.MULTILINE)
    names += re.findall(r"self\.([a-z]\w*)(?:, self\.\w+)*(?:: [^=\n]+)? = ", source)
    return [name for name in names if not re.search(rf"\b{name}\b", text)]
