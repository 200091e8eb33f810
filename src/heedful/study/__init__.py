"""A blind study of explanations: build it, serve it to people, and rate the methods from their answers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
