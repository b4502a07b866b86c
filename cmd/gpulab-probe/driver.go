//go:build cgo

package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// initPatience is how long the driver may take to come up: the first user of a
// card without persistence mode waits for its firmware to load.
const initPatience = 60 * time.Second

// driver is the loaded library and what it says about itself.
type driver struct {
	nvml      nvml.Interface
	version   string
	cuda      string
	simulated bool
	cgroups   string // where control groups are mounted
	count     int
	known     map[string]bool // those of optionalSymbols that the library has
}

// openDriver loads the library and initialises it. The error is a sentence
// that says what is wrong with the driver.
func openDriver(library string) (*driver, error) {
	type result struct {
		driver *driver
		err    error
	}
	done := make(chan result, 1)
	go func() {
		d, err := initialise(library)
		done <- result{d, err}
	}()
	select {
	case r := <-done:
		return r.driver, r.err
	case <-time.After(initPatience):
		return nil, fmt.Errorf("the NVIDIA driver has not answered for %v: it hangs, and only a reboot helps", initPatience)
	}
}

func initialise(library string) (*driver, error) {
	lib := nvml.New(nvml.WithLibraryPath(library))
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return nil, initError(library, ret)
	}
	d := &driver{nvml: lib, known: make(map[string]bool)}
	for _, symbol := range optionalSymbols {
		d.known[symbol] = lib.Extensions().LookupSymbol(symbol) == nil
	}
	d.simulated = lib.Extensions().LookupSymbol("gpulab_simulated_driver") == nil
	if v, ret := lib.SystemGetDriverVersion(); ret == nvml.SUCCESS {
		d.version = v
	}
	if d.known["nvmlSystemGetCudaDriverVersion"] {
		if v, ret := lib.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS {
			d.cuda = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
		}
	}
	n, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("the NVIDIA driver does not tell how many GPUs there are (%s)", nvml.ErrorString(ret))
	}
	d.count = n
	return d, nil
}

// optionalSymbols are the functions that this program calls only if the
// library has them: calling one that is missing would end it. All others have
// been there since before CUDA 8.
var optionalSymbols = []string{
	"nvmlSystemGetCudaDriverVersion",
	"nvmlDeviceGetCudaComputeCapability",
	"nvmlDeviceGetCurrPcieLinkGeneration",
	"nvmlDeviceGetCurrPcieLinkWidth",
	"nvmlDeviceGetCurrentClocksEventReasons",
	"nvmlDeviceGetCurrentClocksThrottleReasons",
	"nvmlDeviceGetDecoderUtilization",
	"nvmlDeviceGetEccMode",
	"nvmlDeviceGetEncoderUtilization",
	"nvmlDeviceGetEnforcedPowerLimit",
	"nvmlDeviceGetFanSpeed",
	"nvmlDeviceGetFieldValues",
	"nvmlDeviceGetComputeInstanceId",
	"nvmlDeviceGetGpuInstanceId",
	"nvmlDeviceGetGraphicsRunningProcesses",
	"nvmlDeviceGetMPSComputeRunningProcesses",
	"nvmlDeviceGetMaxClockInfo",
	"nvmlDeviceGetMaxMigDeviceCount",
	"nvmlDeviceGetMaxPcieLinkGeneration",
	"nvmlDeviceGetMaxPcieLinkWidth",
	"nvmlDeviceGetMemoryInfo_v2",
	"nvmlDeviceGetMemoryLimits_v1",
	"nvmlDeviceSetMemoryLimits_v1",
	"nvmlDeviceGetMigDeviceHandleByIndex",
	"nvmlDeviceGetMigMode",
	"nvmlDeviceGetPcieThroughput",
	"nvmlDeviceGetPersistenceMode",
	"nvmlDeviceGetProcessUtilization",
	"nvmlDeviceGetRemappedRows",
	"nvmlDeviceGetRetiredPages",
	"nvmlDeviceGetRetiredPagesPendingStatus",
	"nvmlDeviceGetTotalEccErrors",
	"nvmlDeviceGetTotalEnergyConsumption",
}

// initError says what a failed start of the library means.
func initError(library string, ret nvml.Return) error {
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return fmt.Errorf("the NVIDIA driver is not installed: %s could not be loaded", library)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return errors.New("the NVIDIA driver is installed but not loaded: no card, or a kernel module that does not fit")
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return errors.New("the NVIDIA driver was updated but the old one is still running: reboot the machine")
	case nvml.ERROR_NO_PERMISSION:
		return errors.New("the NVIDIA driver does not let this process use the GPUs")
	default:
		return fmt.Errorf("the NVIDIA driver cannot be asked: %s (NVML error %d)", nvml.ErrorString(ret), int(ret))
	}
}
