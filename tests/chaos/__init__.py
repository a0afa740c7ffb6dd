"""What is left of the promises while everything breaks: `make chaos`.

`schedule` draws from a seed what is done to whom and when, `counts` says what went wrong by what was seen,
and `page` writes it down: these are pure. `act` plays a round: `cluster` is training-operator and kubelet,
`trainer` reports steps, `strikes` breaks things, `replicas` keeps the operators up.
"""
