"""Run the mini_librispeech recipe; `--help` lists stages and options."""

import sys
from pathlib import Path

RECIPE = Path(__file__).resolve().parent
sys.path.insert(0, str(RECIPE.parents[1]))  # so that the script starts from any folder

from recipes.mini_librispeech.prepare import prepare  # noqa: E402
from recipes.pipeline.main import run_recipe  # noqa: E402
from recipes.pipeline.stages import STAGES_WITH_RESCORING  # noqa: E402

if __name__ == "__main__":
    sys.exit(run_recipe(RECIPE, prepare, stages=STAGES_WITH_RESCORING))
