"""Run the mini_librispeech recipe; `--help` lists stages and options."""

import sys
from pathlib import Path

RECIPE = Path(__file__).resolve().parent
sys.path.insert(0, str(RECIPE.parents[1]))  # so that the script starts from any folder

from recipes.mini_librispeech.prepare import prepare  # noqa: E402
from recipes.pipeline.main import run_recipe  # noqa: E402
from recipes.pipeline.rescoring import with_rescoring  # noqa: E402

if __name__ == "__main__":
    sys.exit(run_recipe(RECIPE, prepare, stages=with_rescoring()))
