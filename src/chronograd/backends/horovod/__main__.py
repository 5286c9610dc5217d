"""`python -m chronograd.backends.horovod` builds Horovod in an environment of its own, once per PyTorch."""

import sys

from chronograd.backends.horovod.build import main

sys.exit(main())
