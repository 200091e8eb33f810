from .outcome import Outcome as Outcome
from .runner import recipes_from_file as recipes_from_file
from .runner import run as run
from .runner import topological_order as topological_order
