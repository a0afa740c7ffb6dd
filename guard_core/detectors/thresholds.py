"""Thresholds of the statistic, nats, made by `tools/thresholds.py`."""

#: Accepted loss over the noise of one evaluation: the rows.
RATIOS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)

#: Probability that a run without such a fall reaches it in 100 evaluations: the columns.
ALPHAS = (0.1, 0.05, 0.02, 0.01, 0.005)

THRESHOLDS = (
    (5.9, 6.62, 7.57, 8.48, 9.0),
    (4.52, 5.16, 5.95, 6.62, 7.34),
    (3.53, 4.14, 4.93, 5.59, 6.0),
    (2.89, 3.47, 4.24, 4.79, 5.45),
    (2.45, 3.03, 3.87, 4.44, 4.99),
    (2.01, 2.69, 3.68, 4.18, 4.52),
    (1.85, 2.56, 3.51, 4.01, 4.4),
    (1.69, 2.36, 3.2, 3.79, 4.22),
    (1.62, 2.24, 3.06, 3.7, 4.06),
)
