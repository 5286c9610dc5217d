"""torch.nn.DataParallel on 1, 2 and 4 GPUs: time, communication and bandwidth."""
