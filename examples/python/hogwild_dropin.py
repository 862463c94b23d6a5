"""Hogwild as programs on torch.multiprocessing have it: the model is an argument of processes that train it in place.

It is the shape of PyTorch's example mnist_hogwild, on the digits, and one line is Baton's. `torch.save` writes the
trained model as ever.

usage: hogwild_dropin.py [--processes 2] [--epochs 8] [--save FILE]
"""

import argparse

import baton.torch.multiprocessing as mp  # was: import torch.multiprocessing as mp
import digits
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, kernel_size=3, padding=1)
        self.drop = nn.Dropout2d(0.1)
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.drop(self.conv2(x)), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        return F.log_softmax(self.fc2(x), dim=1)


def train(rank, args, model, dataset):
    torch.manual_seed(args.seed + rank)
    torch.set_num_threads(1)
    loader = DataLoader(dataset, batch_size=32, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    model.train()
    for epoch in range(args.epochs):
        for data, target in loader:
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
        print(f"process {rank}, epoch {epoch + 1}: loss {loss.item():.3f}", flush=True)


@torch.no_grad()
def test(model, dataset):
    model.eval()
    data, target = dataset.tensors
    right = (model(data).argmax(1) == target).float().mean().item()
    print(f"accuracy {right:.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", metavar="FILE")
    args = parser.parse_args()

    x, y, test_x, test_y = map(torch.from_numpy, digits.load())
    train_set = TensorDataset(x.view(-1, 1, 8, 8), y)
    test_set = TensorDataset(test_x.view(-1, 1, 8, 8), test_y)

    torch.manual_seed(args.seed)
    mp.set_start_method("spawn", force=True)
    model = Net()
    model.share_memory()  # gradients are made later, so each process has its own

    processes = []
    for rank in range(args.processes):
        p = mp.Process(target=train, args=(rank, args, model, train_set))
        p.start()
        processes.append(p)
    for p in processes:
        p.join()

    if args.save:
        torch.save(model.state_dict(), args.save)
    test(model, test_set)


if __name__ == "__main__":
    main()
