"""The paper's results (Tables 2 to 5; mean and standard deviation of five runs), by task and model."""

from lapse.tasks.base import Score

PROPOSED = "ode-lstm"  # the model that the paper proposes

# Percent correct on the test split; for `walker` the mean squared error.
PUBLISHED: dict[str, dict[str, Score]] = {
    "xor-dense": {
        "ode-rnn": Score(50.47, 0.06),
        "ct-rnn": Score(50.42, 0.12),
        "lstm": Score(100.00, 0.00),
        "ct-gru": Score(100.00, 0.00),
        "rnn-decay": Score(60.28, 19.87),
        "bidirectional": Score(100.00, 0.00),
        "gru-d": Score(100.00, 0.00),
        "phased-lstm": Score(50.99, 0.76),
        "gru-ode": Score(50.41, 0.40),
        "ct-lstm": Score(97.73, 0.08),
        "ode-lstm": Score(100.00, 0.00),
    },
    "xor-event": {
        "ode-rnn": Score(51.21, 0.37),
        "ct-rnn": Score(50.79, 0.34),
        "lstm": Score(89.71, 3.48),
        "ct-gru": Score(61.36, 4.87),
        "rnn-decay": Score(75.53, 5.28),
        "bidirectional": Score(90.17, 0.69),
        "gru-d": Score(97.90, 1.71),
        "phased-lstm": Score(80.29, 0.99),
        "gru-ode": Score(52.52, 0.35),
        "ct-lstm": Score(95.09, 0.30),
        "ode-lstm": Score(98.89, 0.26),
    },
    "person": {
        "ode-rnn": Score(80.43, 1.55),
        "ct-rnn": Score(83.65, 1.55),
        "lstm": Score(84.11, 0.68),
        "ct-gru": Score(79.48, 2.12),
        "rnn-decay": Score(62.89, 3.87),
        "bidirectional": Score(83.85, 0.45),
        "gru-d": Score(83.57, 0.40),
        "phased-lstm": Score(83.33, 0.69),
        "gru-ode": Score(82.56, 2.63),
        "ct-lstm": Score(84.13, 0.11),
        "ode-lstm": Score(84.15, 0.33),
    },
    "mnist-event": {
        "ode-rnn": Score(72.41, 1.69),
        "ct-rnn": Score(72.05, 0.71),
        "lstm": Score(82.10, 4.36),
        "ct-gru": Score(87.51, 1.57),
        "rnn-decay": Score(88.93, 4.06),
        "bidirectional": Score(94.43, 0.23),
        "gru-d": Score(95.44, 0.34),
        "phased-lstm": Score(86.79, 1.57),
        "gru-ode": Score(80.95, 1.52),
        "ct-lstm": Score(94.84, 0.17),
        "ode-lstm": Score(95.73, 0.24),
    },
    "walker": {
        "ode-rnn": Score(1.904, 0.061),
        "ct-rnn": Score(1.198, 0.004),
        "lstm": Score(1.065, 0.006),
        "ct-gru": Score(1.172, 0.011),
        "rnn-decay": Score(1.406, 0.005),
        "bidirectional": Score(1.071, 0.009),
        "gru-d": Score(1.090, 0.034),
        "phased-lstm": Score(1.063, 0.010),
        "gru-ode": Score(1.051, 0.018),
        "ct-lstm": Score(1.014, 0.014),
        "ode-lstm": Score(0.883, 0.014),
    },
}
