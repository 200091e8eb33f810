"""Token attribution methods: frozen dataclasses, called with (model, batch, target).

Fields that methods share: `special_tokens` scores special tokens too; `output` is the explained number, the target's
probability or its logit; `baselines` is what replaces a removed token; `internal_batch_size` is how many texts or
points are computed at once, where None chooses and halves when memory runs out.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
