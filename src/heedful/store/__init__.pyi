from .recipe import Artefact as Artefact
from .recipe import Recipe as Recipe
from .workspace import CorruptArtefactError as CorruptArtefactError
from .workspace import CorruptArtefactWarning as CorruptArtefactWarning
from .workspace import Workspace as Workspace
