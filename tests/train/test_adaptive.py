"""Monitors of gradients with real PyTorch: the noise scale against brute force over examples, Accordion's rule by hand."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; pip install 'themis-scheduler[torch]'")

from themis.train import adaptive, pytorch  # noqa: E402

torch.set_num_threads(1)


def regression(seed: int = 0) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """A small network and 400 noisy examples."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(400, 5, generator=generator)
    y = x @ torch.randn(5, 1, generator=generator) + 0.5 * torch.randn(400, 1, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    return net, x, y


def backward(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    net.zero_grad()
    torch.nn.functional.mse_loss(net(x), y).backward()


def gradient(net: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.reshape(-1) for p in net.parameters()])


def brute_force(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """tr(Sigma) and |G|^2 from the gradient of every single example."""
    each = []
    for i in range(len(x)):
        backward(net, x[i : i + 1], y[i : i + 1])
        each.append(gradient(net))
    stacked = torch.stack(each).double()
    mean = stacked.mean(dim=0)
    return float((stacked - mean).square().sum(dim=1).mean()), float(mean.square().sum())


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("size", [4, 16])
def test_mccandlish_a1_the_noise_scale_is_that_of_brute_force_over_all_examples(size: int) -> None:
    net, x, y = regression()
    trace, signal = brute_force(net, x, y)
    noise = adaptive.NoiseScale(net.parameters(), smooth=0.999)
    draws = torch.Generator().manual_seed(1)
    for _ in range(1200):
        rows = torch.randint(len(x), (size,), generator=draws)
        backward(net, x[rows], y[rows])
        noise.step(size)
    assert noise.value == pytest.approx(trace / signal, rel=0.15)


def test_the_two_estimates_solve_their_equations() -> None:
    # |G_B|^2 = 3 + 8 / B at sizes 2 and 4.
    assert adaptive.noise_and_signal(3 + 8 / 2, 2, 3 + 8 / 4, 4) == pytest.approx((8.0, 3.0))


def test_gradients_of_two_batch_sizes_are_no_pair() -> None:
    net, x, y = regression()
    noise = adaptive.NoiseScale(net.parameters())
    for size in (4, 8, 16):
        backward(net, x[:size], y[:size])
        noise.step(size)
    assert math.isnan(noise.value)
    noise.step(16)
    assert not math.isnan(noise.value)


def told(values: list[float], **more: float) -> list[int]:
    """Advice after each estimate that brings the noise scale to a value, at sizes from 32 up to 128."""
    net, _, _ = regression()
    noise, size, out = adaptive.NoiseScale(net.parameters(), smooth=0.0, warmup=1, **more), 32, []  # type: ignore[arg-type]
    for value in values:
        noise.load_state_dict({**noise.state_dict(), "noise": value, "signal": 1.0, "weight": 1.0, "since": 1})
        size = noise.advise(size, limit=128)
        out.append(size)
    return out


def test_shockwave_5_the_size_doubles_when_the_noise_grew_up_to_the_limit_and_never_falls() -> None:
    assert told([10, 19, 20, 30, 40, 200, 5]) == [32, 32, 64, 64, 128, 128, 128]
    assert told([10, 20, 31], growth=3.0) == [32, 32, 64]


def test_no_advice_before_the_warmup() -> None:
    net, x, y = regression()
    noise = adaptive.NoiseScale(net.parameters(), warmup=3)
    backward(net, x[:8], y[:8])
    assert noise.advise(8, 64) == 8
    with pytest.raises(ValueError, match=r"growth is 1\.0, expected a factor above 1"):
        adaptive.NoiseScale(net.parameters(), growth=1.0)
    with pytest.raises(ValueError, match="batch_size is 0"):
        noise.step(0)


def test_without_a_gradient_it_says_what_to_do() -> None:
    net, _, _ = regression()
    with pytest.raises(RuntimeError, match="after backward"):
        adaptive.NoiseScale(net.parameters()).step(8)


def norms(*lengths: float, every: int = 1, threshold: float = 0.5) -> list[int]:
    """Accordion's sizes after epochs whose gradients have these norms, two steps each."""
    weight = torch.nn.Parameter(torch.zeros(4))
    watch = adaptive.GradientNorm([weight], small=32, large=256, every=every, threshold=threshold)
    out = []
    for length in lengths:
        for sign in (1.5, 0.5):
            weight.grad = torch.full((4,), sign * length / 2)
            watch.step()
        out.append(watch.epoch_ended())
    assert watch.norms == pytest.approx(list(lengths))
    return out


def test_accordion_1_small_while_the_norm_changes_by_half_or_more() -> None:
    assert norms(8, 4, 3, 2.9, 1, 1) == [32, 32, 256, 256, 32, 256]
    assert norms(8, 4, 3, threshold=0.2) == [32, 32, 32]


def test_accordion_1_looks_every_so_many_epochs_against_the_look_before() -> None:
    assert norms(8, 4, 1, 3, 9, 3.1, every=2) == [32, 32, 32, 256, 256, 256]


def test_accordion_1_is_small_after_the_learning_rate_was_cut() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    watch = adaptive.GradientNorm([weight], small=32, large=256, every=1)
    sizes = []
    for _ in range(3):
        weight.grad = torch.ones(1)
        watch.step()
        sizes.append(watch.epoch_ended())
    watch.decayed()
    assert (sizes, watch.epoch_ended()) == ([32, 256, 256], 32)
    with pytest.raises(ValueError, match="small is 64, expected 1 or more and at most large, which is 32"):
        adaptive.GradientNorm([weight], small=64, large=32)


def test_monitors_go_on_from_a_checkpoint(tmp_path: object) -> None:
    net, x, y = regression()
    noise = adaptive.NoiseScale(net.parameters())
    watch = adaptive.GradientNorm(net.parameters(), small=8, large=32)
    for _ in range(4):
        backward(net, x[:8], y[:8])
        noise.step(8)
        watch.step()
    path = tmp_path / "state"  # type: ignore[operator]
    both = pytorch.state(model=net, noise=noise, watch=watch)
    both["save"](path)
    other, _, _ = regression(1)
    fresh = adaptive.NoiseScale(other.parameters()), adaptive.GradientNorm(other.parameters(), small=8, large=32)
    pytorch.state(model=other, noise=fresh[0], watch=fresh[1])["load"](path)
    assert fresh[0].value == noise.value
    watch.epoch_ended()
    fresh[1].epoch_ended()
    assert fresh[1].norms == watch.norms
