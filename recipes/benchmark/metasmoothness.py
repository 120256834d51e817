"""How smooth a training is, and so how far its scores see."""

import numpy as np
import torch

from farzi_hf.attribution.weighted_training import RowTraining, Test, influence, loss_function
from farzi_hf.data.seeds import Purpose, stream


def metasmoothness(
    training: RowTraining, test: Test, *, size: float = 0.05, directions: int = 8, seed: int = 0
) -> dict[str, float]:
    """How far the training is from linear in the weights of its sequences, where all weights are 1.

    Each direction v is a random half of the sequences with +1 and the others with −1, and takes two
    trainings, with the weights 1 ± h v. Engstrom et al. (2025, arXiv 2503.13751) call a training
    metasmooth where the derivative hardly changes over such a distance.

    Args:
        size: h.
        directions: their number; each takes two trainings.

    Returns:
        `slope`: the slope of real changes of the test loss against the predicted ones; 1 if the
            prediction is right. `correlation` of the
        two. `curvature`: the size of the even part of the change, relative to that of the odd part;
        0 if the training is linear.

    Raises:
        ValueError: `test` returns several losses, `size` is not above 0, or there are fewer than 2
            directions.
    """
    if not size > 0 or directions < 2:
        raise ValueError(
            f"size={size} and directions={directions}; give a size above 0, and at least 2"
            " directions"
        )
    loss = loss_function(training.learner, test)
    with torch.no_grad():
        at_start = loss(training.start)
    if at_start.numel() != 1:
        raise ValueError(
            f"test returns losses of shape {tuple(at_start.shape)}; metasmoothness is that of one"
            " loss"
        )
    scores = influence(training, test)
    generator = stream(seed, Purpose.WEIGHT_DIRECTIONS)
    half = np.arange(training.num_rows) % 2 * 2 - 1
    v = torch.as_tensor(np.stack([generator.permutation(half) for _ in range(directions)])).to(
        scores
    )
    weights = 1 + size * torch.cat([torch.zeros_like(v[:1]), v, -v])
    with torch.no_grad():
        middle, *changed = (float(loss(theta)) for theta in map(training.train, weights))
    above, below = np.split(np.array(changed), 2)
    predicted = -size * (v @ scores).numpy(force=True)
    odd = (above - below) / 2
    even = (above + below) / 2 - middle
    return {
        "slope": float(predicted @ odd / (predicted @ predicted)),
        "correlation": float(np.corrcoef(predicted, odd)[0, 1]),
        "curvature": float(np.linalg.norm(even) / np.linalg.norm(odd)),
    }
