"""The audit of a model: which explanations of its predictions may be shown, and the evidence for it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
