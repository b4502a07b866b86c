# A loop over nvitop's API that reads, once a second, what gpulab's probe and
# monitor read, at the same pace: what changes fast each time, what hardly does
# every tenth time, the PCIe link every fifth. It says "ready" when it has seen
# all processes, and what it has read when it is ended.
import json
import signal
import sys
import time

import pynvml
from nvitop import Device, libnvml

expected = int(sys.argv[1])
interval = float(sys.argv[2])
ending = False


def end(*_):
    global ending
    ending = True


signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)


def query(name, device, *args):
    return libnvml.nvmlQuery(name, device.handle, *args, ignore_errors=True)


def field(device, number):
    values = query("nvmlDeviceGetFieldValues", device, [number])
    return values[0].value.uiVal if values and values[0].nvmlReturn == 0 else None


def fast(device):
    with device.oneshot():
        return {
            "utilization": device.gpu_utilization(),
            "memory_utilization": device.memory_utilization(),
            "encoder": device.encoder_utilization(),
            "decoder": device.decoder_utilization(),
            "memory_total": device.memory_total(),
            "memory_used": device.memory_used(),
            "sm_clock": device.sm_clock(),
            "memory_clock": device.memory_clock(),
            "throttle": query("nvmlDeviceGetCurrentClocksEventReasons", device),
            "temperature": device.temperature(),
            "memory_temperature": field(device, pynvml.NVML_FI_DEV_MEMORY_TEMP),
            "fan": device.fan_speed(),
            "power": device.power_usage(),
            "energy": query("nvmlDeviceGetTotalEnergyConsumption", device),
            "pcie_generation": query("nvmlDeviceGetCurrPcieLinkGeneration", device),
            "pcie_width": query("nvmlDeviceGetCurrPcieLinkWidth", device),
            "processes": [
                {
                    "pid": pid,
                    "name": p.name(),
                    "user": p.username(),
                    "type": p.type,
                    "memory": p.gpu_memory(),
                    "sm": p.gpu_sm_utilization(),
                }
                for pid, p in device.processes().items()
            ],
        }


def slow(device):
    return {
        "power_limit": device.power_limit(),
        "sm_clock_max": device.max_sm_clock(),
        "memory_clock_max": device.max_memory_clock(),
        "pcie_generation_max": query("nvmlDeviceGetMaxPcieLinkGeneration", device),
        "pcie_width_max": query("nvmlDeviceGetMaxPcieLinkWidth", device),
        "ecc": query("nvmlDeviceGetEccMode", device),
        "persistence": device.persistence_mode(),
        "mig": device.mig_mode(),
        "ecc_corrected": query("nvmlDeviceGetTotalEccErrors", device, 0, 0),
        "ecc_uncorrected": device.total_volatile_uncorrected_ecc_errors(),
        "remapped": query("nvmlDeviceGetRemappedRows", device),
        "retired": query("nvmlDeviceGetRetiredPages", device, 1),
        "recovery": field(device, 230),
    }


def link(device):
    return {"received": device.pcie_rx_throughput(), "sent": device.pcie_tx_throughput()}


devices = Device.all()
state = [{} for _ in devices]
rounds = complete = 0
began = time.monotonic()
while not ending:
    seen = 0
    for device, values in zip(devices, state):
        values.update(fast(device))
        if rounds % 10 == 0:
            values.update(slow(device))
        if rounds % 5 == 0:
            values.update(link(device))
        # Within one second the driver shows only some of ten at work: a share of 0 is one, too.
        seen += sum(1 for p in values["processes"] if p["user"] == "root" and p["memory"] and p["sm"] is not None)
    rounds += 1
    if seen == expected:
        complete += 1
        if complete == 1:
            print(json.dumps({"Ready": True}), flush=True)
    time.sleep(max(0.0, began + rounds * interval - time.monotonic()))
print(json.dumps({"Samples": rounds, "Complete": complete, "Example": state[0]}, default=str), flush=True)
