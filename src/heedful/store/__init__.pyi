from .recipe import Artefact as Artefact
from .recipe import Recipe as Recipe
from .recipe import Resources as Resources
from .workspace import CorruptArtefactError as CorruptArtefactError
from .workspace import CorruptArtefactWarning as CorruptArtefactWarning
from .workspace import Workspace as Workspace
