"""Learning rates of each update against their formulas."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm.training import InverseSquareRoot, Noam

UPDATES = np.array([1, 2, 3, 999, 4000, 4001, 16_000, 1_000_000])


def rates(schedule, updates):
    """Returns the rates of updates counted from 1; Keras counts from 0."""
    steps = [ops.convert_to_tensor(n - 1, "int32") for n in updates]
    return np.array([float(ops.convert_to_numpy(schedule(step))) for step in steps])


def test_noam_follows_equation_3_of_the_paper():
    n = UPDATES.astype("float64")
    expected = 512**-0.5 * np.minimum(n**-0.5, n * 4000**-1.5)
    np.testing.assert_allclose(rates(Noam(512, 4000), UPDATES), expected, rtol=1e-6)
    doubled = rates(Noam(512, 4000, factor=2.0), UPDATES)
    np.testing.assert_allclose(doubled, 2 * expected, rtol=1e-6)


def test_inverse_square_root_rises_linearly_and_decays_with_the_root():
    n = UPDATES.astype("float64")
    rising = 1e-4 + (2e-3 - 1e-4) * n / 4000
    expected = np.where(n <= 4000, rising, 2e-3 * np.sqrt(4000 / n))
    actual = rates(InverseSquareRoot(2e-3, 4000, initial_learning_rate=1e-4), UPDATES)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_a_cooldown_falls_linearly_to_zero():
    n = np.arange(1, 14)
    expected = 0.5 * np.minimum(n / 2, np.sqrt(2 / n))
    expected *= [1, 1, 1, 1, 1, 1, 1, 4 / 4, 3 / 4, 2 / 4, 1 / 4, 0, 0]
    actual = rates(InverseSquareRoot(0.5, 2, total_steps=11, cooldown_steps=4), n)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_noam_is_an_inverse_square_root_with_a_computed_peak():
    peak = (512 * 4000) ** -0.5
    np.testing.assert_allclose(
        rates(Noam(512, 4000), UPDATES),
        rates(InverseSquareRoot(peak, 4000), UPDATES),
        rtol=1e-6,
    )


@pytest.mark.parametrize("schedule", [Noam(64, 5), InverseSquareRoot(0.5, 5)])
def test_the_peak_is_at_the_last_warmup_step(schedule):
    actual = rates(schedule, range(1, 12))
    assert actual[0] == pytest.approx(actual[4] / 5)
    assert actual.argmax() == 4  # update 5


def test_a_warmup_of_one_starts_at_the_peak():
    actual = rates(InverseSquareRoot(0.5, 1), [1, 4])
    np.testing.assert_allclose(actual, [0.5, 0.25])


@pytest.mark.parametrize("schedule", [Noam(64, 5), InverseSquareRoot(0.5, 5)])
def test_an_optimizer_uses_the_rate_of_each_update(schedule):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.zeros((1, 1))])
    # The gradient of the mean of w * x at x = 1 is 1: each step is the rate.
    model.compile(keras.optimizers.SGD(schedule), loss=lambda y, p: ops.mean(p))
    x = np.ones((7, 1), "float32")
    model.fit(x, x, batch_size=1, epochs=1, verbose=0)
    distance = -model.get_weights()[0].item()
    assert distance == pytest.approx(rates(schedule, range(1, 8)).sum(), rel=1e-6)


@pytest.mark.parametrize(
    "schedule",
    [
        Noam(64, 5, factor=2.0),
        InverseSquareRoot(0.5, 5, initial_learning_rate=0.1),
        InverseSquareRoot(0.5, 5, total_steps=20, cooldown_steps=3),
    ],
)
def test_the_config_of_schedules_round_trips(schedule):
    optimizer = keras.optimizers.Adam(schedule)
    config = keras.optimizers.serialize(optimizer)
    rebuilt = keras.optimizers.deserialize(config)._learning_rate
    assert type(rebuilt) is type(schedule)
    assert vars(rebuilt) == vars(schedule)


@pytest.mark.parametrize(
    ("make_schedule", "words"),
    [
        (lambda: Noam(512, 0), "`warmup_steps` must be at least 1; got warmup_steps=0"),
        (lambda: Noam(512, float("nan")), "at least 1; got warmup_steps=nan"),
        (lambda: Noam(512, 4000, factor=float("nan")), "above 0; got .*factor=nan"),
        (
            lambda: InverseSquareRoot(float("inf"), 4000),
            "finite and above 0; got peak_learning_rate=inf",
        ),
        (lambda: Noam(0, 4000), "at least 1 .* got embedding_dim=0"),
        (lambda: Noam(512, 4000, factor=0.0), "above 0; got .*factor=0.0"),
        (lambda: InverseSquareRoot(1e-3, -4), "at least 1; got warmup_steps=-4"),
        (lambda: InverseSquareRoot(0.0, 4000), "above 0; got peak_learning_rate=0.0"),
        (lambda: InverseSquareRoot(1e-3, 10, 0.1), "initial_learning_rate=0.1, peak"),
        (lambda: InverseSquareRoot(1e-3, 10, -0.1), "initial_learning_rate=-0.1, peak"),
        (
            lambda: InverseSquareRoot(1.0, 1, cooldown_steps=1),
            "cooldown_steps=1, total_steps=None",
        ),
        (
            lambda: InverseSquareRoot(1.0, 1, 0.0, 2, 3),
            "cooldown_steps=3, total_steps=2",
        ),
        (lambda: InverseSquareRoot(1.0, 1, 0.0, 2, -1), "cooldown_steps=-1, total"),
    ],
)
def test_wrong_arguments_are_rejected(make_schedule, words):
    with pytest.raises(ValueError, match=words):
        make_schedule()
