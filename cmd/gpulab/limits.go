package main

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"

	"github.com/gpulab/gpulab/internal/hoststat"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/tenancy"
)

const mebibyte = 1 << 20

// containerLimits bound what one container may take on a machine with that
// many cores and that much memory. One that sets no limits gets half of the
// machine; none gets more than the machine, or the largest profile, has.
func containerLimits(cores int, memory int64, profiles []notebooks.Profile,
	scratch int64) (tenancy.ContainerLimits, error) {
	cpu := int64(cores) * 1000
	half := tenancy.Amounts{
		MilliCPU: new(max(cpu/2, 1000)), Memory: new(memory / 2 / mebibyte * mebibyte), EphemeralStorage: &scratch,
	}
	for i := range profiles {
		cpu = max(cpu, int64(profiles[i].CPUs*1000))
		if profiles[i].Memory == "" {
			continue
		}
		q, err := resource.ParseQuantity(profiles[i].Memory)
		if err != nil {
			return tenancy.ContainerLimits{}, fmt.Errorf("the memory of the profile %q: %w", profiles[i].Slug, err)
		}
		memory = max(memory, q.Value())
	}
	// The hub rounds a profile's memory up to whole mebibytes.
	memory = (memory + mebibyte - 1) / mebibyte * mebibyte
	return tenancy.ContainerLimits{
		Default: half,
		Max:     tenancy.Amounts{MilliCPU: &cpu, Memory: &memory, EphemeralStorage: &scratch},
	}, nil
}

// newTenancy makes what gives people their place in the cluster.
func (l *appliance) newTenancy(client kubernetes.Interface) (*tenancy.Tenancy, error) {
	may, err := limits(l.host, l.cfg.UsualProfiles(), l.cfg.Storage.Scratch.Bytes())
	if err != nil {
		return nil, err
	}
	return tenancy.New(tenancy.Config{
		HomesDir: l.homesDir(), SystemNamespace: systemNamespace, Forbidden: l.forbidden, Entrances: l.entrances,
		Allow: l.cfg.Network.Destinations(), Proxy: l.proxy.addresses, Members: groupMembers(l.people), Limits: may,
	}, client), nil
}

// limits are what each person's pods may take: a bound for every container.
func limits(host *hoststat.Host, profiles []notebooks.Profile,
	scratch int64) (func(context.Context, string) (tenancy.Limits, error), error) {
	now, err := host.Read()
	memory, known := now.Memory["MemTotal"]
	if !known || len(now.CPUs) == 0 {
		return nil, errors.Join(errors.New("this machine does not say how many processors and how much memory it has"), err)
	}
	container, err := containerLimits(len(now.CPUs), int64(memory), profiles, scratch)
	if err != nil {
		return nil, err
	}
	return func(context.Context, string) (tenancy.Limits, error) {
		return tenancy.Limits{Container: container}, nil
	}, nil
}
