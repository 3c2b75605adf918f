from rappor.trust.models import Central as Central
from rappor.trust.models import Local as Local
from rappor.trust.models import Model as Model
from rappor.trust.models import rappor_bit as rappor_bit
from rappor.trust.models import trust_models as trust_models
from rappor.trust.survey import CoinSurvey as CoinSurvey
from rappor.trust.trials import run_trials as run_trials
