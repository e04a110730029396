"""`python -m counterfoil`: the command line."""

from __future__ import annotations

import sys

from counterfoil.cli import main

sys.exit(main())
