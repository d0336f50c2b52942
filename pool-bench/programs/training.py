"""Trains three convolutions for two epochs with pictures that four workers make.

Prints `done` when the last epoch has ended, and waits for the end of its input.
"""

import gc
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

smoke = "--smoke" in sys.argv
PICTURES, BATCH, WORKERS = (8, 4, 1) if smoke else (256, 32, 4)


class Pictures(Dataset):
    """Pictures of noise, blurred, turned and cut as training does with photographs."""

    def __len__(self):
        return PICTURES

    def __getitem__(self, at):
        random = torch.Generator().manual_seed(at)
        picture = torch.rand(3, 128, 128, generator=random)
        picture = nn.functional.avg_pool2d(picture[None], 5, stride=1, padding=2)[0]
        if at % 2:
            picture = picture.flip(2)
        left, top = (int(torch.randint(32, (1,), generator=random)) for _ in range(2))
        picture = picture[:, top : top + 96, left : left + 96]
        return (picture - picture.mean()) / picture.std(), at % 10


def layer(channels, more):
    return nn.Sequential(nn.Conv2d(channels, more, 3, padding=1), nn.BatchNorm2d(more), nn.ReLU(), nn.MaxPool2d(2))


torch.manual_seed(63)
model = nn.Sequential(layer(3, 16), layer(16, 32), layer(32, 64), nn.Flatten(), nn.Linear(64 * 12 * 12, 10))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(1 if smoke else 2):
    for pictures, labels in DataLoader(Pictures(), batch_size=BATCH, num_workers=WORKERS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
assert loss.isfinite()
del model, optimizer, loss, pictures, labels
gc.collect()
print("done", flush=True)
sys.stdin.read()
