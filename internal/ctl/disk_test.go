package ctl

import (
	"testing"

	"github.com/gpulab/gpulab/internal/diskspace"
)

func TestDisk(t *testing.T) {
	_, client := serveDaemon(t, &daemon{})
	got, err := client.Disk(t.Context())
	if err != nil || got.Filesystems[0].Level != diskspace.Refusing || got.Parts[0].Bytes != 7 {
		t.Errorf("%+v, %v", got, err)
	}
}
