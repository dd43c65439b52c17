"""Training by a file: train, prune, retrain, qat, export, for people who want no code. See docs/training.md."""

from .run import NAME as NAME
from .run import run_training as run_training
from .spec import STAGES as STAGES
from .spec import load_training as load_training
