"""Training curves of networks of several depths on several devices, and of a depth never trained."""
