"""Planted bugs: importing this package registers every mutant of the catalogue."""

import importlib
import pkgutil

_BASES = {"dense", "gpt2_base", "planting", "registry", "tiled"}

for _module in sorted(each.name for each in pkgutil.iter_modules(__path__)):
    if _module not in _BASES:
        importlib.import_module(f"{__name__}.{_module}")
