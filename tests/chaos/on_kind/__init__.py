"""The same on a kind cluster: real kubelet, training-operator and garbage collector, product images.

`plan` draws from a seed, `play` carries out and notes, `..counts` counts. `__main__` writes the page.
"""
