"""Thresholds of the statistic, nats, made by `tools/thresholds.py`."""

#: Accepted loss over the noise of one evaluation: the rows.
RATIOS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)

#: Probability that a run without such a fall reaches it in 100 evaluations: the columns.
ALPHAS = (0.1, 0.05, 0.02, 0.01, 0.005)

THRESHOLDS = (
    (5.89, 6.6, 7.5, 8.41, 8.97),
    (4.5, 5.13, 5.91, 6.61, 7.31),
    (3.51, 4.12, 4.88, 5.54, 5.98),
    (2.88, 3.45, 4.22, 4.79, 5.45),
    (2.43, 3.03, 3.87, 4.44, 4.99),
    (2.01, 2.67, 3.68, 4.18, 4.52),
    (1.84, 2.54, 3.48, 3.88, 4.4),
    (1.68, 2.36, 3.2, 3.78, 4.22),
    (1.61, 2.23, 3.05, 3.69, 4.06),
)
