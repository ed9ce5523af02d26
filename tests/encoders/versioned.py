"""The scripted encoder, under a torch of the version that FAKE_TORCH says."""

import os
import sys
from types import SimpleNamespace

from scripted import make  # noqa: F401 - the factory

sys.modules["torch"] = SimpleNamespace(__version__=os.environ["FAKE_TORCH"])  # type: ignore[assignment]  # all that is asked of it
