"""The command `python -m chronograd.backends.horovod`: it builds Horovod in a separate environment, once per PyTorch."""

import sys

from chronograd.backends.horovod.build import main

sys.exit(main())
