"""The common parts of the two TensorFlow backends.

The launching process has torch. It checks the job (`checks`) and writes data and initial weights into the run directory
(`prepared`). The ranks have TensorFlow and never import torch (`worker` and its imports).
"""
