"""Which device of `data/devices` a driver's name means."""

import pytest

from wholecurve.profiling.devices import device_names, read_device
from wholecurve.profiling.gpu import is_named


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("NVIDIA H200", ["H200 SXM"]),
        ("NVIDIA H100 80GB HBM3", ["H100 SXM"]),
        ("NVIDIA B200", ["B200 SXM"]),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", ["RTX PRO 6000"]),
        ("NVIDIA H100 PCIe", []),  # less memory bandwidth and lower clocks than the part that the file describes
        ("NVIDIA H200 NVL", []),
        ("NVIDIA GeForce RTX 4090", []),
    ],
)
def test_names_of_drivers(name, found):
    assert [read_device(one).name for one in device_names() if is_named(read_device(one), name)] == found
