from .cell_run import Experiment as Experiment
from .cell_run import read_experiments as read_experiments
from .ledger import LedgerRecord as LedgerRecord
from .ledger import Measured as Measured
from .ledger import MeasuredRun as MeasuredRun
from .ledger import read_ledger as read_ledger
from .ledger_page import write_ledger_page as write_ledger_page
