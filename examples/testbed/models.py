"""Models of the papers' testbeds with data that is made here: the same architecture and objective, no download.

Each function returns a ``Task``. ``small`` makes layers narrow and epochs short, so that a CPU trains them in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Loss = tuple[str, Callable[[], Tensor]]
"""Name of the optimizer that follows a loss, and the function that computes it."""


@dataclass
class Task:
    """A model, its optimizers and the losses of one step.

    Attributes
    ----------
    modules : all that is trained. ``optimizers`` : by name; each step takes the losses in order.
    losses : of the numbers of the batch's examples.
    examples : in one epoch. ``watched`` : parameters whose gradients decide on the batch size.
    """

    modules: nn.ModuleDict
    optimizers: dict[str, torch.optim.Optimizer]
    losses: Callable[[Tensor], Iterator[Loss]]
    examples: int
    watched: list[nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        first = next(iter(self.optimizers.values()))
        self.watched = [p for group in first.param_groups for p in group["params"]]


def noise(numbers: Tensor, *shape: int, seed: int = 0) -> Tensor:
    """The same normal noise for the same example, on whichever rank it is drawn."""
    drawn = [torch.randn(*shape, generator=torch.Generator().manual_seed(seed + int(n))) for n in numbers]
    return torch.stack(drawn).to(numbers.device)


def one(modules: nn.ModuleDict, optimizer: torch.optim.Optimizer, loss: Callable[[Tensor], Tensor], size: int) -> Task:
    """A task of one optimizer and one loss."""

    def losses(numbers: Tensor) -> Iterator[Loss]:
        yield "all", lambda: loss(numbers)

    return Task(modules, {"all": optimizer}, losses, size)


# ---- images ----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A residual block: two 3x3 convolutions, or 1x1, 3x3, 1x1 where ``wide`` is 4 (He et al. 2016, figures 2 and 5)."""

    def __init__(self, before: int, width: int, stride: int, wide: int) -> None:
        super().__init__()
        kernels = (3, 3) if wide == 1 else (1, 3, 1)
        sizes = [before, *[width] * (len(kernels) - 1), width * wide]
        layers: list[nn.Module] = []
        for i, kernel in enumerate(kernels):
            step = stride if i == (0 if wide == 1 else 1) else 1
            layers += [nn.Conv2d(sizes[i], sizes[i + 1], kernel, step, kernel // 2, bias=False)]
            layers += [nn.BatchNorm2d(sizes[i + 1]), nn.ReLU()]
        self.main = nn.Sequential(*layers[:-1])
        same = stride == 1 and before == sizes[-1]
        self.short = nn.Identity() if same else nn.Conv2d(before, sizes[-1], 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        return F.relu(self.main(images) + self.short(images))


def resnet(depths: tuple[int, ...], wide: int, pixels: int, classes: int, size: int, small: bool) -> Task:
    """Classify images, each a pattern of its class under noise: SGD with momentum, weight decay 5e-4."""
    width, pixels = (4, 16) if small else (64, pixels)
    stem: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()]
    if pixels > 64:
        stem = [nn.Conv2d(3, width, 7, 2, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks, before = [], width
    for i, depth in enumerate(depths):
        for j in range(depth):
            blocks.append(Block(before, width << i, 2 if i and not j else 1, wide))
            before = (width << i) * wide
    net = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
    patterns = noise(torch.arange(classes), 3, pixels, pixels, seed=10**6)

    def loss(numbers: Tensor) -> Tensor:
        labels = numbers % classes
        return F.cross_entropy(net(patterns.to(numbers.device)[labels] + noise(numbers, 3, pixels, pixels)), labels)

    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    return one(nn.ModuleDict({"net": net}), optimizer, loss, 512 if small else size)


class Generator(nn.Module):
    """Down, residual blocks, up (CycleGAN, §4 and appendix 7.2)."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        middle = [Block(4 * width, 4 * width, 1, 1) for _ in range(blocks)]
        self.net = nn.Sequential(
            *[nn.Conv2d(3, width, 7, 1, 3), nn.InstanceNorm2d(width), nn.ReLU()],
            *[nn.Conv2d(width, 2 * width, 3, 2, 1), nn.InstanceNorm2d(2 * width), nn.ReLU()],
            *[nn.Conv2d(2 * width, 4 * width, 3, 2, 1), nn.InstanceNorm2d(4 * width), nn.ReLU(), *middle],
            *[nn.ConvTranspose2d(4 * width, 2 * width, 3, 2, 1, 1), nn.InstanceNorm2d(2 * width), nn.ReLU()],
            *[nn.ConvTranspose2d(2 * width, width, 3, 2, 1, 1), nn.InstanceNorm2d(width), nn.ReLU()],
            *[nn.Conv2d(width, 3, 7, 1, 3), nn.Tanh()],
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)


def cyclegan(small: bool) -> Task:
    """Translate between two sets of images without pairs: least squares, cycle weight 10 (CycleGAN, eqs. 1 to 3)."""
    width, blocks, pixels = (4, 1, 16) if small else (64, 9, 128)

    def judge() -> nn.Module:
        sizes = [3, width, 2 * width, 4 * width]
        convs = [[nn.Conv2d(a, b, 4, 2, 1), nn.LeakyReLU(0.2)] for a, b in pairwise(sizes)]
        return nn.Sequential(*chain.from_iterable(convs), nn.Conv2d(4 * width, 1, 3, 1, 1))

    nets = nn.ModuleDict({"ab": Generator(width, blocks), "ba": Generator(width, blocks), "a": judge(), "b": judge()})
    stripes = torch.sin(torch.arange(pixels) * math.pi / 4).expand(3, pixels, pixels)

    def losses(numbers: Tensor) -> Iterator[Loss]:
        pattern = stripes.to(numbers.device)
        real = {side: torch.tanh(noise(numbers, 3, pixels, pixels, seed=s)) for s, side in ((0, "a"), (10**6, "b"))}
        real = {"a": 0.5 * real["a"] + 0.5 * pattern, "b": 0.5 * real["b"] + 0.5 * pattern.mT}
        fake = {"b": nets["ab"](real["a"]), "a": nets["ba"](real["b"])}

        def generate() -> Tensor:
            fooled = sum(((nets[side](image) - 1) ** 2).mean() for side, image in fake.items())
            back = F.l1_loss(nets["ba"](fake["b"]), real["a"]) + F.l1_loss(nets["ab"](fake["a"]), real["b"])
            return fooled + 10.0 * back

        def tell_apart() -> Tensor:
            return sum(
                ((nets[side](real[side]) - 1) ** 2).mean() / 2 + (nets[side](fake[side].detach()) ** 2).mean() / 2
                for side in "ab"
            )

        yield "generators", generate
        yield "judges", tell_apart

    pairs = {"generators": ("ab", "ba"), "judges": ("a", "b")}
    optimizers: dict[str, torch.optim.Optimizer] = {
        name: torch.optim.Adam(chain(*(nets[n].parameters() for n in of)), 2e-4, betas=(0.5, 0.999))
        for name, of in pairs.items()
    }
    return Task(nets, optimizers, losses, 64 if small else 1_000)


# ---- sequences -------------------------------------------------------------------------------------------------------


class WordModel(nn.Module):
    """Embedding, two LSTM layers, and the embedding again as the output's weights."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(words, width), nn.LSTM(width, width, 2, batch_first=True)

    def forward(self, text: Tensor) -> Tensor:
        return self.lstm(self.words(text))[0] @ self.words.weight.T / self.words.embedding_dim**0.5


def language_model(small: bool) -> Task:
    """Predict the next word of made text, in which each word has four likely successors."""
    words, width, length = (64, 32, 12) if small else (10_000, 650, 35)
    net = WordModel(words, width)
    next_words = torch.randint(words, (words, 4), generator=torch.Generator().manual_seed(1))

    def loss(numbers: Tensor) -> Tensor:
        choices = noise(numbers, length + 1).abs().mul(4).long() % 4
        text, table = [numbers % words], next_words.to(numbers.device)
        for i in range(length):
            text.append(table[text[-1], choices[:, i]])
        rows = torch.stack(text, 1)
        return F.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    return one(nn.ModuleDict({"net": net}), torch.optim.SGD(net.parameters(), 1.0), loss, 1_024 if small else 60_000)


class Translator(nn.Module):
    """Encoder and decoder of attention layers over words and places (Vaswani et al. 2017)."""

    def __init__(self, words: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words + 1, width), nn.Embedding(length + 1, width)
        heads = max(width // 64, 2)
        self.main = nn.Transformer(width, heads, layers, layers, 4 * width, 0.1, batch_first=True)
        self.out = nn.Linear(width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        rows = [self.words(t) + self.places(torch.arange(t.shape[1], device=t.device)) for t in (source, target)]
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        return self.out(self.main(*rows, tgt_mask=mask, tgt_is_causal=True))


def transformer(small: bool) -> Task:
    """Translate made sentences: another word for each word, in reverse order."""
    words, width, layers, length = (32, 32, 1, 8) if small else (8_000, 512, 6, 32)
    net = Translator(words, width, layers, length)
    other = torch.randperm(words, generator=torch.Generator().manual_seed(2))

    def loss(numbers: Tensor) -> Tensor:
        source = (noise(numbers, length).abs() * words).long() % words
        target = other.to(numbers.device)[source.flip(1)]
        begun = torch.cat([torch.full_like(target[:, :1], words), target[:, :-1]], 1)
        return F.cross_entropy(net(source, begun).flatten(0, 1), target.flatten(), label_smoothing=0.1)

    optimizer = torch.optim.Adam(net.parameters(), 5e-4, betas=(0.9, 0.98))
    return one(nn.ModuleDict({"net": net}), optimizer, loss, 1_024 if small else 29_000)


# ---- ratings and control ---------------------------------------------------------------------------------------------


def recommendation(small: bool) -> Task:
    """An autoencoder of users' rows of ratings with multinomial likelihood, as on MovieLens."""
    items, width, tastes = (128, 16, 4) if small else (20_000, 600, 32)
    hidden = nn.Sequential(nn.Linear(items, width), nn.Tanh(), nn.Linear(width, items))
    kinds = torch.randn(tastes, items, generator=torch.Generator().manual_seed(3))

    def loss(numbers: Tensor) -> Tensor:
        liked = noise(numbers, tastes) @ kinds.to(numbers.device)
        rated = (liked > 1.5 * liked.std(1, keepdim=True)).float()
        guessed = F.log_softmax(hidden(F.dropout(F.normalize(rated), 0.5)), 1)
        return -(guessed * rated).sum(1).mean()

    optimizer = torch.optim.Adam(hidden.parameters(), 1e-3)
    return one(nn.ModuleDict({"net": hidden}), optimizer, loss, 2_048 if small else 117_000)


def balance(state: Tensor, right: Tensor) -> Tensor:
    """A pole on a cart, .02 s later (Barto, Sutton and Anderson 1983: equations in the appendix): x, v, angle, its speed."""
    x, v, angle, turn = state.unbind(1)
    force = right.float() * 20.0 - 10.0
    sine, cosine = angle.sin(), angle.cos()
    pushed = (force + 0.05 * turn**2 * sine) / 1.1
    turning = (9.8 * sine - cosine * pushed) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
    moving = pushed - 0.05 * turning * cosine / 1.1
    return torch.stack([x + 0.02 * v, v + 0.02 * moving, angle + 0.02 * turn, turn + 0.02 * turning], 1)


def actor_critic(small: bool) -> Task:
    """Advantage actor-critic (A3C, algorithm S3) on the pole; ranks average their gradients in place of racing each other.

    A batch is that many poles, each played for twenty steps from a start of its own.
    """
    width, horizon, discount = 32 if small else 256, 20, 0.99
    body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
    nets = nn.ModuleDict({"body": body, "actor": nn.Linear(width, 2), "critic": nn.Linear(width, 1)})

    def loss(numbers: Tensor) -> Tensor:
        state, up = 0.05 * noise(numbers, 4), torch.ones(len(numbers), device=numbers.device)
        played = []
        for _ in range(horizon):
            features = body(state)
            choice = torch.distributions.Categorical(logits=nets["actor"](features))
            action = choice.sample()
            played.append((choice.log_prob(action), choice.entropy(), nets["critic"](features)[:, 0], up))
            state = balance(state, action)
            up = up * ((state[:, 0].abs() < 2.4) & (state[:, 2].abs() < 0.21))
        reward, total = up * nets["critic"](body(state))[:, 0].detach(), torch.zeros((), device=numbers.device)
        for log_prob, entropy, value, alive in reversed(played):
            reward = alive * (1 + discount * reward)
            gain = reward - value
            total = total + (alive * (gain**2 / 2 - gain.detach() * log_prob - 0.01 * entropy)).mean()
        return total / horizon

    return one(nets, torch.optim.Adam(nets.parameters(), 7e-4), loss, 256 if small else 10_000)


MODELS: dict[str, Callable[[bool], Task]] = {
    "ResNet-18": lambda small: resnet((2, 2, 2, 2), 1, 32, 10, 50_000, small),
    "ResNet-50": lambda small: resnet((3, 4, 6, 3), 4, 224, 1_000 if not small else 10, 100_000, small),
    "LM": language_model,
    "Transformer": transformer,
    "A3C": actor_critic,
    "CycleGAN": cyclegan,
    "Recommendation": recommendation,
}
"""By the names of Gavel's table of models (appendix A, table 2), which the generated traces have too."""
