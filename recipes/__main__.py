"""`python -m recipes RECIPE`."""

import sys

from recipes.pipeline.main import main

sys.exit(main())
