package doctor

import "testing"

func TestHostname(t *testing.T) {
	for _, test := range []struct {
		name, identity string
		state, says    string
	}{
		{"gpu1", "absent", OK, "gpu1"},
		{"gpu1.lab.example.org", `{"nodeName": "gpu1"}`, OK, "gpu1.lab"},
		{"GPU1", `{"nodeName": "gpu1"}`, OK, "gpu1"},
		{"gpu2", `{"nodeName": "gpu1"}`, Warn, "`hostnamectl set-hostname gpu1`"},
		{"annas_rechner", `{"nodeName": "annas-rechner"}`, Warn, "`hostnamectl set-hostname"},
		{"localhost", "absent", Warn, "no name of its own"},
		{"gpu1", "{damaged", OK, "gpu1"},
	} {
		h := machine(t, map[string]string{"/proc/sys/kernel/hostname": test.name + "\n", "/var/lib/gpulab/identity.json": test.identity})
		finds(t, h, "hostname", Options{}, test.state, test.says)
	}
}
