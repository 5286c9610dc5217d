"""Your own network: predicted on a GPU that you do not have here, then recorded while it trains on that GPU."""

import torch
from torch import nn

import chronograd

network = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 30 * 30, 10))
chronograd.show(chronograd.predict(network, on="v100", input_shape=(3, 32, 32), batch=64))
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
with chronograd.record("runs/own-module", batch=64) as recorder:
    for _ in range(20):
        images, labels = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))
        with recorder.step():
            nn.functional.cross_entropy(network(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
chronograd.show(chronograd.explain("runs/own-module"))
