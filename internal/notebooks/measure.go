package notebooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// PodUsage is what a pod has used since it began.
type PodUsage struct {
	At    time.Time     // when it was measured
	CPU   time.Duration // of processors
	Bytes int64         // of its network, both ways
	Files int64         // and folders that it has now on its machine's own disk, 0 while that is not known
}

// measureTime is how long a machine has to answer.
const measureTime = 5 * time.Second

// Measure asks the kubelets of the machines with notebooks what these have used, by UID. What some machines do not tell
// is left out, and the error says which.
func (c *KubeCluster) Measure(ctx context.Context) (map[string]PodUsage, error) {
	var machines []string
	on := map[string]string{} // the machine, by UID
	for _, p := range c.Notebooks() {
		on[p.UID] = p.Node
		if p.Node != "" && !slices.Contains(machines, p.Node) {
			machines = append(machines, p.Node)
		}
	}
	var (
		mu   sync.Mutex
		all  sync.WaitGroup
		errs []error
		out  = map[string]PodUsage{}
	)
	for _, machine := range machines {
		all.Go(func() {
			found, err := c.measureOn(ctx, machine)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
			}
			for uid, u := range found {
				if on[uid] == machine { // one speaks for its own pods only
					out[uid] = u
				}
			}
		})
	}
	all.Wait()
	return out, errors.Join(errs...)
}

// summary is the part of a kubelet's /stats/summary that is read.
type summary struct {
	Pods []struct {
		PodRef struct {
			UID string `json:"uid"`
		} `json:"podRef"`
		CPU        *summaryCPU `json:"cpu"`
		Containers []struct {
			CPU *summaryCPU `json:"cpu"`
		} `json:"containers"`
		Network *struct {
			Received *uint64 `json:"rxBytes"`
			Sent     *uint64 `json:"txBytes"`
		} `json:"network"`
		Disk *struct {
			Files *uint64 `json:"inodesUsed"`
		} `json:"ephemeral-storage"`
	} `json:"pods"`
}

type summaryCPU struct {
	Time  time.Time `json:"time"`
	Total *uint64   `json:"usageCoreNanoSeconds"`
}

// mostSummary bounds what a machine's answer takes of the head's memory, in bytes: 110 pods take a tenth of it.
const mostSummary = 8 << 20

func (c *KubeCluster) measureOn(ctx context.Context, machine string) (map[string]PodUsage, error) {
	ctx, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	answer, err := c.client.CoreV1().RESTClient().Get().Resource("nodes").Name(machine).SubResource("proxy").Suffix(
		"stats/summary").Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask %s what its notebooks use: %w", machine, err)
	}
	defer func() { _ = answer.Close() }()
	body, err := io.ReadAll(io.LimitReader(answer, mostSummary+1))
	if err == nil && len(body) > mostSummary {
		err = fmt.Errorf("its answer is longer than %d MB", mostSummary>>20)
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s what its notebooks use: %w", machine, err)
	}
	found, err := readSummary(body)
	if err != nil {
		return nil, fmt.Errorf("what the notebooks on %s use: %w", machine, err)
	}
	return found, nil
}

// readSummary leaves out pods whose processors were not measured. A network that was not counts as silent.
func readSummary(body []byte) (map[string]PodUsage, error) {
	var s summary
	if err := json.Unmarshal(body, &s); err != nil {
		return nil, err
	}
	out := map[string]PodUsage{}
	for _, p := range s.Pods {
		if (p.CPU == nil || p.CPU.Total == nil) && len(p.Containers) == 1 { // a notebook's pod has one
			p.CPU = p.Containers[0].CPU
		}
		if p.CPU == nil || p.CPU.Total == nil {
			continue
		}
		u := PodUsage{At: p.CPU.Time, CPU: time.Duration(*p.CPU.Total)}
		if n := p.Network; n != nil && n.Received != nil && n.Sent != nil {
			u.Bytes = int64(*n.Received + *n.Sent)
		}
		if d := p.Disk; d != nil && d.Files != nil {
			u.Files = int64(*d.Files)
		}
		out[p.PodRef.UID] = u
	}
	return out, nil
}
