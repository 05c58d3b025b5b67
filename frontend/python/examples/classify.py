"""A torchvision network on a data set of images, trained within a memory budget."""

import argparse

import memc
import torch
import torchvision
from torch.nn import functional as F
from torchvision import transforms


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", help="a folder of one folder for each class; made-up images without it")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--budget", default="2G" if torch.cuda.is_available() else "peak*60%", help="device memory, as 8G")
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    prepare = transforms.Compose([transforms.Resize((args.size, args.size)), transforms.ToTensor()])
    data = torchvision.datasets.ImageFolder(args.images, prepare) if args.images else \
        torchvision.datasets.FakeData(args.batch * args.steps, (3, args.size, args.size), 10, prepare)
    loader = torch.utils.data.DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True)
    model = getattr(torchvision.models, args.network)(num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    example = torch.utils.data.default_collate([data[0]] * args.batch)
    step = memc.train_step(model, F.cross_entropy, optimizer, example, budget=args.budget)
    losses = []
    for i, (x, y) in zip(range(args.steps), loader):
        loss = step(x, y)
        losses.append(loss.item())
        print(f"step {i + 1}: loss {losses[-1]:.4f}")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "classify.pt")
    return losses


if __name__ == "__main__":
    main()
