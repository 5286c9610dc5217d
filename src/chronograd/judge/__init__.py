"""The judgement of a throughput, compared with the limit of the device, the prediction, and published figures."""
