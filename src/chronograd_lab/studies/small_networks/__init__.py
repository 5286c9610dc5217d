"""A small CNN and heads of large networks on small images, and causes of accuracies at chance."""
