"""Learning rates that rise and then fall with the root of the update number.

Keras calls a schedule with the number of updates already made, so its first
call is with 0. Both schedules here count updates from 1, as the paper does:
the rate of update `n` is `schedule(n - 1)`, the first update's rate is not 0,
and the rate peaks at update `warmup`.
"""

import keras
from keras import ops


def update_number(step):
    """Turns Keras' count of past updates into the number of this one."""
    return ops.cast(step, "float32") + 1.0


def check_warmup(warmup):
    """Raises ValueError unless `warmup` is 1 or more updates."""
    if warmup < 1:
        raise ValueError(
            "The learning rate rises over at least 1 update. Received: "
            f"warmup={warmup}. The paper takes 4000; 1 starts at the peak."
        )


@keras.saving.register_keras_serializable(package="keras_tfm")
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """Rises to a peak in a line, then falls with the inverse square root.

    The rate of update `n`, counted from 1 (Keras passes `n - 1`), is
    `initial + (peak - initial) * n / warmup` up to update `warmup` and
    `peak * sqrt(warmup / n)` from there. With a cooldown, the last updates'
    rates are also multiplied by a line: by 1 at update `end - cooldown + 1`,
    by `1 / cooldown` at update `end`, by 0 after it.

    Args:
        peak: float > 0. Learning rate of update `warmup`, the largest.
        warmup: int, 1 or more, in updates.
        initial: float in `[0, peak]`. Where the line starts, one update
            before the first.
        end: int or None. Number of the last update; a cooldown needs it.
        cooldown: int, 0 to `end`, in updates.

    Call arguments:
        step: int, the number of updates already made.

    Returns:
        float32 scalar, the learning rate.

    Raises:
        ValueError: an argument is out of range.

    Source: Vaswani et al. 2017, section 5.3, with the peak given instead of
    the width; the form of fairseq's `inverse_sqrt`, which counts from 0. The
    cooldown: Zhai et al. 2022, section 3.5, https://arxiv.org/abs/2106.04560
    """

    def __init__(self, peak, warmup, initial=0.0, end=None, cooldown=0):
        check_warmup(warmup)
        if peak <= 0:
            raise ValueError(
                f"The peak of the learning rate is above 0. Received: peak={peak}. "
                "0.001 suits small models, 0.0005 large ones."
            )
        if not 0 <= initial <= peak:
            raise ValueError(
                "The learning rate rises from initial to peak. Received: "
                f"initial={initial}, peak={peak}. Choose initial from 0 to peak."
            )
        if cooldown < 0 or (cooldown and (end is None or cooldown > end)):
            raise ValueError(
                "A cooldown takes the last of the updates up to end. Received: "
                f"cooldown={cooldown}, end={end}. Choose cooldown from 0 to end."
            )
        self.peak = peak
        self.warmup = warmup
        self.initial = initial
        self.end = end
        self.cooldown = cooldown

    def __call__(self, step):
        update = update_number(step)
        rising = self.initial + (self.peak - self.initial) * update / self.warmup
        falling = self.peak * ops.sqrt(self.warmup / update)
        rate = ops.where(update < self.warmup, rising, falling)
        if self.cooldown:
            rate *= ops.clip((self.end + 1 - update) / self.cooldown, 0.0, 1.0)
        return rate

    def get_config(self):
        return {
            "peak": self.peak,
            "warmup": self.warmup,
            "initial": self.initial,
            "end": self.end,
            "cooldown": self.cooldown,
        }


@keras.saving.register_keras_serializable(package="keras_tfm")
class Noam(keras.optimizers.schedules.LearningRateSchedule):
    """The paper's learning rate, which depends on the width of the model.

    The rate of update `n`, counted from 1 (Keras passes `n - 1`), is
    `factor * d_model ** -0.5 * min(n ** -0.5, n * warmup ** -1.5)`. It peaks
    at update `warmup` with `factor / sqrt(d_model * warmup)`.

    Args:
        d_model: int, 1 or more. Width of the model.
        warmup: int, 1 or more, in updates.
        factor: float > 0. 1 in the paper.

    Call arguments:
        step: int, the number of updates already made.

    Returns:
        float32 scalar, the learning rate.

    Raises:
        ValueError: an argument is out of range.

    Source: Vaswani et al. 2017, equation 3. https://arxiv.org/abs/1706.03762
    """

    def __init__(self, d_model, warmup, factor=1.0):
        check_warmup(warmup)
        if d_model < 1:
            raise ValueError(
                f"The width of the model is 1 or more. Received: d_model={d_model}. "
                "Give the width of its layers, 512 in the paper's base model."
            )
        if factor <= 0:
            raise ValueError(
                f"The factor is above 0. Received: factor={factor}. "
                "1 is the paper's learning rate."
            )
        self.d_model = d_model
        self.warmup = warmup
        self.factor = factor

    def __call__(self, step):
        update = update_number(step)
        shape = ops.minimum(ops.rsqrt(update), update * self.warmup**-1.5)
        return self.factor * self.d_model**-0.5 * shape

    def get_config(self):
        return {
            "d_model": self.d_model,
            "warmup": self.warmup,
            "factor": self.factor,
        }
