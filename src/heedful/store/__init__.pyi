from .artefact_files import CorruptArtefactError as CorruptArtefactError
from .artefact_files import CorruptArtefactWarning as CorruptArtefactWarning
from .recipe import Artefact as Artefact
from .recipe import Recipe as Recipe
from .recipe import Resources as Resources
from .workspace import Workspace as Workspace
