"""Models that expose their attention: recurrent classifiers and Hugging Face transformers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
