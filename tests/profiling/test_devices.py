import json

import pytest

from wholecurve.errors import UserError
from wholecurve.kernels.cost import Cost
from wholecurve.profiling.devices import CLASSES, OF_TARGET, QUANTITIES, bound, device_names, read_device

GOOD = {
    "name": "Toy",
    "target": "sm_90",
    "cache_bytes": 1000,
    "ceilings": [
        {"quantity": "memory_bytes_per_s", "value": 1e12, "class": "datasheet", "source": "a sheet"},
        {"quantity": "memory_bytes_per_s", "value": 0.8e12, "class": "measured read", "source": "a run"},
        {"quantity": "bfloat16_flops_per_s", "value": 100e12, "class": "datasheet", "source": "a sheet"},
    ],
}


def written(folder, **changes):
    path = folder / "toy.json"
    path.write_text(json.dumps(GOOD | changes))
    return path


def test_the_slower_of_memory_and_matrix_sets_the_bound(tmp_path):
    toy = read_device(written(tmp_path))
    memory = bound(Cost(bytes_min=2_000_000, flops=10, unit="bfloat16"), toy)
    assert memory.us == pytest.approx(2.0) and memory.limit.quantity == "memory_bytes_per_s"
    assert str(memory) == "at least 2 µs on one Toy (bound: 2e+06 bytes at 1 TB/s, datasheet)"
    matrix = bound(Cost(bytes_min=10, flops=500_000_000, unit="bfloat16"), toy)
    assert matrix.us == pytest.approx(5.0) and "5e+08 FLOPs (bfloat16) at 100 TFLOP/s" in str(matrix)
    assert bound(Cost(2_000_000, 0), toy, ("measured read",)).us == pytest.approx(2.5)


def test_without_the_ceiling_there_is_no_bound(tmp_path):
    toy = read_device(written(tmp_path))
    assert bound(Cost(bytes_min=10, flops=10, unit="float8"), toy) is None
    assert bound(Cost(bytes_min=10, flops=0, unit="float8"), toy).us > 0
    assert bound(Cost(bytes_min=0, flops=0), toy) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": 3}, "name is 3; it must be of type str"),
        ({"cache_bytes": None}, "cache_bytes is None; it must be of type int"),
        ({"ceilings": {}}, "ceilings is {}; it must be of type list"),
        ({"ceilings": [3]}, "ceilings[0] is 3; it must be an object"),
        ({"ceilings": [GOOD["ceilings"][0] | {"quantity": "speed"}]}, "ceilings[0]: quantity is 'speed'"),
        ({"ceilings": [GOOD["ceilings"][0] | {"class": "guess"}]}, "ceilings[0]: class is 'guess'"),
        ({"ceilings": [GOOD["ceilings"][0] | {"value": 0}]}, "ceilings[0]: value is 0"),
        ({"ceilings": [GOOD["ceilings"][0] | {"value": True}]}, "ceilings[0]: value is True"),
        ({"ceilings": [GOOD["ceilings"][0] | {"source": " "}]}, "ceilings[0]: source is empty"),
    ],
)
def test_a_wrong_file_is_refused_with_its_field(tmp_path, changes, message):
    with pytest.raises(UserError) as caught:
        read_device(written(tmp_path, **changes))
    assert message in str(caught.value) and "toy.json" in str(caught.value)


def test_an_unknown_name_lists_the_known():
    with pytest.raises(UserError, match="no device 'tpu' in data/devices; there are b200-sxm, h100-sxm"):
        read_device("tpu")


@pytest.mark.parametrize("name", device_names())
def test_committed_devices_have_dense_ceilings_with_sources(name):
    device = read_device(name)
    assert device.cache_bytes > 2**20 and device.ceiling("memory_bytes_per_s") is not None
    for quantity in QUANTITIES[1:3]:
        sheet, measured = device.ceiling(quantity), device.ceiling(quantity, ("measured GEMM",))
        assert sheet is not None and (measured is None or measured.value < sheet.value)
    # fp8 is twice bf16 on all of these, dense; a sparse figure among dense ones would break that
    ratio = device.ceiling("float8_flops_per_s").value / device.ceiling("bfloat16_flops_per_s").value
    assert ratio == pytest.approx(2, rel=0.01)
    assert all(one.kind in CLASSES and len(one.source) > 10 for one in device.ceilings)


def test_every_target_with_a_default_device_has_its_file():
    for target, name in OF_TARGET.items():
        assert read_device(name).target == target
