"""Detects a TPU on this machine, so that a training does not run on the CPU without notice."""

from __future__ import annotations

from pathlib import Path

_GOOGLE = "0x1ae0"
"""Google's PCI vendor id."""
_TPUS = {"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}
"""PCI device ids of TPUs v2 to 7x, as in JAX's hardware_utils.py."""
_OTHERS = {"0x001f", "0x0042"}
"""PCI device ids of Google's disks and network cards, which other virtual machines have too."""


def has_tpu(root: Path = Path("/")) -> bool:
    """Returns whether this machine has a TPU.

    Args:
      root: the root of the filesystem, with `sys` and `dev`.
    """
    found = {
        vendor.with_name("device").read_text().strip()
        for vendor in root.glob("sys/bus/pci/devices/*/vendor")
        if vendor.read_text().strip() == _GOOGLE
    }
    # Drivers provide one file for each chip: `accel0`, and `vfio/0` since v5e. Other devices have
    # files in `accel/` and `vfio/` as well, so a chip that is not in the table needs both.
    newer = found - _OTHERS and any(root.glob("dev/vfio/[0-9]*"))
    return bool(found & _TPUS or newer or any(root.glob("dev/accel[0-9]*")))
