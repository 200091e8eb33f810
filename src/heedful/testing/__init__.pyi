from .checks import check_corpus as check_corpus
from .checks import check_measure as check_measure
from .checks import check_method as check_method
from .checks import check_model as check_model
from .trial_checks import check_trial as check_trial
