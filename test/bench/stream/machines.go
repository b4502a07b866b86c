package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/nodeapi"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/test/bench/part"
)

// report is the machines, which tell until they are told to stop.
func report(ctx context.Context, file string) error {
	cfg, err := part.Config[config](file)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	authority, err := nodes.ParseCertificate(cfg.Lab)
	if err != nil {
		return err
	}
	for _, m := range cfg.Members {
		pair, err := tls.X509KeyPair(m.Certificate, m.Key)
		if err != nil {
			return err
		}
		client := nodeapi.Member(nodeapi.Places{Addresses: []netip.AddrPort{cfg.Door}}, authority,
			func() (*tls.Certificate, error) { return &pair, nil })
		reports := make(chan nodeapi.Report)
		tasks.Go(func() { tell(ctx, m.Name, reports) })
		tasks.Go(func() {
			if err := client.Stream(ctx, "bench", reports, func(nodeapi.Orders) {}); ctx.Err() == nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n", m.Name, err)
			}
		})
	}
	if err := json.NewEncoder(os.Stdout).Encode(ready{}); err != nil {
		return err
	}
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	return nil
}

// tell makes a reading every second, each machine at a moment of its own.
func tell(ctx context.Context, name string, reports chan<- nodeapi.Report) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(rand.N(time.Second)):
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	features := map[string]string{}
	for i := range 12 {
		features[fmt.Sprintf("nvidia.com/gpu.feature-%d", i)] = "NVIDIA-A100-SXM4-80GB"
	}
	for second := 0; ; second++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		select {
		case <-ctx.Done():
			return
		case reports <- nodeapi.Report{Snapshot: snapshot(name, time.Now(), second), Features: features}:
		}
	}
}

// snapshot is what a machine tells at a moment: with all that a card of a data
// centre can say, and other values than a moment before.
func snapshot(node string, at time.Time, second int) gpu.Snapshot {
	s := gpu.Snapshot{Node: node, Time: at, DriverVersion: "580.95.05", CUDAVersion: "13.0"}
	for i := range gpus {
		s.GPUs = append(s.GPUs, card(node, i, second))
	}
	return s
}

func card(node string, i, second int) gpu.GPU {
	number := func(v float64) *float64 { return &v }
	count := func(v uint64) *uint64 { return &v }
	on := true
	use := float64((second*7 + i*11) % 101)
	hash := sha256.Sum256(fmt.Appendf(nil, "%s %d", node, i))
	digits := hex.EncodeToString(hash[:])
	g := gpu.GPU{
		Device: gpu.Device{
			UUID:  fmt.Sprintf("GPU-%s-%s-%s-%s-%s", digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]),
			Index: i, Name: "NVIDIA A100-SXM4-80GB", PCIBusID: fmt.Sprintf("00000000:%02X:00.0", i),
			MemoryTotal: count(80 << 30), PowerLimit: number(400),
			ComputeCapability: "8.0", SMClockMax: number(1410), MemoryClockMax: number(1593), PCIeGenerationMax: number(4),
			PCIeWidthMax: number(16),
			ECC:          &on, Persistence: &on, Slots: 1,
		},
		Reading: gpu.Reading{
			Utilization: number(use), MemoryUtilization: number(use / 2), Encoder: number(0), Decoder: number(0),
			MemoryUsed: count(uint64(use) << 28),
			Power:      number(60 + 3*use), Energy: number(1e6 + 300*float64(second)), Temperature: number(30 + use/2),
			MemoryTemperature: number(35 + use/2),
			SMClock:           number(210 + 12*use), MemoryClock: number(1593), Throttle: []string{}, PCIeGeneration: number(4),
			PCIeWidth:    number(16),
			PCIeReceived: number(1e6 * use), PCIeSent: number(2e6 * use),
			Health: gpu.Health{
				ECCCorrected: count(0), ECCUncorrected: count(0), RemappedCorrectable: count(0), RemappedUncorrectable: count(0),
			},
		},
	}
	pod := gpu.PodRef{
		UID: digits[32:64], Namespace: "user-" + digits[:8], Name: "jupyter-" + digits[:8], User: "u" + digits[:8],
		Notebook: "gpu",
	}
	g.Holders = []gpu.Holder{{PodRef: pod, Container: "notebook", Since: time.Unix(1.7e9, 0)}}
	for p := range processes {
		g.Processes = append(g.Processes, gpu.Process{
			PID: 1000 + 10*i + p, Name: "python3", MemoryUsed: count(uint64(use) << 26), SMUtilization: number(use / processes),
			Pod: pod, UnixUser: "20001",
		})
	}
	return g
}
