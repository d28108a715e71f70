"""Entry point of the group ``torch.backends``: ``import torch`` calls :func:`load`.

``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` turns it off; ``import rsx`` then does the same.
"""


def load() -> None:
    from rsx._install import install

    install()
