"""Training on transcripts that are wrong, plain and forgiving; `--help` lists what can be chosen."""

import sys
from pathlib import Path

RECIPE = Path(__file__).resolve().parent
sys.path.insert(0, str(RECIPE.parents[1]))  # so that the script starts from any folder

from recipes.weak_transcripts.compare import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
