"""What the two TensorFlow backends share.

The launching process has torch; it checks the job (`checks`) and writes data and initial weights into the run
directory (`prepared`). The ranks have TensorFlow and never import torch (`worker` and what it imports).
"""
