"""Models as recipes: trained, loaded from checkpoints, with imposed or adversarial attention, or students."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
