"""Import code: the lines of a snippet that define a function which was passed as an object."""

import sys
from collections.abc import Callable
from typing import Any

MODULES = ("torch.nn.functional", "torch")
"""Modules that may hold a function that does not say where it is from, as torch's built-in ones."""


def import_code_of(function: Callable[..., Any], name: str) -> str:
    """Return code that defines a name as a function.

    Args:
        function: any callable.
        name: the name, such as `attention`.

    Returns:
        An import; `runpy.run_path` for a function of a script or of a test that cannot be imported;
        or a comment that asks for the definition, for a function that has no name in any module.
    """
    path = str(getattr(function, "__qualname__", ""))
    for module_name in (getattr(function, "__module__", None), *MODULES):
        module = sys.modules.get(str(module_name))
        if not path or module is None or _attribute(module, path) is not function:
            continue
        first, _, rest = path.partition(".")
        file = getattr(module, "__file__", None)
        if module_name != "__main__" and _can_import(str(module_name)):
            end = f"; {name} = {path}" if rest else "" if first == name else f" as {name}"
            return f"from {module_name} import {first}{end}"
        if file:
            end = f".{rest}" if rest else ""
            return f"import runpy; {name} = runpy.run_path({str(file)!r})[{first!r}]{end}"
    shown = getattr(function, "__name__", type(function).__name__)
    return f"# define {name} here: {shown} cannot be imported"


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part, None)
    return module


def _can_import(module_name: str) -> bool:
    """Return whether another interpreter with the same search path finds a module."""
    top = module_name.partition(".")[0]
    return any(finder.find_spec(top, None) is not None for finder in sys.meta_path)
