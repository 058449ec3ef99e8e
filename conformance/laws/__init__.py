"""The laws: importing this package registers every one, chapter by chapter."""

import importlib
import pkgutil

for _module in sorted(each.name for each in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")
