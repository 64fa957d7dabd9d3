"""Learning rate schedules: a linear warm-up, then inverse square root decay.

Keras calls a schedule with the number of updates made so far, so its first
call is with 0. Both schedules here count updates from 1, as the paper does:
the learning rate of update `n` is `schedule(n - 1)`, the first update has a
learning rate above 0, and the peak is at update `warmup_steps`.
"""

import math

import keras
from keras import ops

from keras_tfm.types import Tensor


@keras.saving.register_keras_serializable(package="keras_tfm")
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly to a peak, then decays with the inverse square root.

    The learning rate of update `n` is
    `initial + (peak - initial) * n / warmup_steps` up to update `warmup_steps`
    and `peak * sqrt(warmup_steps / n)` from there. With a cooldown, the
    learning rate of the last updates is also multiplied by a factor that falls
    linearly: 1 at update `total_steps - cooldown_steps + 1`,
    `1 / cooldown_steps` at update `total_steps`, 0 after it.

    Args:
        peak_learning_rate: float > 0. Learning rate of update `warmup_steps`.
        warmup_steps: int, 1 or more, in updates.
        initial_learning_rate: float in `[0, peak_learning_rate]`. Where the
            line starts, one update before the first.
        total_steps: int or None. Number of the last update; a cooldown needs
            it.
        cooldown_steps: int, 0 to `total_steps`, in updates.

    Call arguments:
        step: int, the number of updates made so far.

    Returns:
        float32 scalar, the learning rate.

    Raises:
        ValueError: an argument is out of range.

    Example:
        ```python
        import keras
        from keras_tfm import training

        schedule = training.InverseSquareRoot(2e-3, warmup_steps=50)
        print(float(schedule(49)))  # 0.002, the peak
        optimizer = keras.optimizers.Adam(schedule)
        ```

    Source: Vaswani et al. 2017, section 5.3, with the peak in place of the
    dimension of the model, as fairseq's `inverse_sqrt`. The cooldown: Zhai et
    al. 2022, section 3.5, https://arxiv.org/abs/2106.04560
    """

    def __init__(
        self,
        peak_learning_rate: float,
        warmup_steps: int,
        initial_learning_rate: float = 0.0,
        total_steps: int | None = None,
        cooldown_steps: int = 0,
    ):
        _check_warmup(warmup_steps)
        if not 0 < peak_learning_rate < math.inf:
            raise ValueError(
                "`peak_learning_rate` must be finite and above 0; got "
                f"peak_learning_rate={peak_learning_rate}. 0.001 suits small models, "
                "0.0005 large ones."
            )
        if not 0 <= initial_learning_rate <= peak_learning_rate:
            raise ValueError(
                "`initial_learning_rate` must be from 0 to `peak_learning_rate`; got "
                f"initial_learning_rate={initial_learning_rate}, "
                f"peak_learning_rate={peak_learning_rate}."
            )
        if cooldown_steps and not 0 < cooldown_steps <= (total_steps or 0):
            raise ValueError(
                "`cooldown_steps` must be from 0 to `total_steps`; got "
                f"cooldown_steps={cooldown_steps}, total_steps={total_steps}."
            )
        self.peak_learning_rate = peak_learning_rate
        self.warmup_steps = warmup_steps
        self.initial_learning_rate = initial_learning_rate
        self.total_steps = total_steps
        self.cooldown_steps = cooldown_steps

    def __call__(self, step: Tensor) -> Tensor:
        update = _update_number(step)
        initial, peak = self.initial_learning_rate, self.peak_learning_rate
        rising = initial + (peak - initial) * update / self.warmup_steps
        falling = peak * ops.sqrt(self.warmup_steps / update)
        rate = ops.where(update < self.warmup_steps, rising, falling)
        if self.cooldown_steps:
            remaining = (self.total_steps + 1 - update) / self.cooldown_steps
            rate *= ops.clip(remaining, 0.0, 1.0)
        return rate

    def get_config(self) -> dict:
        return {
            "peak_learning_rate": self.peak_learning_rate,
            "warmup_steps": self.warmup_steps,
            "initial_learning_rate": self.initial_learning_rate,
            "total_steps": self.total_steps,
            "cooldown_steps": self.cooldown_steps,
        }


@keras.saving.register_keras_serializable(package="keras_tfm")
class Noam(keras.optimizers.schedules.LearningRateSchedule):
    """Computes the paper's learning rate from the dimension of the model.

    The learning rate of update `n` is
    `factor * embedding_dim**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)`. Its
    peak, at update `warmup_steps`, is
    `factor / sqrt(embedding_dim * warmup_steps)`.

    Args:
        embedding_dim: int, 1 or more, D of the model.
        warmup_steps: int, 1 or more, in updates.
        factor: float > 0. 1 in the paper.

    Call arguments:
        step: int, the number of updates made so far.

    Returns:
        float32 scalar, the learning rate.

    Raises:
        ValueError: an argument is out of range.

    Example:
        ```python
        from keras_tfm import training

        schedule = training.Noam(embedding_dim=512, warmup_steps=4000)
        print(float(schedule(3999)))  # 0.0007, the peak
        ```

    Source: Vaswani et al. 2017, equation 3. https://arxiv.org/abs/1706.03762
    """

    def __init__(self, embedding_dim: int, warmup_steps: int, factor: float = 1.0):
        _check_warmup(warmup_steps)
        if not 1 <= embedding_dim < math.inf or not 0 < factor < math.inf:
            raise ValueError(
                "`embedding_dim` must be at least 1 and `factor` above 0; got "
                f"embedding_dim={embedding_dim}, factor={factor}. The paper's base "
                "model has embedding_dim=512, factor=1."
            )
        self.embedding_dim = embedding_dim
        self.warmup_steps = warmup_steps
        self.factor = factor

    def __call__(self, step: Tensor) -> Tensor:
        update = _update_number(step)
        rate = ops.minimum(ops.rsqrt(update), update * self.warmup_steps**-1.5)
        return self.factor * self.embedding_dim**-0.5 * rate

    def get_config(self) -> dict:
        return {
            "embedding_dim": self.embedding_dim,
            "warmup_steps": self.warmup_steps,
            "factor": self.factor,
        }


def _update_number(step: Tensor) -> Tensor:
    """Converts Keras' count of past updates to the number of this update."""
    return ops.cast(step, "float32") + 1.0


def _check_warmup(warmup_steps: int) -> None:
    if not 1 <= warmup_steps < math.inf:
        raise ValueError(
            f"`warmup_steps` must be at least 1; got warmup_steps={warmup_steps}. "
            "The paper takes 4000; 1 starts at the peak."
        )
