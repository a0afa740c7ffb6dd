"""The trainer image's entrypoint: GRPO from a configuration file, alone or under torchrun.

    python -m rlguard.train --config grpo.yaml
    torchrun --nproc-per-node 8 -m rlguard.train --config grpo.yaml

`obey_sigterm` is for scripts that are the first process of a container.
"""

import sys

from rlguard.core.extras import require

try:
    require("trainer", "rlguard.train")
except ImportError as error:
    if __name__ != "__main__":
        raise
    print(error, file=sys.stderr)
    sys.exit(2)

from trainer_image.train import main, obey_sigterm

__all__ = ["main", "obey_sigterm"]

if __name__ == "__main__":
    sys.exit(main())
