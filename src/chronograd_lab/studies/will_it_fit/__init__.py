"""Common models on common GPUs: does training fit, why not, and what would help?"""
