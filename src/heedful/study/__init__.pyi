from .answers import Occasion as Occasion
from .answers import Ranking as Ranking
from .answers import Simulation as Simulation
from .answers import StudyAnswers as StudyAnswers
from .rating import StudyRating as StudyRating
from .rating import rate_study as rate_study
