from . import attributions as attributions
from . import audits as audits
from . import data as data
from . import execution as execution
from . import measures as measures
from . import models as models
from . import papers as papers
from . import report as report
from . import reproduction as reproduction
from . import store as store
from . import study as study
from . import testing as testing
from . import training as training
from . import trials as trials
from .audits.schedule import audit as audit
from .execution.runner import run as run
from .explainer import Explainer as Explainer
from .explainer import explain as explain
from .explainer import load as load
from .explanation import Explanation as Explanation
from .store.workspace import Workspace as Workspace
from .types import UserError as UserError

__version__: str
