"""heedful: does a model's attention, or any other token attribution, explain it?

The top level has a handful of names; everything else is in the subpackages, for instance `heedful.attributions.Lime`.
All names are listed once, in `__init__.pyi`, and imported when they are first used.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
